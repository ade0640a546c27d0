// Clients that go away: what they asked for ends, and nothing of them stays.
import assert from "node:assert/strict";
import net from "node:net";
import {after, before, test} from "node:test";

import {assertGrowth, assertSoon, kSlowness, startServer} from "./program.mjs";
import {
  chat, isIdle, kChat, kEndless, kHead, load, longText, post, sleep, streamChat, userSays,
  waitForLoad,
} from "./requests.mjs";
import {measureRelease, vanishMany} from "./vanishing.mjs";

let server, fresh;
const kAsk = {
  messages: userSays("List the first 12 prime numbers."),
  max_tokens: 60
};
before(async () => {
  server = await startServer(["--max-sequences", "16"]);
  fresh = (await chat(server, kAsk)).message.content;
});
after(async () => {
  assert.deepEqual(await server.stop(), {code: 0, signal: null});
  assert.doesNotMatch(server.log, /error: /);
});

// A request whose client can go.
function ask(of, body) {
  const text = JSON.stringify(body);
  const socket = net.connect(of.port, of.host);
  socket.on("error", () => {});
  socket.resume();
  socket.write(
      `POST ${kChat} HTTP/1.1\r\n${kHead(of)}Content-Type: application/json\r\n` +
      `Content-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`);
  return socket;
}

const kLong = {
  messages: userSays("Write a long story."),
  max_tokens: 16_000,
  temperature: 0,
  ...kEndless
};

test("G6 a client that goes during its prompt frees its place within two layers", async () => {
  for (const [i, way] of ["resetAndDestroy", "destroy", "end"].entries()) {
    // The least of up to five: what else the machine does only adds to it. The built-in model has 6
    // layers; a few ms for the news of it.
    let least = {ms: Infinity, stepMs: 0};
    const isSoon = () => least.ms < least.stepMs * 2 / 6 + 10 * kSlowness;
    for (let j = 0; j < 5 && !isSoon(); ++j) {
      const before = await load(server);
      const released = await measureRelease(server, 12_000, 10 + 5 * i + j, way);
      const computed = released.now.promptTokens - before.promptTokens;
      assert.ok(computed < released.total / 2, `${computed} of ${released.total} were computed`);
      if (released.ms < least.ms) least = released;
    }
    assert.ok(isSoon(), `${way}: ${least.ms} ms, a step takes ${least.stepMs} ms`);
  }
});

test("C42 a prompt that was given up and comes again has the bits of a cold one", async () => {
  const body = {messages: userSays(longText(1200, 77)), max_tokens: 12, temperature: 0};
  const cold = await startServer();
  const expected = await chat(cold, body);
  await cold.stop();
  for (const afterMs of [30, 100, 200]) {
    const socket = ask(server, {...body, stream: true});
    await sleep(afterMs);
    socket.destroy();
    await waitForLoad(server, isIdle);
  }
  const again = await chat(server, body);
  assert.equal(again.message.content, expected.message.content);
});

test("G27 a second try takes over the rows of the first", async () => {
  const seed = 78;
  const released = await measureRelease(server, 4000, seed, "destroy");
  const again = await chat(server, {messages: userSays(longText(4000, seed)), max_tokens: 2});
  const cached = again.usage.prompt_tokens_details.cached_tokens;
  assert.ok(cached >= released.done - 64, `${cached} of ${released.done}`);
});

test("G9 a client that goes while its answer comes frees its place", async () => {
  for (const [stream, way] of [[true, "destroy"], [false, "destroy"], [true, "resetAndDestroy"]]) {
    const socket = ask(server, {...kLong, stream});
    await waitForLoad(server, (now) => now.running === 1);
    await sleep(50);
    socket[way]();
    const {ms} = await waitForLoad(server, isIdle);
    assertSoon(ms, 100);
  }
});

test("G8 what waits and is given up is never computed", async () => {
  const narrow = await startServer(["--max-sequences", "1"]);
  const first = ask(narrow, kLong);
  await waitForLoad(narrow, (now) => now.running === 1);
  const waiting = Array.from(
      {length: 20}, (_, i) => ask(narrow, {...kLong, messages: userSays(longText(500, i))}));
  await waitForLoad(narrow, (now) => now.waiting === 20);
  const before = await load(narrow);
  for (const socket of waiting) socket.resetAndDestroy();
  await waitForLoad(narrow, (now) => now.waiting === 0 && now.running === 1);
  first.destroy();
  const {now} = await waitForLoad(narrow, isIdle);
  assert.equal(now.promptTokens, before.promptTokens);
  await waitForLoad(narrow, (later) => later.cancelled === 21);
  await narrow.stop();
});

test("A queue that was given up takes others again", async () => {
  const small = await startServer(["--max-sequences", "2", "--max-queue", "3"]);
  for (let round = 0; round < 4; ++round) {
    const sockets = Array.from({length: 5}, () => ask(small, kLong));
    await waitForLoad(small, (now) => now.running + now.waiting === 5);
    const refused = await post(small, kChat, kAsk);
    assert.equal(refused.status, 429);
    assert.equal(refused.headers["retry-after"], "1");
    assert.equal(refused.json.error.code, "queue_full");
    for (const socket of sockets) socket.resetAndDestroy();
    await waitForLoad(small, isIdle);
  }
  const five = await Promise.all(Array.from({length: 5}, () => chat(small, kAsk)));
  assert.equal(new Set(five.map((answer) => answer.message.content)).size, 1);
  await small.stop();
});

test("A client that does not read is bounded and its place is freed when it goes", async () => {
  const before = server.residentBytes();
  const text = JSON.stringify({...kLong, stream: true, logprobs: true, top_logprobs: 20, n: 4});
  const socket = net.connect(server.port, server.host);
  socket.on("error", () => {});
  socket.pause();
  socket.write(
      `POST ${kChat} HTTP/1.1\r\n${kHead(server)}Content-Type: application/json\r\n` +
      `Content-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`);
  await waitForLoad(server, (now) => now.running === 4);
  await sleep(1500);
  assert.equal((await chat(server, kAsk)).message.content, fresh);
  const grown = server.residentBytes() - before;
  assertGrowth(grown, 150e6);
  socket.resetAndDestroy();
  const {ms} = await waitForLoad(server, isIdle);
  assertSoon(ms, 500);
});

test("200 clients that vanish at any moment leave nothing behind", async () => {
  await vanishMany(server, 100, 5);
  await waitForLoad(server, isIdle);
  const resident = server.residentBytes();
  await vanishMany(server, 200, 6);
  const {ms} = await waitForLoad(server, isIdle);
  assertSoon(ms, 2000);
  assert.equal((await chat(server, kAsk)).message.content, fresh);
  assert.equal((await streamChat(server, kAsk)).content, fresh);
  const grown = server.residentBytes() - resident;
  assertGrowth(grown, 50e6);
});
