// Bodies that are no JSON, or JSON of a kind that breaks readers.
import assert from "node:assert/strict";
import {after, before, test} from "node:test";

import {assertGrowth, assertSoon, run, startServer} from "./program.mjs";
import {
  chat, exchange, get, isIdle, kChat, kCompletions, kEndless, kHead, kMessages, metrics, post,
  sleep, userSays, waitForLoad,
} from "./requests.mjs";

const kPrompt = "Sort these words: green, black, white, Dan";
let server, residentBefore;
before(async () => {
  server = await startServer(["--max-sequences", "8"]);
  await chat(server, {messages: userSays(kPrompt)});
  residentBefore = server.residentBytes();
});
after(async () => {
  assert.deepEqual(await server.stop(), {code: 0, signal: null});
});

const kPaths = [kChat, kCompletions, kMessages, "/v1/messages/count_tokens"];

// Refused, shortly, and soon: in so much of the processor's time, since the machine may be busy.
async function expectRefused(body, name, limitMs = 1000, paths = kPaths) {
  for (const path of paths) {
    const began = server.processorMs();
    const {status, text, json} = await post(server, path, body);
    const ms = server.processorMs() - began;
    assert.equal(status, 400, `${name} at ${path}: ${status} ${text.slice(0, 200)}`);
    assert.ok(json.error.message.length > 0);
    assert.ok(text.length < 2000, `${name}: an error of ${text.length} bytes`);
    assertSoon(ms, limitMs, name);
  }
}

test("Bodies that are no JSON object are refused", async () => {
  for (const body
           of ["", " ", "{", "}", "[]", "null", "5", '"a"', "true", "{}x", "{} {}", "\ufeff{}",
               "{a:1}", "{'a':1}", '{"a":1,}', '{"a":01}', '{"a":+1}', '{"a":.5}', '{"a":NaN}',
               '{"a":Infinity}', '{"a":1e999}', '{"a":-1e999}', '{"a":"\n"}', '{"a":"\\x41"}',
               '{"a":"\\ud800"}', '{"a":"\\udc00\\ud800"}', '{"a":"\\u12"}', "// c\n{}",
               Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]),
               Buffer.from([0x7b, 0x22, 0xc0, 0xaf, 0x22, 0x3a, 0x31, 0x7d]),
               Buffer.from([0x7b, 0x22, 0xed, 0xa0, 0x80, 0x22, 0x3a, 0x31, 0x7d]),
               Buffer.from('{"a":1}', "utf16le"), Buffer.alloc(100)]) {
    await expectRefused(body, JSON.stringify(body.toString("latin1")).slice(0, 60));
  }
});

test("A NUL in the body or behind it is refused", async () => {
  const good = JSON.stringify({messages: userSays("a"), prompt: "a", max_tokens: 1});
  await expectRefused(`${good}\0`, "NUL behind");
  await expectRefused(`${good.slice(0, 12)}\0${good.slice(12)}`, "NUL within");
});

test("100,000 levels are refused at once", async () => {
  for (const [open, close] of [["[", "]"], ['{"a":', "}"], ['[{"a":', "}]"]]) {
    const n = 100_000;
    await expectRefused(`{"messages":${open.repeat(n)}1${close.repeat(n)}}`, open);
    await expectRefused(open.repeat(n), open);
    await expectRefused(`{"prompt":${open.repeat(n)}`, open);
  }
});

test("A million members or items are refused soon", async () => {
  const members = Array.from({length: 1_000_000}, (_, i) => `"m${i}":1`).join(",");
  await expectRefused(`{${members}}`, "members", 5000, [kChat]);
  const within = members.slice(0, members.lastIndexOf(",", 3_000_000));
  await expectRefused(
      `{"messages":[{${within}}],"max_tokens":5}`, "members within", 2000, [kMessages]);
  const items = Array(1_000_000).fill("{}").join(",");
  await expectRefused(
      `{"messages":[${items}],"prompt":[${items}],"max_tokens":5}`, "items", 2000, [kCompletions]);
});

test("A key that stands twice is refused by name, wherever", async () => {
  for (const body
           of ['{"messages":[],"messages":[{"role":"user","content":"a"}]}',
               '{"a":{"b":1,"c":{},"b":2}}', '{"a":1,"\\u0061":2}']) {
    const {status, json} = await post(server, kChat, body);
    assert.equal(status, 400);
    assert.match(json.error.message, /twice/);
  }
});

test("Errors stay short whatever they tell of", async () => {
  const long = "x".repeat(1_000_000);
  const user = (content) => ({messages: [{role: "user", content}], max_tokens: 5});
  for (const [path, body] of [
           [kChat, {...user("a"), [long]: 1}],
           [kChat, user([{type: long, text: "a"}])],
           [kChat, {messages: [{role: long, content: "a"}]}],
           [kChat, {...user("a"), tool_choice: long}],
           [kChat, {...user("a"), logit_bias: {[long]: 1}}],
           [kChat, {...user("a"), logit_bias: {5: long}}],
           [kChat, {...user("a"), logit_bias: {5: [long]}}],
           [kChat, {...user("a"), grammar: long}],
           [kChat, {...user("a"), reasoning_effort: long}],
           [kChat, {...user("a"), modalities: [long.slice(0, 9)]}],
           [kChat, {...user("a"), tools: [{type: long}]}],
           [kChat, {...user("a"), tools: [{type: "function", function: {name: long}}]}],
           [kChat, {...user("a"), response_format: {type: long}}],
           [
             kChat, {
               ...user("a"),
               response_format: {type: "json_schema", json_schema: {schema: {[long]: 1}}}
             }
           ],
           [kChat, {...user("a"), chat_template_kwargs: {[long]: 1}}],
           [kCompletions, {prompt: [1, long]}],
           [kCompletions, {prompt: [1, {a: long}]}],
           [kCompletions, {prompt: "a", suffix: long}],
           [kMessages, user([{type: long, text: "a"}])],
           [kMessages, {...user("a"), system: [{type: long}]}],
           [kMessages, {...user("a"), tools: [{type: long, name: "a", input_schema: {}}]}],
           [kMessages, {...user("a"), [long]: 1}],
  ]) {
    const {status, text} = await post(server, path, body);
    assert.equal(status, 400, JSON.stringify(body).slice(0, 100));
    assert.ok(text.length < 2000, `${text.length} bytes for ${JSON.stringify(body).slice(0, 80)}`);
  }
});

test("Who only looks does not wait for a large body that is read", async () => {
  const items = Array(6_000_000).fill("[]").join(",");
  const heavy = post(server, kChat, `{"messages":[${items}]}`);
  let slowest = 0, looks = 0, isRead = false;
  heavy.then(() => { isRead = true; });
  while (!isRead) {
    const began = performance.now();
    for (const path of ["/health", "/metrics", "/v1/models", "/api/live"]) {
      assert.equal((await get(server, path)).status, 200);
    }
    slowest = Math.max(slowest, performance.now() - began);
    ++looks;
    await sleep(20);
  }
  assert.equal((await heavy).status, 400);
  assert.ok(looks > 3, `${looks} looks`);
  assertSoon(slowest, 500);
});

test("B10 a text that cannot fit is refused before it is cut into tokens", async () => {
  const text = "ab".repeat(10_000_000);
  for (const [path, body, param] of [
         [kChat, {messages: userSays(text), max_tokens: 5}, "messages"],
         [kCompletions, {prompt: text, max_tokens: 5}, "prompt"],
         [kCompletions, {prompt: ["a", text], max_tokens: 5}, "prompt[1]"],
  ]) {
    const began = server.processorMs();
    const {status, json} = await post(server, path, body);
    assertSoon(server.processorMs() - began, 1000);
    assert.equal(status, 400);
    assert.equal(json.error.code, "context_length_exceeded");
    assert.equal(json.error.param, param);
    assert.match(json.error.message, /\b16384\b/);
  }
});

test("Numbers that are token ids only nearly are refused", async () => {
  for (const id
           of ["1.0", "1.5", "1e2", "-0.0", "-1", "8192000", "4294967297", "18446744073709551616",
               "18446744073709551615", "9223372036854775808", "1e309", "null", "true", '"1"',
               "[]"]) {
    const {status} = await post(server, kCompletions, `{"prompt":[1,${id}],"max_tokens":1}`);
    assert.equal(status, 400, id);
  }
});

test("Unknown paths leave nothing behind", async () => {
  const before = (await get(server, "/metrics")).text.length;
  await Promise.all(Array.from({length: 400}, (_, i) => get(server, `/no/such/${i}?q=${i}`)));
  const {text} = await get(server, "/metrics");
  assert.ok(text.length < before + 500, `/metrics grew by ${text.length - before} bytes`);
  const odd = await exchange(server, [
    `GET /a"b\\c HTTP/1.1\r\n${kHead(server)}\r\n`, `GET /%e6%97 HTTP/1.1\r\n${kHead(server)}\r\n`
  ]);
  assert.equal(odd.status, 404);
  for (const line of (await get(server, "/metrics")).text.trim().split("\n")) {
    assert.match(line, /^(#.*|[a-z_]+(\{([a-z]+="([^"\\]|\\.)*",?)*\})? \S+)$/);
  }
});

test("Requests that wait do not keep their bodies", async () => {
  const pad = " ".repeat(4_000_000);
  const long = {messages: userSays("Go on."), max_tokens: 16_000, ...kEndless};
  const controllers = [];
  const ask = () => {
    const controller = new AbortController();
    controllers.push(controller);
    const url = `http://${server.host}:${server.port}${kChat}`;
    return fetch(url, {
             method: "POST",
             signal: controller.signal,
             body: JSON.stringify(long) + pad,
             headers: {"Content-Type": "application/json"}
           })
        .then((answer) => answer.text())
        .catch(() => "gone");
  };
  const before = server.residentBytes();
  const asked = [];
  while (asked.length < 30) {
    asked.push(ask());
    await waitForLoad(server, (now) => now.waiting + now.running === asked.length);
  }
  const grown = server.residentBytes() - before;
  for (const controller of controllers) controller.abort();
  await Promise.all(asked);
  await waitForLoad(server, isIdle);
  assertGrowth(grown, 60e6, "with 30 bodies of 4 MB the server");
});

test("G28 a crowd in one request is refused before it takes memory", async () => {
  const before = server.residentBytes();
  const prompt = Array.from({length: 12_000}, (_, i) => 100 + (i % 5000));
  const {status, json} =
      await post(server, kCompletions, {prompt: Array(128).fill(prompt), n: 128, max_tokens: 100});
  assert.equal(status, 400);
  assert.match(json.error.message, /16384/);
  const grown = server.residentBytes() - before;
  assertGrowth(grown, 200e6);
});

test("After all this the server answers the same bits and has not grown", async () => {
  await waitForLoad(server, isIdle);
  const answer = await chat(server, {messages: userSays(kPrompt)});
  assert.equal(`${answer.message.content}\n`, run(["--temperature", "0", kPrompt]));
  const values = await metrics(server);
  assert.equal(values['hillstar_answers{state="running"}'], 0);
  // What a body of 9 MB becomes while it is read stays with the allocator, once.
  const grown = server.residentBytes() - residentBefore;
  assertGrowth(grown, 400e6);
  const heavy = `{"messages":[${Array(1_000_000).fill("[]").join(",")}]}`;
  const resident = [];
  for (let i = 0; i < 8; ++i) {
    assert.equal((await post(server, kChat, heavy)).status, 400);
    resident.push(server.residentBytes());
  }
  assertGrowth(resident[7] - resident[3], 30e6);
});
