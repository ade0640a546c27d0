// OpenAI's client: answers plain and streamed, reasoning, stops, lengths, several answers, caching,
// and leaving in the middle.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import OpenAI from "openai";
import { collect, join, withoutIds } from "./openai_stream.mjs";
import {
  kCount, kEndless, kRiver, kRiverAnswer, kSum, kUnicode, longNote, user,
} from "./prompts.mjs";
import { serve } from "./serve.mjs";

const server = serve();
const api = () => new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
const ask = (request) =>
  api().chat.completions.create({ model: "any", temperature: 0, ...request });

// The answer in both ways, which have to agree, as the plain one.
async function askTwice(request) {
  const plain = await ask(request);
  const stream = await ask({ ...request, stream: true, stream_options: { include_usage: true } });
  const joined = join(await collect(stream), { withUsage: true });
  assert.deepEqual(withoutIds(joined.choices), withoutIds(plain.choices));
  const { prompt_tokens, completion_tokens, total_tokens } = plain.usage;
  assert.equal(joined.usage.prompt_tokens, prompt_tokens);
  assert.equal(joined.usage.completion_tokens, completion_tokens);
  assert.equal(joined.usage.total_tokens, total_tokens);
  assert.equal(total_tokens, prompt_tokens + completion_tokens);
  assert.deepEqual(joined.usage.completion_tokens_details, plain.usage.completion_tokens_details);
  return plain;
}

describe("plain and streamed", () => {
  test("the same answer, usage and finish reason", async () => {
    const { choices, usage, model } = await askTwice({ messages: user(kRiver) });
    assert.equal(model, server.model);
    assert.equal(choices.length, 1);
    assert.equal(choices[0].message.content, kRiverAnswer);
    assert.equal(choices[0].finish_reason, "stop");
    assert.ok(usage.completion_tokens > 5 && usage.completion_tokens < 40);
  });

  test("a stream without usage", async () => {
    const chunks = await collect(await ask({ messages: user(kRiver), stream: true }));
    assert.equal(join(chunks).choices[0].message.content, kRiverAnswer);
  });

  test("the client's own accumulation", async () => {
    const stream = api().chat.completions.stream({
      model: "any", temperature: 0, messages: user(kCount), stream_options: { include_usage: true },
    });
    const seen = [];
    stream.on("content", (delta) => seen.push(delta));
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].message.content, seen.join(""));
    assert.match(seen.join(""), /^1, 2, 3, 4, 5, /);
    assert.ok(seen.length > 1, "it came in pieces");
    assert.equal((await stream.totalUsage()).total_tokens, final.usage.total_tokens);
  });

  test("a conversation with a system message and parts", async () => {
    const { choices } = await askTwice({
      messages: [
        { role: "system", content: "You are a pocket dictionary. Answer briefly." },
        { role: "user", content: [{ type: "text", text: "Hel" }, { type: "text", text: "lo!" }] },
        { role: "assistant", content: "Hello! Ask me what a word means." },
        ...user(kRiver),
      ],
    });
    assert.match(choices[0].message.content, /^A river is/);
  });

  test("developer is system", async () => {
    const answers = [];
    for (const role of ["system", "developer"]) {
      const messages = [{ role, content: "Answer briefly." }, ...user(kRiver)];
      answers.push(await ask({ messages }));
    }
    assert.equal(answers[0].usage.prompt_tokens, answers[1].usage.prompt_tokens);
    assert.deepEqual(answers[0].choices, answers[1].choices);
  });

  test("characters of many bytes, there and back", async () => {
    const request = { messages: user(`Repeat after me: ${kUnicode}`) };
    const grammar = `root ::= ${JSON.stringify(kUnicode)}`;
    const { choices } = await askTwice({ ...request, grammar });
    assert.equal(choices[0].message.content, kUnicode);
    const echo = await api().completions.create({
      model: "any", prompt: kUnicode, echo: true, max_tokens: 1, temperature: 0,
    });
    assert.ok(echo.choices[0].text.startsWith(kUnicode), echo.choices[0].text);
  });
});

describe("reasoning", () => {
  const ways = {
    chat_template_kwargs: { chat_template_kwargs: { enable_thinking: true } },
    reasoning_effort: { reasoning_effort: "high" },
    thinking: { thinking: { type: "enabled" } },
  };
  for (const [name, way] of Object.entries(ways)) {
    test(`on by ${name}, apart from the answer`, async () => {
      const { choices, usage } = await askTwice({ messages: user(kSum), ...way });
      const { content, reasoning_content } = choices[0].message;
      assert.match(reasoning_content, /^12 \+ 30 = \d+\. \d+ \+ 7 = \d+\.$/);
      assert.match(content, /^12 \+ 30 \+ 7 = \d+$/);
      const { reasoning_tokens } = usage.completion_tokens_details;
      assert.ok(reasoning_tokens > 5 && reasoning_tokens < usage.completion_tokens);
    });
  }

  const offs = {
    "by default": {},
    "by reasoning_effort": { reasoning_effort: "none" },
    "by thinking": { thinking: { type: "disabled" } },
    "by chat_template_kwargs": { chat_template_kwargs: { enable_thinking: false } },
  };
  for (const [name, way] of Object.entries(offs)) {
    test(`off ${name}`, async () => {
      const { choices, usage } = await askTwice({ messages: user(kSum), ...way });
      assert.equal(choices[0].message.reasoning_content, undefined);
      assert.ok(choices[0].message.content.startsWith("12 + 30"));
      assert.equal(usage.completion_tokens_details.reasoning_tokens, 0);
    });
  }

  test("of earlier turns goes back into the prompt only where it is to be kept", async () => {
    const history = (reasoning_content) => [
      ...user(kSum),
      { role: "assistant", content: "12 + 30 + 7 = 49", ...reasoning_content },
      ...user("What is 1 + 2 + 3?"),
    ];
    const tokens = async (messages, clear_thinking) => {
      const chat_template_kwargs = { enable_thinking: true, clear_thinking };
      return (await ask({ messages, chat_template_kwargs, max_tokens: 1 })).usage.prompt_tokens;
    };
    const thought = history({ reasoning_content: "12 + 30 = 42. 42 + 7 = 49." });
    assert.ok((await tokens(thought, false)) > (await tokens(history({}), false)));
    assert.equal(await tokens(thought, true), await tokens(history({}), true));
  });

  test("cut by max_tokens, there is no answer yet", async () => {
    const request = { messages: user(kSum), reasoning_effort: "high", max_tokens: 5 };
    const { choices, usage } = await askTwice(request);
    assert.equal(choices[0].finish_reason, "length");
    assert.equal(choices[0].message.content, "");
    assert.ok(choices[0].message.reasoning_content.startsWith("12 +"));
    assert.equal(usage.completion_tokens_details.reasoning_tokens, 5);
  });
});

describe("ends", () => {
  test("max_tokens and max_completion_tokens", async () => {
    for (const limit of [{ max_tokens: 7 }, { max_completion_tokens: 7 },
      { max_tokens: 50, max_completion_tokens: 7 }]) {
      const { choices, usage } = await askTwice({ messages: user(kCount), ...limit });
      assert.equal(choices[0].finish_reason, "length");
      assert.equal(usage.completion_tokens, 7);
    }
  });

  test("stop texts, one token or over several, are neither shown nor passed over", async () => {
    const whole = (await ask({ messages: user(kCount) })).choices[0].message.content;
    for (const stop of [" 4", ", 12, 13", ["nothing of it", "9, 1", ", 22"], ["1"]]) {
      const { choices } = await askTwice({ messages: user(kCount), stop });
      const at = Math.min(...[stop].flat().map((each) => whole.indexOf(each))
        .filter((place) => place >= 0));
      assert.equal(choices[0].message.content, whole.slice(0, at), String(stop));
      assert.equal(choices[0].finish_reason, "stop");
    }
  });

  test("a stop text that begins and is not completed is shown", async () => {
    const stop = `${kRiverAnswer.slice(-6)} And so on`;
    const { choices } = await askTwice({ messages: user(kRiver), stop });
    assert.equal(choices[0].message.content, kRiverAnswer);
  });
});

describe("several answers", () => {
  test("n = 3 are those of seed, seed + 1 and seed + 2", async () => {
    const request = { messages: user(kRiver), temperature: 1, seed: 11 };
    const { choices, usage } = await askTwice({ ...request, n: 3 });
    assert.deepEqual(choices.map(({ index }) => index), [0, 1, 2]);
    let tokens = 0;
    for (const { index, message, finish_reason } of choices) {
      const single = await ask({ ...request, seed: 11 + index });
      assert.deepEqual(message, single.choices[0].message);
      assert.equal(finish_reason, single.choices[0].finish_reason);
      assert.equal(usage.prompt_tokens, single.usage.prompt_tokens);
      tokens += single.usage.completion_tokens;
    }
    assert.equal(usage.completion_tokens, tokens);
    assert.ok(new Set(choices.map(({ message }) => message.content)).size > 1);
  });
});

describe("the server", () => {
  test("takes a long prompt's beginning over from the request before", async () => {
    const request = { messages: user(longNote()), max_tokens: 4 };
    const first = await ask(request);
    const second = await ask(request);
    assert.ok(first.usage.prompt_tokens > 500);
    assert.equal(second.usage.prompt_tokens, first.usage.prompt_tokens);
    const { cached_tokens } = second.usage.prompt_tokens_details;
    assert.ok(cached_tokens > first.usage.prompt_tokens_details.cached_tokens);
    assert.ok(cached_tokens > 0.9 * second.usage.prompt_tokens);
    assert.ok(cached_tokens < second.usage.prompt_tokens);
    assert.deepEqual(second.choices, first.choices);
  });

  test("frees the place of an answer that is left in the middle", async () => {
    await server.untilFree();
    const abort = new AbortController();
    const request = {
      model: "any", messages: user(kCount), stream: true, max_tokens: 16_000, logit_bias: kEndless,
    };
    const stream = await api().chat.completions.create(request, { signal: abort.signal });
    let chunks = 0;
    for await (const chunk of stream) {
      assert.equal(chunk.choices[0].finish_reason, null);
      if (++chunks === 5) {
        assert.equal((await server.answers()).running, 1);
        abort.abort();
      }
    }
    assert.ok(chunks >= 5);
    const passed = await server.untilFree();
    assert.ok(passed < 2000, `the place was free after ${passed} ms`);
    const { choices } = await ask({ messages: user(kRiver) });
    assert.equal(choices[0].message.content, kRiverAnswer);
  });

  test("leaves a long prompt that nobody waits for any more", async () => {
    await server.untilFree();
    const before = await server.computedPromptTokens();
    const abort = new AbortController();
    const text = Array.from({ length: 500 }, (_, i) => `Line ${i * 7919}.`).join(" ");
    const stream = await api().chat.completions.create(
      { model: "any", messages: user(text), stream: true }, { signal: abort.signal });
    for await (const chunk of stream) {
      assert.equal(chunk.choices[0].delta.role, "assistant"); // comes before the prompt is computed
      abort.abort();
    }
    const passed = await server.untilFree();
    assert.ok(passed < 2000, `the place was free after ${passed} ms`);
    const counted = await server.fetch("/v1/messages/count_tokens", { messages: user(text) });
    const { input_tokens } = await counted.json();
    const computed = (await server.computedPromptTokens()) - before;
    assert.ok(computed < input_tokens / 2, `${computed} of ${input_tokens} tokens for nobody`);
  });

  test("answers many at once as one after another", async () => {
    const prompts = [kRiver, kCount, kSum, "Hello!", "Spell river.", "List the days of the week."];
    const alone = [];
    for (const prompt of prompts) alone.push((await ask({ messages: user(prompt) })).choices);
    const together = await Promise.all([...prompts, ...prompts].map(async (prompt) =>
      (await askTwice({ messages: user(prompt) })).choices));
    assert.deepEqual(together, [...alone, ...alone]);
  });

  test("lists its model and describes it", async () => {
    const models = [];
    for await (const model of api().models.list()) models.push(model);
    assert.equal(models.length, 1);
    assert.equal(models[0].id, server.model);
    assert.equal(models[0].object, "model");
    assert.ok(Math.abs(models[0].created - Date.now() / 1000) < 3600);
    const { id, object } = await api().models.retrieve(server.model);
    assert.deepEqual({ id, object }, { id: server.model, object: "model" });
  });
});
