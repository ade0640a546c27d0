// OpenAI's client, its newer interface: responses plain and streamed, conversations that the server
// keeps, tools, and texts that follow a schema.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import OpenAI from "openai";
import { kCount, kRiver, kRiverAnswer, kSum, kTools, kToolTurns, user } from "./prompts.mjs";
import { serve } from "./serve.mjs";

const server = serve();
const api = () => new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
const create = (request) => api().responses.create({ model: "any", temperature: 0, ...request });
const kResponseTools = kTools.map((tool) => ({ type: "function", strict: true, ...tool }));

// Ids and times differ from one answer to the next, and so does what the cache had.
function withoutIds(response) {
  const copy = structuredClone(response);
  for (const name of ["id", "created_at", "completed_at"]) delete copy[name];
  delete copy.usage?.input_tokens_details;
  for (const item of copy.output) {
    delete item.id;
    delete item.call_id;
  }
  return copy;
}

// Events in the order that clients rely on, each in its place; what they add up to is the response.
function checkEvents(events) {
  const types = events.map(({ type }) => type.replace(/^response\./, ""));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, i) => i));
  assert.deepEqual(types.slice(0, 2), ["created", "in_progress"]);
  assert.match(types.at(-1), /^(completed|incomplete)$/);
  const text = types.slice(2, -1).join(" ");
  const part = (kind) =>
    `content_part\\.added (${kind}\\.delta )*${kind}\\.done content_part\\.done`;
  const call = "(function_call_arguments\\.delta )*function_call_arguments\\.done";
  const inside = [part("output_text"), part("reasoning_text"), call].join("|");
  assert.match(text, new RegExp(
    `^(output_item\\.added (${inside}) output_item\\.done ?)*$`));
  const done = events.filter(({ type }) => type === "response.output_item.done");
  const { response } = events.at(-1);
  assert.deepEqual(done.map(({ item }) => item), response.output);
  assert.deepEqual(done.map(({ output_index }) => output_index), response.output.map((_, i) => i));
  return response;
}

// The answer in three ways, which have to agree, as the plain one.
async function ask(request) {
  const plain = await create(request);
  const events = [];
  for await (const event of await create({ ...request, stream: true })) events.push(event);
  const { output_text, ...whole } = plain;
  assert.deepEqual(withoutIds(checkEvents(events)), withoutIds(whole));
  // The client puts a response together from events of its own.
  const stream = api().responses.stream({ model: "any", temperature: 0, ...request });
  const joined = await stream.finalResponse();
  assert.equal(joined.output_text, output_text);
  assert.equal(joined.output.length, plain.output.length);
  return plain;
}

describe("a response", () => {
  test("plain and streamed", async () => {
    const response = await ask({ input: kRiver, metadata: { of: "test" } });
    assert.equal(response.output_text, kRiverAnswer);
    assert.match(response.id, /^resp_[0-9a-f]{32}$/);
    assert.equal(response.object, "response");
    assert.equal(response.status, "completed");
    assert.equal(response.model, server.model);
    assert.ok(Math.abs(response.created_at - Date.now() / 1000) < 60);
    assert.ok(response.completed_at >= response.created_at);
    const { usage } = response;
    assert.equal(usage.total_tokens, usage.input_tokens + usage.output_tokens);
    assert.ok(usage.output_tokens > 5 && usage.output_tokens < 40);
    assert.equal(usage.output_tokens_details.reasoning_tokens, 0);
    assert.deepEqual(response.metadata, { of: "test" });
    assert.equal(response.temperature, 0);
    assert.deepEqual(response.output, [{
      id: response.output[0].id, type: "message", status: "completed", role: "assistant",
      content: [{ type: "output_text", text: kRiverAnswer, annotations: [], logprobs: [] }],
    }]);
  });

  test("is the chat's answer to the same conversation", async () => {
    const instructions = "You are a pocket dictionary. Answer briefly.";
    const chat = await api().chat.completions.create({
      model: "any", temperature: 0,
      messages: [{ role: "system", content: instructions }, ...user(kRiver)],
    });
    const response = await ask({ instructions, input: user(kRiver) });
    assert.equal(response.output_text, chat.choices[0].message.content);
    assert.equal(response.usage.input_tokens, chat.usage.prompt_tokens);
  });

  test("with reasoning", async () => {
    const response = await ask({ input: kSum, reasoning: { effort: "high" } });
    const [reasoning, message] = response.output;
    assert.equal(reasoning.type, "reasoning");
    assert.deepEqual(reasoning.summary, []);
    assert.equal(reasoning.content[0].type, "reasoning_text");
    assert.match(reasoning.content[0].text, /^12 \+ 30 = \d+\. \d+ \+ 7 = \d+\.$/);
    assert.match(message.content[0].text, /^12 \+ 30 \+ 7 = \d+$/);
    const { reasoning_tokens } = response.usage.output_tokens_details;
    assert.ok(reasoning_tokens > 5 && reasoning_tokens < response.usage.output_tokens);
  });

  test("cut by max_output_tokens", async () => {
    const response = await ask({ input: kCount, max_output_tokens: 7 });
    assert.equal(response.status, "incomplete");
    assert.equal(response.incomplete_details.reason, "max_output_tokens");
    assert.equal(response.usage.output_tokens, 7);
    assert.equal(response.output[0].status, "incomplete");
  });

  test("with logprobs of its text and not of its thoughts", async () => {
    const response = await ask({
      input: kSum, reasoning: { effort: "high" }, top_logprobs: 2,
      include: ["message.output_text.logprobs"],
    });
    const [{ text, logprobs }] = response.output[1].content;
    assert.equal(logprobs.map(({ token }) => token).join("").trim(), text);
    for (const { token, logprob, bytes, top_logprobs } of logprobs) {
      assert.deepEqual(bytes, [...Buffer.from(token)]);
      assert.equal(top_logprobs.length, 2);
      assert.equal(top_logprobs[0].logprob, logprob, "the likeliest was taken");
    }
  });
});

describe("a conversation", () => {
  test("goes on from a response that the server keeps", async () => {
    const first = await create({ input: kRiver });
    const request = { input: "What is 1 + 2 + 3?" };
    const second = await ask({ ...request, previous_response_id: first.id });
    const chat = await api().chat.completions.create({
      model: "any", temperature: 0,
      messages: [...user(kRiver), { role: "assistant", content: kRiverAnswer },
        ...user(request.input)],
    });
    assert.equal(second.output_text, chat.choices[0].message.content);
    assert.equal(second.usage.input_tokens, chat.usage.prompt_tokens);
    assert.equal(second.previous_response_id, first.id);
    // The same, where the client sends what it got.
    const again = await ask({ store: false, input: [...user(kRiver), ...first.output,
      ...user(request.input)] });
    assert.equal(again.output_text, second.output_text);
    assert.equal(again.usage.input_tokens, second.usage.input_tokens);
  });

  test("can be looked at and deleted", async () => {
    const response = await create({ input: kRiver });
    const { responses } = api();
    assert.deepEqual(await responses.retrieve(response.id), response);
    const items = [];
    for await (const item of responses.inputItems.list(response.id)) items.push(item);
    assert.equal(items.length, 1);
    assert.deepEqual(items[0].content, [{ type: "input_text", text: kRiver }]);
    await responses.delete(response.id);
    await assert.rejects(responses.retrieve(response.id), OpenAI.NotFoundError);
    const gone = create({ input: "And?", previous_response_id: response.id });
    await assert.rejects(gone, (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.equal(error.param, "previous_response_id");
      assert.match(error.message, new RegExp(response.id));
      return true;
    });
  });

  test("is not kept with store: false", async () => {
    const { id } = await create({ input: kRiver, store: false });
    await assert.rejects(api().responses.retrieve(id), OpenAI.NotFoundError);
  });

  test("its input items come page by page", async () => {
    const input = [];
    for (let i = 0; i < 25; ++i) input.push({ role: "user", content: `Item ${i}` });
    const { id } = await create({ input, max_output_tokens: 1 });
    const texts = [];
    const list = api().responses.inputItems.list(id, { order: "asc", limit: 10 });
    for await (const item of list) texts.push(item.content[0].text);
    assert.deepEqual(texts, input.map(({ content }) => content));
  });
});

describe("tools", () => {
  const output = (call, turn) => ({
    type: "function_call_output", call_id: call.call_id, output: turn.result,
  });
  for (const turn of kToolTurns) {
    test(`${turn.name}, called and answered`, async () => {
      const tools = kResponseTools;
      const first = await ask({ input: turn.ask, tools });
      assert.deepEqual(first.output.map(({ type }) => type), ["function_call"]);
      const [call] = first.output;
      assert.equal(call.name, turn.name);
      assert.deepEqual(JSON.parse(call.arguments), turn.input);
      assert.match(call.call_id, /^call_/);
      const second = await ask({
        input: [output(call, turn)], tools, previous_response_id: first.id,
      });
      assert.equal(second.output_text, turn.answer);
      const sent = await ask({
        input: [...user(turn.ask), call, output(call, turn)], tools, store: false,
      });
      assert.equal(sent.output_text, turn.answer);
    });
  }

  test("a function that has to be called", async () => {
    const tool_choice = { type: "function", name: "define" };
    const response = await ask({ input: "Hello!", tools: kResponseTools, tool_choice });
    assert.ok(response.output.length >= 1);
    for (const { type, name } of response.output) {
      assert.equal(`${type} ${name}`, "function_call define");
    }
    assert.deepEqual(response.tool_choice, tool_choice);
  });

  test("none of them", async () => {
    const [{ ask: input }] = kToolTurns;
    const response = await ask({ input, tools: kResponseTools, tool_choice: "none" });
    assert.deepEqual(response.output.map(({ type }) => type), ["message"]);
  });

  test("the result of a call that was never made is refused", async () => {
    const input = [{ type: "function_call_output", call_id: "call_x", output: "1" }];
    await assert.rejects(create({ input }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, "input[0].call_id");
      return true;
    });
  });
});

describe("a format", () => {
  const schema = {
    type: "object",
    properties: { word: { type: "string" }, letters: { type: "integer" } },
    required: ["word", "letters"],
    additionalProperties: false,
  };

  test("by a schema", async () => {
    const format = { type: "json_schema", name: "word", schema, strict: true };
    const response = await ask({ input: "Describe the word river as JSON.", text: { format } });
    const value = JSON.parse(response.output_text);
    assert.deepEqual(Object.keys(value).sort(), ["letters", "word"]);
    assert.equal(typeof value.word, "string");
    assert.ok(Number.isInteger(value.letters));
    assert.deepEqual(response.text.format, format);
    const parsed = await api().responses.parse({
      model: "any", temperature: 0, input: "Describe the word river as JSON.", text: { format },
    });
    assert.deepEqual(parsed.output_parsed, value);
  });

  test("an object", async () => {
    const text = { format: { type: "json_object" } };
    const response = await ask({ input: "Describe the word river as JSON.", text,
      max_output_tokens: 400 });
    assert.equal(typeof JSON.parse(response.output_text), "object");
  });
});

test("what is not there is refused by name", async () => {
  const cases = {
    "tools[0].type": { tools: [{ type: "web_search" }] },
    background: { background: true },
    truncation: { truncation: "auto" },
    "include[0]": { include: ["file_search_call.results"] },
    "input[0].content[0].type": {
      input: [{ role: "user", content: [{ type: "input_image", detail: "auto", image_url: "x" }] }],
    },
  };
  for (const [param, request] of Object.entries(cases)) {
    await assert.rejects(create({ input: "x", ...request }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError, String(error));
      assert.equal(error.param, param);
      return true;
    });
  }
});
