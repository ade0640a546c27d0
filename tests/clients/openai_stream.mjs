// Reads an OpenAI chat stream to its end: checks the shape that clients rely on, and puts the
// chunks together as the answer without stream has it.
import assert from "node:assert/strict";

export async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

function addCalls(message, deltas) {
  message.tool_calls ??= [];
  for (const { index, ...call } of deltas) {
    if (message.tool_calls[index] === undefined) {
      assert.equal(index, message.tool_calls.length, "calls begin one after the other");
      assert.equal(call.type, "function");
      assert.match(call.id, /^call_/);
      assert.ok(call.function.name);
      message.tool_calls.push(structuredClone(call));
    } else {
      assert.deepEqual(Object.keys(call), ["function"], "id, type and name come once");
      assert.deepEqual(Object.keys(call.function), ["arguments"]);
      message.tool_calls[index].function.arguments += call.function.arguments;
    }
  }
}

function addChoice(choices, { index, delta, logprobs, finish_reason, ...rest }) {
  assert.deepEqual(rest, {});
  const choice = (choices[index] ??= { index, message: {}, logprobs: null, finish_reason: null });
  const { message } = choice;
  assert.equal(choice.finish_reason, null, "nothing comes behind the finish_reason");
  assert.notEqual(finish_reason, undefined, "null, not left out");
  assert.notEqual(logprobs, undefined, "null, not left out");
  choice.finish_reason = finish_reason;
  const { role, content, reasoning_content, tool_calls, ...others } = delta;
  assert.deepEqual(others, {});
  if (role !== undefined) {
    assert.deepEqual(message, {}, "the role comes once, in the first delta");
    message.role = role;
    message.content = "";
  }
  assert.equal(message.role, "assistant");
  if (content !== undefined) {
    message.content += content;
    assert.ok(!content.includes("\ufffd"), "a character was cut");
  }
  if (reasoning_content !== undefined) {
    message.reasoning_content = (message.reasoning_content ?? "") + reasoning_content;
  }
  if (tool_calls !== undefined) addCalls(message, tool_calls);
  if (logprobs !== null) {
    choice.logprobs ??= { content: [], refusal: null };
    choice.logprobs.content.push(...logprobs.content);
  }
}

// {id, model, choices, usage}, choices as chat.completion has them. usage is undefined where the
// stream had none.
export function join(chunks, { withUsage = false } = {}) {
  assert.ok(chunks.length >= 2);
  const [{ id, created, model, system_fingerprint }] = chunks;
  assert.match(id, /^chatcmpl-/);
  const choices = [];
  const last = withUsage ? chunks.length - 1 : chunks.length;
  for (const [i, chunk] of chunks.entries()) {
    const { choices: parts, usage, ...head } = chunk;
    assert.deepEqual(head,
      { id, object: "chat.completion.chunk", created, model, system_fingerprint });
    if (!withUsage) assert.ok(!("usage" in chunk), "usage was not asked for");
    if (withUsage && i < last) assert.equal(usage, null, "null until the last chunk");
    assert.equal(parts.length, i < last ? 1 : 0);
    for (const part of parts) addChoice(choices, part);
  }
  for (const { message, finish_reason } of choices) {
    assert.ok(["stop", "length", "tool_calls"].includes(finish_reason), String(finish_reason));
    if (message.tool_calls && message.content === "") message.content = null;
    message.refusal = null;
  }
  return { id, model, choices, usage: chunks.at(-1).usage };
}

// Ids differ from one answer to the next; all else has to be equal.
export function withoutIds(choices) {
  return choices.map((choice) => {
    const copy = structuredClone(choice);
    for (const call of copy.message.tool_calls ?? []) delete call.id;
    return copy;
  });
}
