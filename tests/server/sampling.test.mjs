// Settings of drawing, lengths and prompts at the edges of what they can be.
import assert from "node:assert/strict";
import {after, before, test} from "node:test";

import {startServer} from "./program.mjs";
import {
  chat, get, isIdle, kChat, kCompletions, kEndless, kMessages, post, userSays, waitForLoad,
} from "./requests.mjs";

let server;
before(async () => {
  server = await startServer(["--context", "512"]);
});
after(async () => {
  assert.deepEqual(await server.stop(), {code: 0, signal: null});
});

const kAsk = {
  messages: userSays("List the first 12 prime numbers."),
  max_tokens: 16
};
const ids = (n) => Array.from({length: n}, (_, i) => 100 + (i * 7) % 3000);

test(
    "A7 G11 max_tokens that is no number of tokens is refused, a large one is capped", async () => {
      const send = (path, body, text) =>
          post(server, path, JSON.stringify({...body, max_tokens: "?"}).replace('"?"', text));
      for (const [path, body] of [
               [kChat, {messages: kAsk.messages, temperature: 0, stop: ["3"]}],
               [kCompletions, {prompt: "2, 3, 5,", temperature: 0, stop: ["7"]}],
               [kMessages, {messages: kAsk.messages, temperature: 0, stop_sequences: ["3"]}]]) {
        for (const text of ["2147483647", "2147483648", "4294967296", "9223372036854775807"]) {
          const {status, json} = await send(path, body, text);
          assert.equal(status, 200, `${path} ${text}: ${JSON.stringify(json)}`);
        }
        for (const text
                 of ["-1", "0", '"10"', "0.5", "-9223372036854775808", "true", "[]", "{}",
                     "18446744073709551615", "9223372036854775808", "1e300"]) {
          const {status, json} = await send(path, body, text);
          assert.equal(status, 400, `${path} ${text}: ${JSON.stringify(json)}`);
          if (path !== kMessages) assert.equal(json.error.param, "max_tokens", text);
          assert.match(json.error.message, /max_tokens/);
        }
        assert.equal((await send(path, body, "1e309")).status, 400);
        assert.equal((await send(path, body, "NaN")).status, 400);
        // Absent: a default, or an error where the interface has none.
        assert.equal((await send(path, body, "null")).status, path === kMessages ? 400 : 200);
      }
    });

test("B10 a prompt as long as the context is refused with both numbers", async () => {
  const ask = (n) => post(server, kCompletions, {prompt: ids(n), max_tokens: 8, temperature: 0});
  for (const n of [512, 513, 5000]) {
    const {status, json} = await ask(n);
    assert.equal(status, 400);
    assert.equal(json.error.code, "context_length_exceeded");
    assert.equal(json.error.param, "prompt");
    assert.match(json.error.message, new RegExp(`\\b${n}\\b`));
    assert.match(json.error.message, /\b512\b/);
  }
  const {status, json} = await ask(511);
  assert.equal(status, 200);
  assert.equal(json.usage.completion_tokens, 1);
  assert.equal(json.choices[0].finish_reason, "length");
});

test("B11 C41 max_tokens beyond the context is capped, and the next request works", async () => {
  const {status, json} = await post(
      server, kCompletions, {prompt: ids(480), max_tokens: 100_000, temperature: 0, ...kEndless});
  assert.equal(status, 200);
  assert.equal(json.usage.prompt_tokens, 480);
  // The last token of a context needs no row of its own.
  assert.ok([32, 33].includes(json.usage.completion_tokens), json.usage.completion_tokens);
  assert.equal(json.choices[0].finish_reason, "length");
  assert.equal((await chat(server, kAsk)).finish_reason, "length");
});

test("B10 a long conversation is refused, never cut", async () => {
  const long = {messages: userSays("word ".repeat(2000)), max_tokens: 8};
  const {status, json} = await post(server, kChat, long);
  assert.equal(status, 400);
  assert.equal(json.error.code, "context_length_exceeded");
  assert.equal(json.error.param, "messages");
  const message = await post(server, kMessages, long);
  assert.equal(message.status, 400);
  assert.equal(message.json.type, "error");
  assert.match(message.json.error.message, /\b512\b/);
});

test("G10 empty prompts are refused and named", async () => {
  for (const [path, body, param] of [
           [kCompletions, {prompt: ""}, "prompt"],
           [kCompletions, {prompt: []}, "prompt"],
           [kCompletions, {prompt: [""]}, "prompt[0]"],
           [kCompletions, {prompt: [[]]}, "prompt[0]"],
           [kCompletions, {prompt: ["a", ""]}, "prompt[1]"],
           [kCompletions, {}, "prompt"],
           [kCompletions, {prompt: null}, "prompt"],
           [kChat, {messages: []}, "messages"],
           [kChat, {}, "messages"],
           [kChat, {messages: null}, "messages"],
           [kChat, {messages: [{role: "user", content: null}]}, "messages[0].content"],
           [kChat, {messages: [{role: "user", content: ""}]}, "messages[0].content"],
           [kChat, {messages: [{role: "user", content: []}]}, "messages[0].content"],
           [kChat, {messages: [{role: "user"}]}, "messages[0].content"],
           [kChat, {messages: [{content: "a"}]}, "messages[0].role"],
           [kMessages, {max_tokens: 5, messages: []}],
           [kMessages, {max_tokens: 5}],
           [kMessages, {max_tokens: 5, messages: [{role: "user", content: ""}]}],
           [kMessages, {max_tokens: 5, messages: [{role: "user", content: []}]}],
           [kMessages, {max_tokens: 5, messages: [{role: "user", content: null}]}],
  ]) {
    const {status, json} = await post(server, path, body);
    assert.equal(status, 400, `${path} ${JSON.stringify(body)}`);
    if (param) assert.equal(json.error.param, param);
  }
  await waitForLoad(server, isIdle);
});

test("G13 settings of drawing at their edges give answers, alone and together", async () => {
  const asks = [];
  for (const temperature of [0, 1e-300, 1e-9, 1e-5, 1, 100]) {
    for (const [top_p, top_k, min_p] of [
             [0, 0, 0], [1e-9, -1, 0], [1, 1, 1], [1, 1e9, 0], [1e-300, 0, 1e-300]]) {
      asks.push({...kAsk, temperature, top_p, top_k, min_p, seed: 1});
    }
  }
  const alone = [];
  for (const ask of asks) alone.push((await chat(server, ask)).message.content);
  const together =
      await Promise.all(asks.map(async (a) => (await chat(server, a)).message.content));
  assert.deepEqual(together, alone);
  const greedy = (await chat(server, kAsk)).message.content;
  for (const [i, ask] of asks.entries()) {
    if (ask.temperature < 1e-4 || ask.top_k === 1)
      assert.equal(alone[i], greedy, JSON.stringify(ask));
  }
});

test("G13 settings of drawing of the wrong kind or size are refused by name", async () => {
  for (const [name, value] of [
           ["top_k", 0.4], ["top_k", -2], ["top_k", "5"], ["top_p", 1.1], ["top_p", -1e-9],
           ["min_p", 2], ["temperature", -1], ["temperature", 101], ["temperature", "0"],
           ["seed", 0.5], ["seed", "1"], ["repetition_penalty", 0], ["presence_penalty", 2.1],
           ["frequency_penalty", -2.1], ["n", 0], ["n", 129], ["n", 1.5]]) {
    const {status, json} = await post(server, kChat, {...kAsk, [name]: value});
    assert.equal(status, 400, `${name} ${value}`);
    assert.equal(json.error.param, name);
  }
});

test("G14 penalties change the likeliest tokens too", async () => {
  const ask = {
    messages: userSays("Write a long story about a river."),
    max_tokens: 40,
    ...kEndless
  };
  const plain = (await chat(server, ask)).message.content;
  for (const change of [{repetition_penalty: 3}, {presence_penalty: 2}, {frequency_penalty: 2}]) {
    assert.notEqual(
        (await chat(server, {...ask, ...change})).message.content, plain, JSON.stringify(change));
  }
  const same = {repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0};
  assert.equal((await chat(server, {...ask, ...same})).message.content, plain);
});

test("G28 seed repeats an answer, alone and among others", async () => {
  const ask = (seed) => chat(server, {...kAsk, ...kEndless, temperature: 3, seed});
  const first = (await ask(5)).message.content;
  const again = await Promise.all(Array.from({length: 20}, (_, i) => ask(i % 2 ? 5 : i)));
  for (let i = 1; i < 20; i += 2) assert.equal(again[i].message.content, first);
  assert.ok(new Set(again.map((a) => a.message.content)).size > 5);
  for (const seed of [0, -1, 2 ** 53, -(2 ** 53)]) await ask(seed);
});

test("G28 n answers are those of the seeds that follow", async () => {
  const body = {...kAsk, ...kEndless, temperature: 3, seed: 40, n: 5};
  const {json} = await post(server, kChat, body);
  assert.deepEqual(json.choices.map((c) => c.index), [0, 1, 2, 3, 4]);
  for (const [i, choice] of json.choices.entries()) {
    const one = await chat(server, {...body, n: 1, seed: 40 + i});
    assert.equal(one.message.content, choice.message.content);
  }
});

test("G28 logprobs are sorted, finite and those of the tokens", async () => {
  const answer = await chat(server, {...kAsk, logprobs: true, top_logprobs: 20});
  const {content} = answer.logprobs;
  assert.equal(content.length, answer.usage.completion_tokens);
  let sum = "";
  for (const token of content) {
    assert.equal(token.top_logprobs.length, 20);
    const values = token.top_logprobs.map((t) => t.logprob);
    assert.deepEqual(values, values.toSorted((a, b) => b - a));
    assert.ok(values.reduce((total, v) => total + Math.exp(v), 0) < 1 + 1e-5);
    assert.ok(token.logprob === null || token.logprob <= 0);
    assert.equal(token.token, token.top_logprobs[0].token);
    assert.equal(Buffer.from(token.bytes).toString(), token.token);
    sum += token.token;
  }
  assert.ok(sum.startsWith(answer.message.content), sum);
});

test("G28 prompts of an array are answered each for itself, in order", async () => {
  const prompts = ["2, 3, 5, 7,", "日本語の", "A river is", "One, two,"];
  const body = {max_tokens: 6, temperature: 0};
  const {json} = await post(server, kCompletions, {...body, prompt: prompts});
  assert.equal(json.choices.length, 4);
  for (const [i, prompt] of prompts.entries()) {
    const one = await post(server, kCompletions, {...body, prompt});
    assert.equal(json.choices[i].index, i);
    assert.equal(json.choices[i].text, one.json.choices[0].text);
  }
  for (const [bad, param] of [
           [["a", "b", 3], "prompt[2]"], [[1, 2, "c"], "prompt"], [[1, -1], "prompt"],
           [[1, 1e9], "prompt"], [[1, 2 ** 63], "prompt"], [[[1, 2], [1, 2.5]], "prompt[1]"],
           [[["a"]], "prompt[0]"], [Array(129).fill("a"), "prompt"], [{a: 1}, "prompt"],
           [[...Array(7).fill("a"), {}], "prompt[7]"]]) {
    const refused = await post(server, kCompletions, {...body, prompt: bad});
    assert.equal(refused.status, 400, JSON.stringify(bad).slice(0, 60));
    assert.equal(refused.json.error.param, param);
  }
});

test("B20 G29 /health says how the server thinks", async () => {
  const {json} = await get(server, "/health");
  assert.equal(json.status, "ok");
  assert.ok(["on", "off"].includes(json.thinking));
  assert.equal(json.context_tokens, 512);
  // As it then does: the built-in model's default is off.
  assert.equal((await chat(server, kAsk)).message.reasoning_content, undefined);
  assert.equal(json.thinking, "off");
});
