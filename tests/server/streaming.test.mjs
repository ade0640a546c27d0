// Texts on their way to a client: characters, stop texts, shapes of streams. Names begin with the
// kind of fault in other servers that they look for.
// Grammars say what the model answers, so that a text that matters comes in any tokens.
import assert from "node:assert/strict";
import {after, before, test} from "node:test";

import {assertSoon, startServer} from "./program.mjs";
import {
  chat, isIdle, kChat, kCompletions, kEndless, kMessages, load, post, readEvents, streamChat,
  userSays, waitForLoad,
} from "./requests.mjs";

let server;
before(async () => {
  server = await startServer();
});
after(async () => {
  assert.deepEqual(await server.stop(), {code: 0, signal: null});
});

// The answer is this text.
const says = (text) =>
    ({messages: userSays("Say it."), max_tokens: 200, grammar: `root ::= ${JSON.stringify(text)}`});

test("G1 characters of several tokens come whole, and the end of a cut one as U+FFFD", async () => {
  const text = "日本語😀é한🏳️‍🌈";
  const whole = await chat(server, says(text));
  assert.equal(whole.message.content, text);
  const streamed = await streamChat(server, says(text));
  assert.equal(streamed.content, text);
  for (const piece of streamed.pieces) assert.ok(!piece.includes("\ufffd"), piece);
  let cuts = 0;
  for (let tokens = 1; tokens <= whole.usage.completion_tokens; ++tokens) {
    const cut = await streamChat(server, {...says(text), max_tokens: tokens});
    const same = await chat(server, {...says(text), max_tokens: tokens});
    assert.equal(cut.content, same.message.content);
    const kept = cut.content.replace(/\ufffd+$/u, "");
    assert.ok(text.startsWith(kept), cut.content);
    if (kept !== cut.content) ++cuts;
  }
  assert.ok(cuts > 0, "no cut fell into a character");
});

test("G1 prompts with every kind of character come back by echo", async () => {
  const prompt = "Ä€😀\u0000\u0001\u007f\u2028\ufeff日本\u{10ffff}\\\"";
  const {status, json} =
      await post(server, kCompletions, {prompt, echo: true, max_tokens: 1, temperature: 0});
  assert.equal(status, 200);
  assert.ok(json.choices[0].text.startsWith(prompt), JSON.stringify(json.choices[0].text));
});

test("G2 a stop text never shows, however tokens cut it", async () => {
  const text = "abcDEFGHIJxyz";
  for (let seed = 0; seed < 12; ++seed) {
    const drawn = {...says(text), temperature: 3, seed, stop: "DEFGHIJ"};
    const streamed = await streamChat(server, drawn);
    assert.equal(streamed.content, "abc");
    assert.equal(streamed.finish_reason, "stop");
    assert.equal((await chat(server, drawn)).message.content, "abc");
  }
});

test("G2 the earliest of overlapping stop texts ends the answer", async () => {
  for (const [stop, content] of [
           [["FGH", "DEF"], "abc"], [["xyz", "GHIJ"], "abcDEF"], [["abcD", "bc"], "a"], [["a"], ""],
           [["z"], "abcDEFGHIJxy"]]) {
    const streamed = await streamChat(server, {...says("abcDEFGHIJxyz"), stop});
    assert.equal(streamed.content, content);
    assert.equal(streamed.finish_reason, "stop");
  }
});

test("G2 G3 what began like a stop text and did not go on is sent", async () => {
  for (const stop of ["DEFX", "xyzz", "IJxyzA", "abcDEFGHIJxyz."]) {
    const streamed = await streamChat(server, {...says("abcDEFGHIJxyz"), stop});
    assert.equal(streamed.content, "abcDEFGHIJxyz");
  }
});

test("G2 stop_sequences of /v1/messages, named in the answer", async () => {
  const body = {
    messages: userSays("Say it."),
    max_tokens: 60,
    temperature: 0,
    stop_sequences: ["DEFGHIJ"],
    output_config: {format: {type: "json_schema", schema: {enum: ["abcDEFGHIJxyz"]}}}
  };
  const {status, json} = await post(server, kMessages, body);
  assert.equal(status, 200, JSON.stringify(json));
  assert.equal(json.stop_reason, "stop_sequence");
  assert.equal(json.stop_sequence, "DEFGHIJ");
  assert.equal(json.content[0].text, '"abc');
});

test("G5 after a stop text nothing more is computed", async () => {
  const before = await load(server);
  const body = {
    messages: userSays("Say it."),
    max_tokens: 4000,
    stop: "STOP",
    grammar: 'root ::= "ab STOP " [a-z ]*'
  };
  const answer = await chat(server, body);
  const {ms, now} = await waitForLoad(server, isIdle);
  assertSoon(ms, 500);
  const computed = now.answerTokens - before.answerTokens;
  assert.ok(
      computed <= answer.usage.completion_tokens + 2,
      `${computed} computed of ${answer.usage.completion_tokens}`);
});

test("G24 a stream has the documented shape, with usage and without", async () => {
  const body = {messages: userSays("What is a river?"), max_tokens: 12};
  for (const withUsage of [true, false]) {
    const asked = withUsage ? {...body, stream_options: {include_usage: true}} : body;
    const {chunks} = await streamChat(server, asked);
    const ids = new Set(chunks.map((chunk) => chunk.id));
    assert.equal(ids.size, 1);
    for (const chunk of chunks) {
      assert.equal(chunk.object, "chat.completion.chunk");
      assert.equal(typeof chunk.created, "number");
      assert.equal(typeof chunk.model, "string");
      assert.equal("usage" in chunk, withUsage);
    }
    const last = withUsage ? chunks.pop() : undefined;
    if (last) {
      assert.deepEqual(last.choices, []);
      assert.equal(
          last.usage.total_tokens, last.usage.prompt_tokens + last.usage.completion_tokens);
    }
    for (const [i, chunk] of chunks.entries()) {
      if (withUsage) assert.equal(chunk.usage, null);
      assert.equal(chunk.choices.length, 1);
      const finish = chunk.choices[0].finish_reason;
      assert.ok(
          i + 1 < chunks.length ? finish === null : ["stop", "length"].includes(finish),
          `${finish}`);
    }
    assert.deepEqual(chunks[0].choices[0].delta, {role: "assistant", content: ""});
  }
});

test("G24 a stream of /v1/completions and one of /v1/messages end as documented", async () => {
  const plain = await post(
      server, kCompletions, {prompt: "One, two,", max_tokens: 4, temperature: 0, stream: true});
  const {events} = readEvents(plain.text);
  assert.equal(events.pop().data, "[DONE]");
  assert.equal(JSON.parse(events.pop().data).choices[0].finish_reason, "length");
  const message = await post(
      server, kMessages,
      {messages: userSays("What is a river?"), max_tokens: 4, temperature: 0, stream: true});
  const names = readEvents(message.text).events.map(({name, data}) => {
    assert.equal(JSON.parse(data).type, name);
    return name;
  });
  const order = names.filter((name, i) => name !== "ping" && name !== names[i - 1]);
  assert.deepEqual(order, [
    "message_start", "content_block_start", "content_block_delta", "content_block_stop",
    "message_delta", "message_stop"
  ]);
});

test("G32 stop texts end answers to prompts of token ids too", async () => {
  const body = {
    prompt: [100, 101, 102],
    max_tokens: 100,
    temperature: 0,
    stop: ["DEF"],
    grammar: 'root ::= "abcDEFGHI"'
  };
  const {status, json} = await post(server, kCompletions, body);
  assert.equal(status, 200, JSON.stringify(json));
  assert.equal(json.choices[0].text, "abc");
  assert.equal(json.choices[0].finish_reason, "stop");
});

test("D16 many greedy answers at once are one answer", async () => {
  const body = {messages: userSays("Describe a river as JSON."), max_tokens: 24};
  const alone = (await chat(server, body)).message.content;
  const answers = await Promise.all(Array.from(
      {length: 64},
      async (_, i) =>
          (i % 2 ? await streamChat(server, body) : (await chat(server, body)).message).content));
  assert.deepEqual([...new Set(answers)], [alone]);
});

test("G19 G21 what is wrong with one request leaves no trace in the next", async () => {
  const good = {messages: userSays("List the first 12 prime numbers."), max_tokens: 40};
  const first = await chat(server, good);
  for (const grammar
           of ["root ::= (", "root ::= root \"a\"", "root ::= missing", "",
               "root ::= \"a\"{1000000000}", "root ::= \"\\x\"",
               "::=", `root ::= ${"(".repeat(20_000)}`]) {
    const bad = await post(server, kChat, {...good, grammar});
    assert.equal(bad.status, 400, grammar.slice(0, 40));
    assert.equal(bad.json.error.param, "grammar");
    assert.ok(bad.json.error.message.length < 1000);
  }
  // A grammar of which there is no end, and one whose only way on is a control character.
  const never = await post(server, kChat, {...good, grammar: 'root ::= "a" root'});
  assert.equal(never.status, 400);
  const endless =
      await chat(server, {...good, ...kEndless, max_tokens: 30, grammar: 'root ::= "a"+'});
  assert.equal(endless.finish_reason, "length");
  assert.match(endless.message.content, /^a+$/);
  const odd = await chat(server, {...good, grammar: 'root ::= "\\x01\\x02"'});
  assert.equal(odd.message.content, "\u0001\u0002");
  assert.equal((await chat(server, good)).message.content, first.message.content);
});
