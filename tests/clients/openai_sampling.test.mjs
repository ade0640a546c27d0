// OpenAI's client: what chooses the tokens, and what is told about them.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import OpenAI from "openai";
import { collect, join } from "./openai_stream.mjs";
import { kCount, kRiver, kRiverAnswer, kSum, tokenId, user } from "./prompts.mjs";
import { serve } from "./serve.mjs";

const server = serve();
const api = () => new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
const ask = (request) =>
  api().chat.completions.create({ model: "any", temperature: 0, ...request });
const text = async (request) => (await ask(request)).choices[0].message.content;

describe("drawing", () => {
  test("the same seed gives the same answer, another one another", async () => {
    const request = { messages: user(kRiver), temperature: 1 };
    const answers = new Set();
    for (const seed of [1, 2, 3, 4]) {
      const first = await text({ ...request, seed });
      assert.equal(await text({ ...request, seed }), first);
      answers.add(first);
    }
    assert.ok(answers.size >= 3, `${answers.size} different answers of 4 seeds`);
  });

  test("without a seed answers differ", async () => {
    const answers = new Set();
    const request = { messages: user(kRiver), temperature: 1.5 };
    for (let i = 0; i < 4; ++i) answers.add(await text(request));
    assert.ok(answers.size >= 2);
  });

  test("what leaves only the likeliest token is as greedy as temperature 0", async () => {
    for (const narrow of [{ top_k: 1 }, { top_p: 0 }, { top_p: 1e-9 }, { min_p: 1 },
      { temperature: 1e-5 }]) {
      const answer = await text({ messages: user(kRiver), temperature: 1, seed: 5, ...narrow });
      assert.equal(answer, kRiverAnswer, JSON.stringify(narrow));
    }
  });

  test("penalties change the greedy answer", async () => {
    const verse = async (penalty) => (await api().completions.create({
      model: "any", prompt: "In the beginning", max_tokens: 60, temperature: 0, ...penalty,
    })).choices[0].text;
    const answers = new Set();
    for (const penalty of [{}, { frequency_penalty: 1.5 }, { presence_penalty: 1.5 },
      { repetition_penalty: 1.5 }, { frequency_penalty: -2 }]) {
      answers.add(await verse(penalty));
    }
    assert.equal(answers.size, 5, [...answers].join("\n"));
    assert.equal(await verse({ frequency_penalty: 0, repetition_penalty: 1 }), await verse({}));
    const plain = await text({ messages: user(kCount) });
    assert.notEqual(await text({ messages: user(kCount), frequency_penalty: 1.5 }), plain);
  });

  test("logit_bias forbids a token and forces one", async () => {
    const forbidden = await text({ messages: user(kRiver), logit_bias: { [tokenId("A")]: -100 } });
    assert.ok(!forbidden.startsWith("A"), forbidden);
    const request = { messages: user(kRiver), logit_bias: { [tokenId("Hello")]: 100 } };
    assert.equal(await text({ ...request, max_tokens: 3 }), "HelloHelloHello");
  });
});

describe("logprobs", () => {
  function check(content, { top }) {
    for (const { token, logprob, bytes, top_logprobs } of content) {
      assert.ok(logprob <= 0 && logprob > -100, `${token} ${logprob}`);
      assert.equal(Buffer.from(bytes).toString(), token);
      assert.equal(top_logprobs.length, top);
      let sum = 0;
      for (const [i, each] of top_logprobs.entries()) {
        assert.ok(each.logprob <= (top_logprobs[i - 1]?.logprob ?? 0), "the likeliest first");
        sum += Math.exp(each.logprob);
      }
      assert.ok(sum <= 1 + 1e-6, `probabilities sum up to ${sum}`);
      const listed = top_logprobs.find((each) => each.token === token);
      if (listed) assert.deepEqual(listed, { token, logprob, bytes });
    }
  }

  test("of each token of a greedy answer, which is the likeliest", async () => {
    const request = { messages: user(kRiver), logprobs: true, top_logprobs: 5 };
    const { choices: [choice], usage } = await ask(request);
    const { content, refusal } = choice.logprobs;
    assert.equal(refusal, null);
    check(content, { top: 5 });
    for (const { token, top_logprobs } of content) assert.equal(top_logprobs[0].token, token);
    const shown = content.map(({ token }) => token).join("");
    assert.ok(shown.startsWith(choice.message.content), shown);
    assert.ok(content.length === usage.completion_tokens
      || content.length === usage.completion_tokens - 1, "the end token may be left out");
    const chunks = await collect(await ask({ ...request, stream: true }));
    assert.deepEqual(join(chunks).choices[0].logprobs, choice.logprobs);
  });

  test("without top_logprobs only those of the tokens themselves", async () => {
    const request = { messages: user(kRiver), temperature: 1, seed: 3, logprobs: true };
    const { choices } = await ask(request);
    check(choices[0].logprobs.content, { top: 0 });
  });

  test("of drawn tokens, by the logits before anything changed them", async () => {
    const request = { messages: user(kRiver), logprobs: true, top_logprobs: 20, max_tokens: 8 };
    const [cold, hot] = [await ask(request), await ask({ ...request, temperature: 1.5, seed: 1 })];
    check(hot.choices[0].logprobs.content, { top: 20 });
    assert.deepEqual(hot.choices[0].logprobs.content[0].top_logprobs,
      cold.choices[0].logprobs.content[0].top_logprobs);
  });

  test("of the reasoning's tokens too, and of several answers", async () => {
    const { choices, usage } = await ask({
      messages: user(kSum), reasoning_effort: "high", logprobs: true, n: 2, temperature: 1, seed: 2,
    });
    let tokens = 0;
    for (const { logprobs, message } of choices) {
      check(logprobs.content, { top: 0 });
      const shown = logprobs.content.map(({ token }) => token).join("");
      assert.ok(shown.startsWith(message.reasoning_content), shown);
      tokens += logprobs.content.length;
    }
    assert.ok(Math.abs(tokens - usage.completion_tokens) <= 2);
  });

  test("none where none are asked for", async () => {
    for (const request of [{}, { logprobs: false }]) {
      const { choices } = await ask({ messages: user(kRiver), ...request });
      assert.equal(choices[0].logprobs, null);
    }
  });
});

describe("the older completions", () => {
  const complete = (request) =>
    api().completions.create({ model: "any", temperature: 0, max_tokens: 12, ...request });

  test("plain and streamed, of several prompts", async () => {
    const request = { prompt: ["In the beginning", "And God said"] };
    const { choices, usage, object, id } = await complete(request);
    assert.equal(object, "text_completion");
    assert.match(id, /^cmpl-/);
    assert.equal(usage.completion_tokens, 24);
    assert.deepEqual(choices.map(({ index }) => index), [0, 1]);
    const texts = ["", ""], finishes = [null, null];
    const stream = await complete({
      ...request, stream: true, stream_options: { include_usage: true },
    });
    const chunks = await collect(stream);
    for (const chunk of chunks) {
      assert.equal(chunk.object, "text_completion");
      for (const part of chunk.choices) {
        texts[part.index] += part.text;
        assert.equal(finishes[part.index], null);
        finishes[part.index] = part.finish_reason;
      }
    }
    assert.deepEqual(texts, choices.map((choice) => choice.text));
    assert.deepEqual(finishes, ["length", "length"]);
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.equal(chunks.at(-1).usage.total_tokens, usage.total_tokens);
  });

  test("n, seed and echo", async () => {
    const request = { prompt: "In the beginning", temperature: 1, seed: 9 };
    const { choices } = await complete({ ...request, n: 2, echo: true });
    assert.notEqual(choices[0].text, choices[1].text);
    for (const { index, text: whole } of choices) {
      const single = await complete({ ...request, seed: 9 + index });
      assert.equal(whole, `In the beginning${single.choices[0].text}`);
    }
  });

  test("logprobs in their older shape", async () => {
    const { choices } = await complete({ prompt: "In the beginning", logprobs: 3 });
    const { tokens, token_logprobs, top_logprobs, text_offset } = choices[0].logprobs;
    assert.equal(tokens.length, 12);
    assert.equal(token_logprobs.length, 12);
    assert.equal(tokens.join(""), choices[0].text);
    for (const [i, token] of tokens.entries()) {
      assert.equal(choices[0].text.slice(text_offset[i]).startsWith(token), true);
      assert.equal(top_logprobs[i][token], token_logprobs[i]);
      assert.ok(Object.keys(top_logprobs[i]).length <= 3);
    }
  });

  test("stop texts, a bias and token ids", async () => {
    const whole = (await complete({ prompt: "In the beginning" })).choices[0].text;
    const stop = whole.slice(8, 12);
    const { choices } = await complete({ prompt: "In the beginning", stop });
    assert.equal(choices[0].text, whole.slice(0, whole.indexOf(stop)));
    assert.equal(choices[0].finish_reason, "stop");
    const ids = [tokenId("Hello"), tokenId("A")];
    const forced = await complete({ prompt: ids, logit_bias: { [ids[0]]: 100 }, max_tokens: 2 });
    assert.equal(forced.choices[0].text, "HelloHello");
    assert.equal(forced.usage.prompt_tokens, 2);
  });
});
