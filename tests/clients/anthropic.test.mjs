// Anthropic's client: messages plain and streamed, thinking, tools, counting, caching, errors.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import Ajv from "ajv";
import {
  kAnthropicTools, kCount, kRiver, kRiverAnswer, kSum, kTools, kToolTurns, kUnicode, longNote, user,
} from "./prompts.mjs";
import { checkEvents } from "./anthropic_stream.mjs";
import { serve } from "./serve.mjs";

const kKey = "a-key-of-the-tests";
const server = serve("--api-key", kKey, "--context", "4096");
server.key = kKey;
const api = (options) =>
  new Anthropic({ baseURL: server.url, apiKey: kKey, maxRetries: 0, ...options });
const kDefaults = { model: "any", max_tokens: 256, temperature: 0 };
const ask = (request) => api().messages.create({ ...kDefaults, ...request });
const ajv = new Ajv({ strict: false });

// Tokens of a prompt, taken over or not.
const promptTokens = (usage) =>
  usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens;

// Ids differ from one answer to the next; how much was cached too.
function comparable({ content, role, type, model, stop_reason, stop_sequence, usage }) {
  const blocks = content.map(({ id, ...block }) => {
    assert.equal(block.type === "tool_use", id !== undefined);
    return block;
  });
  const tokens = { prompt: promptTokens(usage), output: usage.output_tokens };
  return { blocks, role, type, model, stop_reason, stop_sequence, tokens };
}

// The plain message, which the streamed one equals, as the client puts it together.
async function askTwice(request) {
  const plain = await ask(request);
  assert.equal(plain.type, "message");
  assert.equal(plain.role, "assistant");
  assert.match(plain.id, /^msg_/);
  const stream = api().messages.stream({ ...kDefaults, ...request });
  const events = [];
  stream.on("streamEvent", (event) => events.push(structuredClone(event)));
  const final = await stream.finalMessage();
  assert.deepEqual(comparable(final), comparable(plain));
  checkEvents(events, final);
  return plain;
}

const textOf = (message) => {
  assert.deepEqual(message.content.map(({ type }) => type), ["text"]);
  return message.content[0].text;
};

describe("messages", () => {
  test("plain and streamed", async () => {
    const message = await askTwice({ messages: user(kRiver) });
    assert.equal(textOf(message), kRiverAnswer);
    assert.equal(message.stop_reason, "end_turn");
    assert.equal(message.stop_sequence, null);
    assert.equal(message.model, server.model);
  });

  test("a system text or blocks, and content blocks, are the same prompt", async () => {
    const system = "You are a pocket dictionary. Answer briefly.";
    const turns = (block) => [
      { role: "user", content: block("Hello!") },
      { role: "assistant", content: block("Hello! Ask me what a word means.") },
      { role: "user", content: block(kRiver) },
    ];
    const texts = await askTwice({ system, messages: turns((text) => text) });
    const blocks = await askTwice({
      system: [{ type: "text", text: system, cache_control: { type: "ephemeral" } }],
      messages: turns((text) =>
        [{ type: "text", text: text.slice(0, 3) }, { type: "text", text: text.slice(3) }]),
    });
    assert.deepEqual(comparable(texts), comparable(blocks));
    const without = await ask({ messages: turns((text) => text) });
    assert.ok(promptTokens(texts.usage) > promptTokens(without.usage));
  });

  test("max_tokens and stop_sequences", async () => {
    const short = await askTwice({ messages: user(kCount), max_tokens: 7 });
    assert.equal(short.stop_reason, "max_tokens");
    assert.equal(short.usage.output_tokens, 7);
    const whole = textOf(await ask({ messages: user(kCount) }));
    const stop_sequences = ["nothing of it", ", 12, 13", " 16"];
    const stopped = await askTwice({ messages: user(kCount), stop_sequences });
    assert.equal(stopped.stop_reason, "stop_sequence");
    assert.equal(stopped.stop_sequence, ", 12, 13");
    assert.equal(textOf(stopped), whole.slice(0, whole.indexOf(", 12, 13")));
  });

  test("characters of many bytes, there and back", async () => {
    const schema = { enum: [kUnicode] };
    const message = await askTwice({
      messages: user(`Repeat after me: ${kUnicode}`),
      output_config: { format: { type: "json_schema", schema } },
    });
    assert.equal(JSON.parse(textOf(message)), kUnicode);
  });

  test("a JSON schema", async () => {
    const schema = {
      type: "object", additionalProperties: false, required: ["word", "letters"],
      properties: { word: { type: "string", maxLength: 20 }, letters: { type: "integer" } },
    };
    const message = await askTwice({
      messages: user("Describe river as JSON."),
      output_config: { format: { type: "json_schema", schema } },
    });
    assert.ok(ajv.validate(schema, JSON.parse(textOf(message))), textOf(message));
  });

  test("a drawn answer is repeatable by its seed", async () => {
    const answer = async (seed) =>
      textOf(await ask({ messages: user(kRiver), temperature: 1, seed }));
    assert.equal(await answer(3), await answer(3));
    assert.ok(new Set([await answer(3), await answer(4), await answer(5)]).size > 1);
  });
});

describe("thinking", () => {
  test("is a block of its own", async () => {
    for (const thinking of [{ type: "enabled", budget_tokens: 1024 }, { type: "adaptive" }]) {
      const { content } = await askTwice({ messages: user(kSum), max_tokens: 2048, thinking });
      assert.deepEqual(content.map(({ type }) => type), ["thinking", "text"]);
      assert.match(content[0].thinking, /^12 \+ 30 = \d+/);
      assert.equal(typeof content[0].signature, "string");
      assert.match(content[1].text, /^12 \+ 30 \+ 7 = \d+$/);
    }
  });

  test("is off unless it is asked for", async () => {
    for (const request of [{}, { thinking: { type: "disabled" } }]) {
      textOf(await askTwice({ messages: user(kSum), ...request }));
    }
  });

  test("of an earlier turn may come back, and counts while a tool is awaited", async () => {
    const thought = { type: "thinking", thinking: "It is about Paris.", signature: "" };
    const use = { type: "tool_use", id: "toolu_1", name: "get_time", input: { city: "Paris" } };
    const result = { type: "tool_result", tool_use_id: "toolu_1", content: "12:30" };
    const request = {
      max_tokens: 2048, thinking: { type: "enabled", budget_tokens: 1024 }, tools: kAnthropicTools,
    };
    const tokens = async (content, ...more) => promptTokens((await ask({
      ...request,
      messages: [...user("What time is it in Paris?"), { role: "assistant", content },
        { role: "user", content: [result] }, ...more],
    })).usage);
    assert.ok((await tokens([thought, use])) > (await tokens([use])));
    // As Claude Code asks.
    const all = { edits: [{ type: "clear_thinking_20251015", keep: "all" }] };
    const later = [{ role: "assistant", content: "It is 12:30 in Paris." }, ...user("Thanks!")];
    assert.equal(await tokens([thought, use], ...later), await tokens([use], ...later));
    request.context_management = all;
    assert.ok((await tokens([thought, use], ...later)) > (await tokens([use], ...later)));
  });

  test("cut by max_tokens is a block without an answer", async () => {
    const thinking = { type: "enabled", budget_tokens: 1024 };
    const message = await askTwice({ messages: user(kSum), max_tokens: 5, thinking });
    assert.equal(message.stop_reason, "max_tokens");
    assert.deepEqual(message.content.map(({ type }) => type), ["thinking"]);
  });
});

describe("tools", () => {
  // [name, input] of each call, each after its tool's schema.
  const callsOf = (message) => {
    assert.equal(message.stop_reason, "tool_use");
    return message.content.filter(({ type }) => type === "tool_use").map(({ id, name, input }) => {
      assert.match(id, /^toolu_/);
      const { parameters } = kTools.find((tool) => tool.name === name);
      assert.ok(ajv.validate(parameters, input), JSON.stringify(input));
      return [name, input];
    });
  };

  for (const { ask: prompt, name, input, result, answer } of kToolTurns) {
    test(`${name} over two turns`, async () => {
      const messages = user(prompt);
      const first = await askTwice({ messages, tools: kAnthropicTools });
      assert.deepEqual(callsOf(first), [[name, input]]);
      const { id } = first.content.at(-1);
      const second = async (content) => askTwice({
        messages: [...messages, { role: "assistant", content: first.content },
          { role: "user", content: [{ type: "tool_result", tool_use_id: id, content }] }],
        tools: kAnthropicTools,
      });
      const message = await second(result);
      assert.equal(textOf(message), answer);
      assert.equal(message.stop_reason, "end_turn");
      assert.deepEqual(comparable(await second([{ type: "text", text: result }])),
        comparable(message));
    });
  }

  test("run by the client itself", async () => {
    const { ask: prompt, name, input, result, answer } = kToolTurns[1];
    const given = [];
    const message = await api().beta.messages.toolRunner({
      ...kDefaults, messages: user(prompt),
      tools: [{
        ...kAnthropicTools.find((tool) => tool.name === name),
        run: (value) => { given.push(value); return result; }, parse: (value) => value,
      }],
    });
    assert.equal(textOf(message), answer);
    assert.deepEqual(given, [input]);
  });

  test("tool_choice any, one tool, none", async () => {
    const request = { messages: user("Hello!"), tools: kAnthropicTools };
    const any = { type: "any", disable_parallel_tool_use: true };
    assert.equal(callsOf(await askTwice({ ...request, tool_choice: any })).length, 1);
    for (const { name } of kTools) {
      const tool_choice = { type: "tool", name, disable_parallel_tool_use: true };
      const [call, ...others] = callsOf(await askTwice({ ...request, tool_choice }));
      assert.equal(call[0], name);
      assert.deepEqual(others, []);
    }
    const none = await askTwice({
      ...request, messages: user(kToolTurns[0].ask), tool_choice: { type: "none" },
    });
    textOf(none);
  });

  test("a call's input comes in pieces that the client can show", async () => {
    const { ask: prompt, input } = kToolTurns[1];
    const stream = api().messages.stream({
      ...kDefaults, messages: user(prompt), tools: kAnthropicTools,
    });
    const pieces = [];
    let last = null;
    stream.on("inputJson", (piece, snapshot) => { pieces.push(piece); last = snapshot; });
    await stream.finalMessage();
    assert.deepEqual(JSON.parse(pieces.join("")), input);
    assert.deepEqual(last, input);
  });
});

describe("tokens", () => {
  const requests = {
    "of a prompt": { messages: user(kRiver) },
    "of a system message": { system: "Answer briefly.", messages: user(kUnicode) },
    "of tools": { messages: user(kRiver), tools: kAnthropicTools },
    "of a thinking model": {
      messages: user(kSum), thinking: { type: "enabled", budget_tokens: 1024 },
    },
    "of a conversation with calls": {
      tools: kAnthropicTools,
      messages: [
        ...user(kToolTurns[0].ask),
        { role: "assistant", content: [
          { type: "text", text: "Let me see." },
          { type: "tool_use", id: "toolu_1", name: "get_weather", input: { city: "Paris" } }] },
        { role: "user", content: [
          { type: "tool_result", tool_use_id: "toolu_1", content: kToolTurns[0].result },
          { type: "text", text: "And what is a river?" }] },
      ],
    },
  };
  for (const [name, request] of Object.entries(requests)) {
    test(`${name} are counted as they are used`, async () => {
      const { input_tokens } = await api().messages.countTokens({ model: "any", ...request });
      const { usage } = await ask({ ...request, max_tokens: 1 });
      assert.equal(promptTokens(usage), input_tokens);
    });
  }

  test("of a long prompt are taken over the second time", async () => {
    const request = { messages: user(longNote()), max_tokens: 2 };
    await ask(request);
    const { usage } = await askTwice(request);
    const { input_tokens } = await api().messages.countTokens({ model: "any", ...request,
      max_tokens: undefined });
    assert.equal(promptTokens(usage), input_tokens);
    assert.ok(usage.cache_read_input_tokens > 0.9 * input_tokens);
    assert.ok(usage.input_tokens > 0);
  });
});

describe("the server", () => {
  test("frees the place of a message that is left in the middle", async () => {
    await server.untilFree();
    const stream = api().messages.stream({
      ...kDefaults, messages: user(kCount), max_tokens: 4000, logit_bias: undefined,
      temperature: 2, min_p: 0, repetition_penalty: 1.3, seed: 1,
    });
    stream.on("text", () => stream.abort());
    await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
    const passed = await server.untilFree();
    assert.ok(passed < 2000, `the place was free after ${passed} ms`);
    assert.equal(textOf(await ask({ messages: user(kRiver) })), kRiverAnswer);
  });

  test("takes the key in either header", async () => {
    const bearer = api({ apiKey: null, authToken: kKey });
    const message = await bearer.messages.create({ ...kDefaults, messages: user(kRiver) });
    assert.equal(textOf(message), kRiverAnswer);
  });

  test("lists its model and describes it", async () => {
    const models = [];
    for await (const model of api().models.list()) models.push(model);
    assert.equal(models.length, 1);
    assert.equal(models[0].id, server.model);
    assert.equal(models[0].type, "model");
    assert.equal(models[0].display_name, server.model);
    assert.ok(Math.abs(Date.parse(models[0].created_at) - Date.now()) < 3600e3);
    assert.deepEqual(await api().models.retrieve(server.model), models[0]);
  });
});

describe("refusals", () => {
  async function thrown(promise, type, name) {
    let error = null;
    await promise.catch((given) => (error = given));
    assert.ok(error instanceof type, `${error?.constructor.name}: ${error?.message}`);
    assert.equal(error.error.type, "error");
    assert.equal(error.error.error.type, name);
    assert.ok(error.requestID, "the request's id is told");
    return error;
  }

  test("401 with another key", async () => {
    const refused = api({ apiKey: "wrong" }).messages.create({
      ...kDefaults, messages: user(kRiver),
    });
    await thrown(refused, Anthropic.AuthenticationError, "authentication_error");
  });

  const cases = {
    "messages": { messages: [] },
    "messages[0].content": { messages: user([]) },
    "messages[0].content[0].type": { messages: user([{ type: "image", source: {} }]) },
    "max_tokens": { max_tokens: 0 },
    "temperature": { temperature: "warm" },
    "tools[0].type": { tools: [{ type: "web_search_20250305", name: "web_search" }] },
    "tool_choice": { tool_choice: { type: "any" } },
    "stop_sequences[0]": { stop_sequences: [""] },
    "no_such_member": { no_such_member: 1 },
  };
  for (const [param, request] of Object.entries(cases)) {
    test(`400 names ${param}`, async () => {
      const error = await thrown(ask({ messages: user(kRiver), ...request }),
        Anthropic.BadRequestError, "invalid_request_error");
      assert.ok(error.error.error.message.includes(param), error.error.error.message);
    });
  }

  test("a prompt that is too long has both numbers", async () => {
    const text = `${longNote()} `.repeat(8);
    const error = await thrown(ask({ messages: user(text) }), Anthropic.BadRequestError,
      "invalid_request_error");
    const numbers = error.error.error.message.match(/\d+/g).map(Number);
    assert.ok(numbers.includes(4096) && Math.max(...numbers) > 4096, error.error.error.message);
  });

  test("404 for a route that is not there", async () => {
    await thrown(api().messages.batches.list(), Anthropic.NotFoundError, "not_found_error");
  });
});
