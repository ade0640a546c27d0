// OpenAI's client: what is refused arrives as the client's own errors, and names what was wrong.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import OpenAI from "openai";
import { kCount, kEndless, kRiver, longNote, user } from "./prompts.mjs";
import { serve } from "./serve.mjs";

const kKey = "a-key-of-the-tests";
const kContext = 2048;
const server = serve("--context", String(kContext), "--max-sequences", "1", "--max-queue", "1",
  "--api-key", kKey);
const api = (options) =>
  new OpenAI({ baseURL: `${server.url}/v1`, apiKey: kKey, maxRetries: 0, ...options });
const ask = (request, options) => api(options).chat.completions.create({
  model: "any", messages: user(kRiver), temperature: 0, ...request,
});
server.key = kKey;

// What is thrown, once it is known to be of the type.
async function thrown(promise, type) {
  let error = null;
  await promise.catch((given) => (error = given));
  assert.ok(error instanceof type, `${error?.constructor.name}: ${error?.message}`);
  assert.ok(error.requestID, "X-Request-Id");
  assert.equal(typeof error.error.message, "string");
  assert.equal(typeof error.error.type, "string");
  assert.ok("param" in error.error && "code" in error.error, "null, not left out");
  return error;
}
const isServing = async () => {
  const { choices } = await ask({ max_tokens: 3 });
  assert.equal(choices[0].finish_reason, "length");
};

describe("400", () => {
  const text = "x".repeat(2000);
  const cases = {
    "messages": { messages: [] },
    "messages[0].content": { messages: [{ role: "user", content: "" }] },
    "messages[0].role": { messages: [{ role: "robot", content: "Hello" }] },
    "messages[1]": { messages: [...user("Hello"), { role: "assistant", content: "Hi" }] },
    "messages[0].content[0].type": {
      messages: user([{ type: "image_url", image_url: { url: "file:///etc/passwd" } }]),
    },
    "temperature": { temperature: -1 },
    "top_p": { top_p: 1.5 },
    "top_k": { top_k: 0.4 },
    "presence_penalty": { presence_penalty: 3 },
    "n": { n: 0 },
    "max_tokens": { max_tokens: 0 },
    "max_completion_tokens": { max_completion_tokens: -5 },
    "seed": { seed: "one" },
    "stop[1]": { stop: ["a", ""] },
    "stop[0]": { stop: [text] },
    "logit_bias": { logit_bias: { nonsense: 1 } },
    "top_logprobs": { logprobs: true, top_logprobs: 21 },
    "stream_options": { stream_options: { include_usage: true } },
    "tools[0].function.name": {
      tools: [{ type: "function", function: { name: "a b", parameters: {} } }],
    },
    "tool_choice": { tool_choice: "required" },
    "reasoning_effort": { reasoning_effort: "extreme" },
    "functions": { functions: [{ name: "f" }] },
    "no_such_member": { no_such_member: 1 },
  };
  for (const [param, request] of Object.entries(cases)) {
    test(`names ${param}`, async () => {
      const error = await thrown(ask(request), OpenAI.BadRequestError);
      assert.equal(error.status, 400);
      assert.equal(error.param, param, error.message);
      assert.equal(error.type, "invalid_request_error");
      assert.ok(error.message.includes(param.replace(/^.*\./, "").replace(/\[\d+\]$/, "")),
        error.message);
    });
  }

  test("context_length_exceeded has both numbers", async () => {
    const error = await thrown(ask({ messages: user(longNote().repeat(3)) }), OpenAI.BadRequestError);
    assert.equal(error.code, "context_length_exceeded");
    assert.equal(error.param, "messages");
    const numbers = error.message.match(/\d+/g).map(Number);
    assert.ok(numbers.includes(kContext), error.message);
    assert.ok(Math.max(...numbers) > kContext, error.message);
  });

  test("the context's last token is answered, one more is refused", async () => {
    const tokens = async (prompt) => (await complete(prompt)).usage.prompt_tokens;
    const complete = (prompt) =>
      api().completions.create({ model: "any", prompt, max_tokens: 100, temperature: 0 });
    const ids = (count) => Array(count).fill(300);
    assert.equal(await tokens(ids(kContext - 2)), kContext - 2);
    const { choices, usage } = await complete(ids(kContext - 1));
    assert.equal(choices[0].finish_reason, "length");
    assert.equal(usage.completion_tokens, 1);
    for (const count of [kContext, kContext + 1]) {
      const error = await thrown(complete(ids(count)), OpenAI.BadRequestError);
      assert.equal(error.code, "context_length_exceeded");
      assert.equal(error.param, "prompt");
      assert.ok(error.message.includes(String(count)), error.message);
    }
  });

  test("empty prompts of the older interface", async () => {
    for (const [prompt, param] of [["", "prompt"], [[""], "prompt[0]"], [[], "prompt"],
      [["a", ""], "prompt[1]"]]) {
      const refused = api().completions.create({ model: "any", prompt });
      assert.equal((await thrown(refused, OpenAI.BadRequestError)).param, param);
    }
    await isServing();
  });

  test("a body that is no JSON", async () => {
    for (const body of ["{", "[]", "null", '{"messages": [', "\u0000"]) {
      const reply = await fetch(`${server.url}/v1/chat/completions`, {
        method: "POST", body,
        headers: { "content-type": "application/json", authorization: `Bearer ${kKey}` },
      });
      assert.equal(reply.status, 400, body);
      const { error } = await reply.json();
      assert.equal(error.type, "invalid_request_error");
    }
  });
});

describe("other refusals", () => {
  test("401 without the key or with another", async () => {
    for (const apiKey of ["wrong", `${kKey}x`, kKey.slice(1)]) {
      const error = await thrown(ask({}, { apiKey }), OpenAI.AuthenticationError);
      assert.equal(error.status, 401);
      await thrown(api({ apiKey }).models.list(), OpenAI.AuthenticationError);
    }
  });

  test("404 for a route that is not there", async () => {
    const error = await thrown(api().embeddings.create({ model: "any", input: "text" }),
      OpenAI.NotFoundError);
    assert.equal(error.status, 404);
    await thrown(api().models.retrieve("another-model"), OpenAI.NotFoundError);
  });

  test("429 when the queue is full, and an answer once it is not", async () => {
    await server.untilFree();
    const abort = new AbortController();
    const endless = { stream: true, logit_bias: kEndless, max_tokens: 1900, messages: user(kCount) };
    const running = await api().chat.completions.create(
      { model: "any", ...endless }, { signal: abort.signal });
    const waiting = await api().chat.completions.create(
      { model: "any", ...endless }, { signal: abort.signal });
    const error = await thrown(ask({}), OpenAI.RateLimitError);
    assert.equal(error.status, 429);
    assert.ok(Number(error.headers.get("retry-after")) > 0);
    assert.ok(error.message.includes("--max-queue"), error.message);
    abort.abort();
    for (const stream of [running, waiting]) for await (const chunk of stream) void chunk;
    await server.untilFree();
    await isServing();
  });

  test("429 is passed over by a client that tries again", async () => {
    await server.untilFree();
    const long = { logit_bias: kEndless, max_tokens: 150, messages: user(kCount) };
    const all = await Promise.all([1, 2, 3].map(() => ask(long, { maxRetries: 20 })));
    for (const { usage } of all) assert.equal(usage.completion_tokens, 150);
  });

  test("a client's timeout ends the request", async () => {
    await server.untilFree();
    const long = { logit_bias: kEndless, messages: user(kCount), max_tokens: 1900 };
    const requests = [1, 2].map(() => ask(long, { timeout: 20 }));
    for (const request of requests) {
      await assert.rejects(request, OpenAI.APIConnectionTimeoutError);
    }
    const passed = await server.untilFree();
    assert.ok(passed < 2000, `the places were free after ${passed} ms`);
    await isServing();
  });
});
