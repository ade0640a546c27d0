// OpenAI's client: tools, and answers of a given form.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import Ajv from "ajv";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { collect, join, withoutIds } from "./openai_stream.mjs";
import { kOpenAiTools, kRiver, kSum, kTools, kToolTurns, kUnicode, user } from "./prompts.mjs";
import { serve } from "./serve.mjs";

const server = serve();
const api = () => new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
const ask = (request) =>
  api().chat.completions.create({ model: "any", temperature: 0, ...request });
const ajv = new Ajv({ strict: false });

const parametersOf = (name) => kTools.find((tool) => tool.name === name).parameters;

// The calls' arguments follow their tools' schemas; gives the calls as [name, arguments].
function checkCalls(choice) {
  assert.equal(choice.finish_reason, "tool_calls");
  return choice.message.tool_calls.map(({ id, type, function: { name, arguments: given } }) => {
    assert.match(id, /^call_/);
    assert.equal(type, "function");
    const input = JSON.parse(given);
    assert.ok(ajv.validate(parametersOf(name), input), `${name}: ${given}`);
    return [name, input];
  });
}

// The plain answer, which the streamed one equals.
async function askTwice(request) {
  const plain = await ask(request);
  const chunks = await collect(await ask({ ...request, stream: true }));
  assert.deepEqual(withoutIds(join(chunks).choices), withoutIds(plain.choices));
  return plain;
}

describe("tools", () => {
  for (const { ask: prompt, name, input, result, answer } of kToolTurns) {
    test(`${name} over two turns`, async () => {
      const messages = user(prompt);
      const first = (await askTwice({ messages, tools: kOpenAiTools })).choices[0];
      assert.deepEqual(checkCalls(first), [[name, input]]);
      assert.equal(first.message.content, null);
      const second = await askTwice({
        messages: [...messages, first.message,
          { role: "tool", tool_call_id: first.message.tool_calls[0].id, content: result }],
        tools: kOpenAiTools,
      });
      assert.equal(second.choices[0].message.content, answer);
      assert.equal(second.choices[0].finish_reason, "stop");
      assert.equal(second.choices[0].message.tool_calls, undefined);
    });
  }

  test("run by the client itself", async () => {
    const { ask: prompt, name, input, result, answer } = kToolTurns[0];
    const given = [];
    const runner = api().chat.completions.runTools({
      model: "any", temperature: 0, stream: true, messages: user(prompt),
      tools: [{
        type: "function",
        function: {
          ...kTools.find((tool) => tool.name === name), parse: JSON.parse,
          function: (value) => { given.push(value); return result; },
        },
      }],
    });
    assert.equal(await runner.finalContent(), answer);
    assert.deepEqual(given, [input]);
  });

  test("offered but not needed", async () => {
    const { choices } = await askTwice({ messages: user("Hello!"), tools: kOpenAiTools });
    assert.equal(choices[0].message.content, "Hello! Ask me what a word means.");
    assert.equal(choices[0].finish_reason, "stop");
  });

  test("tool_choice required makes it call", async () => {
    const request = { messages: user("Hello!"), tools: kOpenAiTools, tool_choice: "required" };
    assert.ok(checkCalls((await askTwice(request)).choices[0]).length >= 1);
  });

  for (const { name } of kTools) {
    test(`tool_choice ${name} calls it, whatever is asked`, async () => {
      const { choices } = await askTwice({
        messages: user(kRiver), tools: kOpenAiTools, parallel_tool_calls: false,
        tool_choice: { type: "function", function: { name } },
      });
      const calls = checkCalls(choices[0]);
      assert.equal(calls.length, 1);
      assert.equal(calls[0][0], name);
    });
  }

  test("tool_choice none leaves them out", async () => {
    const request = { messages: user(kToolTurns[0].ask), tools: kOpenAiTools, tool_choice: "none" };
    const { choices } = await askTwice(request);
    assert.equal(choices[0].message.tool_calls, undefined);
    assert.equal(choices[0].finish_reason, "stop");
  });

  test("required behind reasoning", async () => {
    const { choices } = await askTwice({
      messages: user(kSum), tools: kOpenAiTools, tool_choice: "required", reasoning_effort: "high",
      parallel_tool_calls: false, max_tokens: 400,
    });
    assert.ok(choices[0].message.reasoning_content.length > 0);
    assert.equal(checkCalls(choices[0]).length, 1);
  });

  test("arguments of every type, by a strict zod schema", async () => {
    const parameters = z.object({
      title: z.string().max(12), level: z.enum(["low", "high"]), count: z.number().int(),
      ok: z.boolean(), tags: z.array(z.enum(["a", "b"])).max(2),
      place: z.object({ x: z.number().int() }), nothing: z.null(),
    });
    const completion = await api().chat.completions.parse({
      model: "any", temperature: 0, messages: user(kRiver), max_tokens: 400,
      tools: [zodFunction({ name: "file", parameters })], tool_choice: "required",
      parallel_tool_calls: false,
    });
    const [call] = completion.choices[0].message.tool_calls;
    assert.equal(call.function.name, "file");
    parameters.parse(call.function.parsed_arguments);
  });

  test("a tool without arguments", async () => {
    const tools = [{ type: "function", function: { name: "ping", description: "Answers." } }];
    const { choices } = await askTwice({
      messages: user("Hello!"), tools, tool_choice: "required", parallel_tool_calls: false,
    });
    assert.equal(choices[0].message.tool_calls[0].function.name, "ping");
    assert.deepEqual(JSON.parse(choices[0].message.tool_calls[0].function.arguments), {});
  });

  test("history with arguments that are empty or no object is answered or refused", async () => {
    for (const given of ["{}", "", "null"]) {
      const call = { id: "call_1", type: "function", function: { name: "ping", arguments: given } };
      const { choices } = await ask({
        messages: [...user("Hello!"), { role: "assistant", content: null, tool_calls: [call] },
          { role: "tool", tool_call_id: "call_1", content: "pong" }],
        max_tokens: 4,
      });
      assert.ok(["stop", "length"].includes(choices[0].finish_reason), given);
    }
    for (const given of ["{", "[]", "1"]) {
      const call = { id: "call_1", type: "function", function: { name: "ping", arguments: given } };
      const messages = [...user("Hello!"),
        { role: "assistant", content: null, tool_calls: [call] },
        { role: "tool", tool_call_id: "call_1", content: "pong" }];
      await ask({ messages, max_tokens: 4 }).catch((error) => assert.equal(error.status, 400));
    }
  });
});

describe("answers of a given form", () => {
  const entry = z.object({
    word: z.string().max(20), pos: z.enum(["noun", "verb"]), length: z.number().int(),
    senses: z.array(z.object({ gloss: z.string().max(30) })).min(1).max(2),
    rare: z.boolean(), plural: z.string().max(20).nullable(),
  });

  test("a zod schema, parsed by the client", async () => {
    const request = {
      model: "any", temperature: 0, messages: user("Describe river as JSON."),
      response_format: zodResponseFormat(entry, "entry"), max_tokens: 600,
    };
    const { choices } = await api().chat.completions.parse(request);
    entry.parse(choices[0].message.parsed);
    assert.equal(choices[0].finish_reason, "stop");
    const stream = api().chat.completions.stream(request);
    const streamed = await stream.finalChatCompletion();
    assert.deepEqual(streamed.choices[0].message.parsed, choices[0].message.parsed);
  });

  test("a JSON schema, at any temperature", async () => {
    const { schema } = zodResponseFormat(entry, "entry").json_schema;
    const validate = ajv.compile(schema);
    for (const seed of [1, 2, 3, 4, 5]) {
      const { choices } = await ask({
        messages: user("Describe river as JSON."), temperature: 1.5, seed, max_tokens: 600,
        response_format: { type: "json_schema", json_schema: { name: "entry", schema } },
      });
      const { content } = choices[0].message;
      assert.ok(validate(JSON.parse(content)), `${content}: ${ajv.errorsText(validate.errors)}`);
    }
  });

  test("a JSON schema behind reasoning", async () => {
    const schema = {
      type: "object", properties: { sum: { type: "integer" } }, required: ["sum"],
      additionalProperties: false,
    };
    const { choices } = await askTwice({
      messages: user(kSum), reasoning_effort: "high", max_tokens: 400,
      response_format: { type: "json_schema", json_schema: { name: "sum", schema, strict: true } },
    });
    assert.ok(choices[0].message.reasoning_content.startsWith("12 + 30"));
    assert.ok(ajv.validate(schema, JSON.parse(choices[0].message.content)));
  });

  test("a JSON object", async () => {
    for (const prompt of ["Describe river as JSON.", kRiver]) {
      const { choices } = await askTwice({
        messages: user(prompt), response_format: { type: "json_object" }, max_tokens: 2000,
        frequency_penalty: 0.5,
      });
      assert.equal(choices[0].finish_reason, "stop");
      const value = JSON.parse(choices[0].message.content);
      assert.ok(value !== null && typeof value === "object" && !Array.isArray(value));
    }
  });

  test("a grammar in GBNF", async () => {
    const grammar = 'root ::= ("yes" | "no") ", " [0-9]{3} " " color\ncolor ::= "red" | "blue"\n';
    for (const seed of [1, 2, 3]) {
      const { choices } = await ask({ messages: user(kRiver), temperature: 2, seed, grammar });
      assert.match(choices[0].message.content, /^(yes|no), [0-9]{3} (red|blue)$/);
      assert.equal(choices[0].finish_reason, "stop");
    }
  });

  test("a text of many-byte characters by schema and by grammar", async () => {
    const schema = { enum: [kUnicode] };
    const byGrammar = await askTwice({
      messages: user(kRiver), grammar: `root ::= ${JSON.stringify(kUnicode)}`,
    });
    assert.equal(byGrammar.choices[0].message.content, kUnicode);
    const bySchema = await askTwice({
      messages: user(kRiver), max_tokens: 200,
      response_format: { type: "json_schema", json_schema: { name: "text", schema } },
    });
    assert.equal(JSON.parse(bySchema.choices[0].message.content), kUnicode);
  });

  test("a grammar or schema that cannot be is refused by name", async () => {
    const refused = async (request, param) => {
      await assert.rejects(ask({ messages: user(kRiver), ...request }), (error) => {
        assert.ok(error instanceof OpenAI.BadRequestError);
        assert.equal(error.param, param);
        return true;
      });
    };
    await refused({ grammar: "root ::= missing" }, "grammar");
    await refused({ grammar: "root ::= (" }, "grammar");
    const format = (schema) => ({
      response_format: { type: "json_schema", json_schema: { name: "x", schema } },
    });
    const path = "response_format.json_schema.schema";
    await refused(format({ type: "nonsense" }), path);
    await refused(format({ $ref: "#/nowhere" }), path);
    await refused({ response_format: { type: "yaml" } }, "response_format.type");
  });
});
