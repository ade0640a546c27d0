// Vercel's AI SDK over @ai-sdk/openai-compatible, as OpenCode and many programs use it.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  APICallError, Output, generateObject, generateText, jsonSchema, stepCountIs, streamObject,
  streamText, tool,
} from "ai";
import { z } from "zod";
import {
  kCount, kEndless, kRiver, kRiverAnswer, kSum, kTools, kToolTurns, kUnicode, longNote,
} from "./prompts.mjs";
import { serve } from "./serve.mjs";

const kKey = "a-key-of-the-tests";
const server = serve("--api-key", kKey, "--context", "2048");
server.key = kKey;

// `extra` goes into each request's body beside what the SDK puts there.
function model(extra = {}, apiKey = kKey) {
  const provider = createOpenAICompatible({
    name: "hillstar", baseURL: `${server.url}/v1`, apiKey, includeUsage: true,
    supportsStructuredOutputs: true, transformRequestBody: (body) => ({ ...body, ...extra }),
  });
  return provider("any");
}
const kDefaults = { temperature: 0, maxRetries: 0 };
const text = ({ extra, ...options }) =>
  generateText({ model: model(extra), ...kDefaults, ...options });

async function streamed({ extra, ...options }) {
  const stream = streamText({ model: model(extra), ...kDefaults, ...options, onError() {} });
  const parts = [];
  for await (const part of stream.fullStream) {
    if (part.type === "error") throw part.error;
    parts.push(part);
  }
  const result = {};
  for (const name of ["text", "reasoningText", "finishReason", "usage", "totalUsage", "steps"]) {
    result[name] = await stream[name];
  }
  return { ...result, parts };
}

// The plain result, which the streamed one equals.
async function both(options) {
  const plain = await text(options);
  const stream = await streamed(options);
  for (const name of ["text", "reasoningText", "finishReason"]) {
    assert.equal(stream[name], plain[name], name);
  }
  for (const name of ["inputTokens", "outputTokens", "totalTokens"]) {
    assert.equal(stream.totalUsage[name], plain.totalUsage[name], name);
    assert.ok(plain.totalUsage[name] > 0, name);
  }
  const { text: answer, reasoningText, finishReason, usage } = plain;
  return { answer, reasoningText, finishReason, usage, parts: stream.parts };
}

// The SDK's tools, which give `result` and note what they are called with.
function toolSet(result, calls) {
  return Object.fromEntries(kTools.map(({ name, description, parameters }) => [name, tool({
    description, inputSchema: jsonSchema(parameters),
    execute: async (input) => { calls.push([name, input]); return result; },
  })]));
}

describe("text", () => {
  test("plain and streamed", async () => {
    const { answer, finishReason } = await both({ prompt: kRiver });
    assert.equal(answer, kRiverAnswer);
    assert.equal(finishReason, "stop");
    const { parts } = await both({ prompt: kCount });
    assert.ok(parts.filter(({ type }) => type === "text-delta").length > 1, "it came in pieces");
  });

  test("system message, length, stop text and seed", async () => {
    const short = await both({ system: "Answer briefly.", prompt: kCount, maxOutputTokens: 5 });
    assert.equal(short.finishReason, "length");
    assert.equal(short.usage.outputTokens, 5);
    const stopped = await both({ prompt: kCount, stopSequences: [", 5"] });
    assert.equal(stopped.answer, "1, 2, 3, 4");
    const drawn = async (seed) => (await text({ prompt: kRiver, temperature: 1, seed })).text;
    assert.equal(await drawn(1), await drawn(1));
    assert.ok(new Set([await drawn(1), await drawn(2), await drawn(3)]).size > 1);
  });

  test("reasoning apart from the answer", async () => {
    const { answer, reasoningText, usage, parts } = await both({
      prompt: kSum, providerOptions: { hillstar: { reasoningEffort: "high" } },
    });
    assert.match(answer, /^12 \+ 30 \+ 7 = \d+$/);
    assert.match(reasoningText, /^12 \+ 30 = \d+/);
    assert.ok(usage.outputTokenDetails.reasoningTokens > 5);
    const types = parts.map(({ type }) => type);
    assert.ok(types.indexOf("reasoning-end") < types.indexOf("text-start"));
  });

  test("what was cached is told", async () => {
    await text({ prompt: longNote(), maxOutputTokens: 2 });
    const { usage } = await text({ prompt: longNote(), maxOutputTokens: 2 });
    assert.ok(usage.inputTokenDetails.cacheReadTokens > 0.9 * usage.inputTokens);
  });

  test("a grammar, and characters of many bytes", async () => {
    const grammar = `root ::= ${JSON.stringify(kUnicode)}`;
    const { answer } = await both({ prompt: `Say ${kUnicode}.`, extra: { grammar } });
    assert.equal(answer, kUnicode);
  });
});

describe("tools", () => {
  for (const { ask: prompt, name, input, result, answer } of kToolTurns) {
    test(`${name} over two steps`, async () => {
      for (const run of [text, streamed]) {
        const calls = [];
        const { text: said, steps } = await run({
          prompt, tools: toolSet(result, calls), stopWhen: stepCountIs(3),
        });
        assert.deepEqual(calls, [[name, input]]);
        assert.equal(said, answer);
        assert.deepEqual(steps.map(({ finishReason }) => finishReason), ["tool-calls", "stop"]);
      }
    });
  }

  test("a call's input is streamed", async () => {
    const { ask: prompt, input, result } = kToolTurns[1];
    const { parts } = await streamed({ prompt, tools: toolSet(result, []) });
    const deltas = parts.filter(({ type }) => type === "tool-input-delta");
    assert.deepEqual(JSON.parse(deltas.map(({ delta }) => delta).join("")), input);
  });

  test("forced, one of them, or none", async () => {
    const request = { prompt: "Hello!", tools: toolSet("42", []) };
    const required = await text({ ...request, toolChoice: "required" });
    assert.equal(required.finishReason, "tool-calls");
    const named = await text({ ...request, toolChoice: { type: "tool", toolName: "add" } });
    assert.equal(named.toolCalls[0].toolName, "add");
    assert.equal(typeof named.toolCalls[0].input.a, "number");
    const none = await text({ ...request, prompt: kToolTurns[0].ask, toolChoice: "none" });
    assert.deepEqual(none.toolCalls, []);
  });
});

describe("objects", () => {
  const schema = z.object({
    word: z.string().max(20), pos: z.enum(["noun", "verb"]), letters: z.number().int(),
  });
  const options = {
    ...kDefaults, schema, prompt: "Describe river as JSON.", maxOutputTokens: 400,
  };

  test("generateObject and streamObject", async () => {
    const { object } = await generateObject({ model: model(), ...options });
    schema.parse(object);
    const stream = streamObject({ model: model(), ...options });
    const partial = [];
    for await (const part of stream.partialObjectStream) partial.push(part);
    assert.deepEqual(await stream.object, object);
    assert.deepEqual(partial.at(-1), object);
    assert.ok(partial.length > 2);
  });

  test("generateText with an output", async () => {
    const { output } = await text({
      prompt: "Describe river as JSON.", output: Output.object({ schema }), maxOutputTokens: 400,
    });
    schema.parse(output);
  });

  test("an enum and an array", async () => {
    const choice = await generateObject({
      model: model(), ...kDefaults, output: "enum", enum: ["noun", "verb"], prompt: kRiver,
    });
    assert.ok(["noun", "verb"].includes(choice.object));
    const list = await generateObject({
      model: model(), ...kDefaults, output: "array", schema: z.enum(["a", "b"]), prompt: kRiver,
      maxOutputTokens: 300, frequencyPenalty: 0.5,
    });
    assert.ok(list.object.every((each) => ["a", "b"].includes(each)));
  });
});

describe("ends", () => {
  test("leaving in the middle frees the place", async () => {
    await server.untilFree();
    const abort = new AbortController();
    const stream = streamText({
      model: model({ logit_bias: kEndless }), ...kDefaults, prompt: kCount, maxOutputTokens: 2000,
      abortSignal: abort.signal, onError() {},
    });
    let deltas = 0;
    for await (const part of stream.fullStream) {
      if (part.type === "text-delta" && ++deltas === 3) {
        assert.equal((await server.answers()).running, 1);
        abort.abort();
      }
    }
    assert.ok(deltas >= 3);
    const passed = await server.untilFree();
    assert.ok(passed < 2000, `the place was free after ${passed} ms`);
    assert.equal((await text({ prompt: kRiver })).text, kRiverAnswer);
  });

  test("refusals are the SDK's errors", async () => {
    const thrown = async (options, apiKey) => {
      let error = null;
      await generateText({ model: model({}, apiKey), ...kDefaults, ...options })
        .catch((given) => (error = given));
      assert.ok(APICallError.isInstance(error), String(error));
      return error;
    };
    const unauthorized = await thrown({ prompt: kRiver }, "wrong");
    assert.equal(unauthorized.statusCode, 401);
    assert.match(unauthorized.message, /key/);
    const long = await thrown({ prompt: longNote().repeat(4) });
    assert.equal(long.statusCode, 400);
    assert.equal(long.data.error.code, "context_length_exceeded");
    assert.equal(long.isRetryable, false);
  });
});
