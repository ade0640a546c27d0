// Raw bytes, slow bytes, wrong bytes; names, origins, keys and paths. A server that has seen all
// this answers as before.
import assert from "node:assert/strict";
import {mkdtempSync, rmSync, writeFileSync} from "node:fs";
import net from "node:net";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {after, before, test} from "node:test";

import {assertGrowth, assertSoon, run, startServer} from "./program.mjs";
import {
  chat, exchange, get, isIdle, kChat, kHead, kLast, kMessages, post, randomFrom, request, sleep,
  userSays, waitForLoad,
} from "./requests.mjs";

const kPrompt = "List the first 12 prime numbers.";
let server, locked, folder, residentBefore;
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "hillstar-server-"));
  writeFileSync(join(folder, "keys"), "# keys\nfirst-key\n\nsecond-key  \n");
  server = await startServer(["--max-body", "4", "--max-connections", "200"]);
  locked = await startServer([
    "--api-key-file", join(folder, "keys"), "--api-key", "third-key", "--allowed-host",
    "models.example", "--cors-origin", "https://app.example"
  ]);
  await chat(server, {messages: userSays(kPrompt)});
  residentBefore = server.residentBytes();
});
after(async () => {
  for (const s of [server, locked]) assert.deepEqual(await s.stop(), {code: 0, signal: null});
  rmSync(folder, {recursive: true});
});

const kBody = JSON.stringify({messages: userSays(kPrompt), max_tokens: 4, temperature: 0});
const kLength = `Content-Length: ${Buffer.byteLength(kBody)}\r\n`;
const kJson = "Content-Type: application/json\r\n";
const postHead = (more = "") => `POST ${kChat} HTTP/1.1\r\n${kHead(server)}${kJson}${more}`;

test("What is no HTTP is refused or closed, and hurts nobody", async () => {
  const random = Buffer.from(Array.from({length: 4000}, (_, i) => (i * i * 31 + 7 * i) & 255));
  const cases = [
    ["GET\r\n\r\n", 400],
    ["\r\n\r\n\r\n\r\n", 400],
    ["GET / HTTP/1.1\r\n\r\n", 400],
    ["GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", [400, 505]],
    ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400, 505]],
    [`GET /health HTTP/1.1\r\n${kHead(server)} folded: x\r\n\r\n`, [200, 400, 403]],
    [`GET / HTTP/1.1\r\n${kHead(server)}Na me: x\r\n\r\n`, 400],
    [`GET / HTTP/1.1\r\n${kHead(server)}${kHead(server)}\r\n`, 400],
    [`FROB / HTTP/1.1\r\n${kHead(server)}\r\n`, [400, 404, 405, 501]],
    [`TRACE / HTTP/1.1\r\n${kHead(server)}\r\n`, 405],
    [`CONNECT example.org:443 HTTP/1.1\r\n${kHead(server)}\r\n`, [400, 405]],
    [`GET /${"a".repeat(9000)} HTTP/1.1\r\n${kHead(server)}\r\n`, 414],
    [random, [0, 400]],
    [Buffer.alloc(5000), [0, 400]],
    ["\u0016\u0003\u0001\u0002\u0000", [0, 400]],
  ];
  for (const [bytes, expected] of cases) {
    const {status} = await exchange(server, [bytes]);
    assert.ok(
        [expected].flat().includes(status),
        `${JSON.stringify(bytes.toString("latin1").slice(0, 60))}: ${status}`);
  }
});

test("Two messages cannot hide in one: contradictory lengths are refused", async () => {
  const chunk = `${kBody.length.toString(16)}\r\n${kBody}\r\n0\r\n\r\n`;
  for (const [headers, body, expected] of [
           [`${kLength}Transfer-Encoding: chunked\r\n`, chunk, 400],
           [`Content-Length: ${kBody.length}\r\nContent-Length: 5\r\n`, kBody, 400],
           ["Content-Length: -1\r\n", kBody, 400],
           ["Content-Length: 0x10\r\n", kBody, 400],
           ["Content-Length: 10 10\r\n", kBody, 400],
           ["Content-Length: +5\r\n", kBody, 400],
           ["Content-Length: 99999999999999999999999\r\n", kBody, [400, 413]],
           ["Transfer-Encoding: gzip\r\n", kBody, [400, 501]],
           ["Transfer-Encoding: xchunked\r\n", chunk, [400, 501]],
           ["Transfer-Encoding: chunked\r\n", "zz\r\n{}\r\n0\r\n\r\n", 400],
           ["Transfer-Encoding: chunked\r\n", "-5\r\n{}\r\n0\r\n\r\n", 400],
           ["Transfer-Encoding: chunked\r\n", "ffffffffffffffffff\r\n{}\r\n0\r\n\r\n", [400, 413]],
  ]) {
    const {status, text} = await exchange(server, [`${postHead(headers)}\r\n${body}`]);
    assert.ok([expected].flat().includes(status), `${headers}: ${status}`);
    assert.equal(text.match(/HTTP\/1\.1 /g).length, 1, "one answer, then the connection is closed");
  }
  const good =
      await exchange(server, [`${postHead("Transfer-Encoding: chunked\r\n")}\r\n${chunk}`]);
  assert.equal(good.status, 200);
});

test("Headers and bodies beyond the limits are refused: 431 and 413", async () => {
  const big = "a".repeat(20_000);
  assert.equal((await exchange(server, [postHead(`X-Long: ${big}\r\n`)])).status, 431);
  const many = Array.from({length: 3000}, (_, i) => `X-${i}: 1\r\n`).join("");
  assert.equal((await exchange(server, [postHead(many)])).status, 431);
  const tooLong = await exchange(server, [`${postHead("Content-Length: 5000000\r\n")}\r\n`]);
  assert.equal(tooLong.status, 413);
  const waits = await exchange(
      server, [`${postHead("Content-Length: 5000000\r\nExpect: 100-continue\r\n")}\r\n`]);
  assert.equal(waits.status, 413, "refused before the body was asked for");
  const chunk = `10000\r\n${"a".repeat(0x10000)}\r\n`;
  const endless = await exchange(
      server, [`${postHead("Transfer-Encoding: chunked\r\n")}\r\n`, ...Array(80).fill(chunk)]);
  assert.equal(endless.status, 413);
  const {status, json} = await post(server, kMessages, Buffer.alloc(5_000_000, 32))
                             .catch(() => ({status: 413, json: undefined}));
  assert.equal(status, 413);
  if (json) assert.equal(json.type, "error");
});

test("A body comes in any pieces", async () => {
  const bytes = `${postHead(kLength)}Connection: close\r\n\r\n${kBody}`;
  const whole = await exchange(server, [bytes]);
  assert.equal(whole.status, 200);
  const pieces = [];
  for (let i = 0; i < bytes.length; i += 7) pieces.push(bytes.slice(i, i + 7), 0);
  const {status, text} = await exchange(server, pieces, {quietMs: 3000});
  assert.equal(status, 200);
  assert.equal(
      JSON.parse(text.split("\r\n\r\n")[1]).choices[0].message.content,
      JSON.parse(whole.text.split("\r\n\r\n")[1]).choices[0].message.content);
});

test("Requests in one packet are answered in order", async () => {
  const ask = (path, more = "") => `GET ${path} HTTP/1.1\r\n${kHead(server)}${more}\r\n`;
  const {text} = await exchange(
      server,
      [ask("/health") + ask("/nothing") + ask("/v1/models") + `${postHead(kLength)}\r\n${kBody}` +
       ask("/health", kLast)],
      {quietMs: 5000});
  const statuses = [...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map((match) => Number(match[1]));
  assert.deepEqual(statuses, [200, 404, 200, 200, 200]);
  // A flood behind a request that takes its time is bounded, and its end is seen.
  const flood = await exchange(
      server,
      [`${postHead(kLength)}\r\n${kBody}`, ask("/health").repeat(2000) + ask("/health", kLast)],
      {quietMs: 5000});
  assert.equal(flood.text.match(/HTTP\/1\.1 200/g).length, 2002);
  assert.equal(flood.status, 200);
  await waitForLoad(server, isIdle);
});

test("A request that comes just as the answer before it ends is answered", async () => {
  const bytes = `GET /health HTTP/1.1\r\n${kHead(server)}\r\n`;
  const random = randomFrom(1);
  const socket = net.connect(server.port, server.host);
  socket.setNoDelay(true);
  let answers = 0, arrived = () => {};
  socket.on("data", (data) => {
    answers += data.toString("latin1").split("HTTP/1.1 200").length - 1;
    arrived();
  });
  for (let pair = 1; pair <= 1500; ++pair) {
    const pauseMs = random() * 0.6;
    socket.write(bytes);
    await new Promise(setImmediate);  // the first one is on its way
    const until = performance.now() + pauseMs;
    while (performance.now() < until)
      ;
    socket.write(bytes);
    await new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no answer to one of pair ${pair}`)), 5000);
      arrived = () => {
        if (answers < 2 * pair) return;
        clearTimeout(timer);
        resolve();
      };
      arrived();
    });
  }
  socket.destroy();
});

test("Slow headers do not keep others waiting, and end with 408", async () => {
  const slow = [`GET /health HTTP/1.1\r\n${kHead(server)}`];
  for (let i = 0; i < 30; ++i) slow.push(500, `X-${i}: 1\r\n`);
  const ended = exchange(server, slow, {quietMs: 20_000, limitMs: 20_000});
  await sleep(200);
  const began = performance.now();
  assert.equal((await get(server, "/health")).status, 200);
  assertSoon(performance.now() - began, 1000);
  const {status, ms} = await ended;
  assert.equal(status, 408);
  assertSoon(ms, 13_000);
});

test("Too many connections are told so at once, and room comes back", async () => {
  const sockets = [];
  for (let i = 0; i < 200; ++i) {
    const socket = net.connect(server.port, server.host);
    socket.on("error", () => {});
    sockets.push(socket);
  }
  await sleep(300);
  const answer = await get(server, "/health");
  assert.equal(answer.status, 503);
  assert.equal(answer.headers["retry-after"], "1");
  for (const socket of sockets) socket.resetAndDestroy();
  await sleep(300);
  assert.equal((await get(server, "/health")).status, 200);
});

test("Every answer says its request, and to keep it to itself", async () => {
  const given = await get(server, "/v1/models", {"X-Request-Id": "abc-1.2_3"});
  assert.equal(given.headers["x-request-id"], "abc-1.2_3");
  const ids = new Set();
  for (const id of [undefined, "a".repeat(129), "<script>", "a b", "é"]) {
    const {headers} = await get(server, "/nothing", id ? {"X-Request-Id": id} : {});
    assert.match(headers["x-request-id"], /^[A-Za-z0-9._-]{1,128}$/);
    assert.equal(headers["cache-control"], "no-store");
    assert.equal(headers["x-content-type-options"], "nosniff");
    ids.add(headers["x-request-id"]);
  }
  assert.equal(ids.size, 5);
  const message = await post(server, kMessages, {max_tokens: 1}, {"X-Request-Id": "mine"});
  assert.equal(message.json.request_id, "mine");
});

test("HEAD, unknown paths and methods", async () => {
  const head = await request(server, "HEAD", "/v1/models");
  assert.equal(head.status, 200);
  assert.equal(head.text, "");
  assert.equal((await get(server, kChat)).status, 405);
  assert.equal((await post(server, "/v1/models", {})).status, 405);
  assert.equal((await request(server, "DELETE", "/v1/models")).status, 405);
  assert.equal((await get(server, "/v1/nothing")).status, 404);
  assert.equal((await get(server, "/v1/models?x=1")).status, 200);
  assert.equal(
      (await request(server, "OPTIONS", "/v1/models")).headers["access-control-allow-origin"],
      undefined);
});

test("G25 no path leads out of the page's files", async () => {
  for (const path
           of ["/../etc/passwd", "/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
               "/assets/../../../etc/passwd", "/assets/..%5c..%5cetc", "//etc/passwd",
               "/etc/passwd", "/%00", "/index.html%00.js", "/./index.html", "/%c0%ae%c0%ae/",
               "/proc/self/environ", "/assets/%2e%2e", "/\\..\\etc", "/%", "/%zz"]) {
    const {status, text} =
        await exchange(server, [`GET ${path} HTTP/1.1\r\n${kHead(server)}${kLast}\r\n`]);
    assert.ok([400, 404].includes(status), `${path}: ${status}`);
    assert.doesNotMatch(text, /root:|PATH=/);
  }
});

test("G25 an image is refused whether its file exists or not, in the same words", async () => {
  const ask = async (url) => {
    const {status, json} = await post(
        server, kChat,
        {messages: [{role: "user", content: [{type: "image_url", image_url: {url}}]}]});
    assert.equal(status, 400);
    assert.equal(json.error.param, "messages[0].content[0].type");
    return json.error.message;
  };
  const messages = new Set();
  for (const url
           of ["file:///etc/passwd", "file:///no/such/file", "../../etc/passwd",
               "http://127.0.0.1:1/", "data:image/png;base64,AAAA", ""]) {
    messages.add(await ask(url));
  }
  assert.equal(messages.size, 1);
  for (const [type, more] of [["input_audio", {}], ["file", {}], ["video", {}]]) {
    const part = {type, [type]: more};
    const {json} = await post(server, kChat, {messages: [{role: "user", content: [part]}]});
    assert.equal(json.error.param, "messages[0].content[0].type");
  }
  const message = await post(server, kMessages, {
    max_tokens: 5,
    messages: [
      {role: "user", content: [{type: "image", source: {type: "url", url: "file:///etc/passwd"}}]}
    ]
  });
  assert.equal(message.status, 400);
  assert.match(message.json.error.message, /messages\[0\]\.content\[0\]\.type/);
});

test("G26 pages of other origins get no permission", async () => {
  const evil = {Origin: "https://evil.example"};
  for (const s of [server, locked]) {
    for (const [method, path, body] of [
             ["GET", "/health"], ["OPTIONS", kChat], ["POST", kChat, kBody]]) {
      const {headers} = await request(
          s, method, path, body,
          {...evil, "Access-Control-Request-Method": "POST", Authorization: "Bearer first-key"});
      assert.equal(headers["access-control-allow-origin"], undefined, `${method} ${path}`);
      assert.equal(headers["access-control-allow-credentials"], undefined);
    }
  }
  const good = {Origin: "https://app.example", Authorization: "Bearer second-key"};
  const {headers} = await get(locked, "/v1/models", good);
  assert.equal(headers["access-control-allow-origin"], "https://app.example");
  assert.equal(headers["access-control-allow-credentials"], undefined);
  assert.match(headers.vary, /Origin/i);
  const asked = await request(
      locked, "OPTIONS", kChat, undefined,
      {Origin: "https://app.example", "Access-Control-Request-Method": "POST"});
  assert.ok([200, 204].includes(asked.status));
  assert.equal(asked.headers["access-control-allow-origin"], "https://app.example");
  for (const origin
           of ["null", "https://app.example.evil.example", "http://app.example",
               "https://APP.example:444"]) {
    const refused = await get(locked, "/v1/models", {...good, Origin: origin});
    assert.equal(refused.headers["access-control-allow-origin"], undefined, origin);
  }
});

test("G26 a page cannot send what is no JSON, nor by a name of its own", async () => {
  for (const type of
           ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "",
            "application/jsonx", "text/json"]) {
    const {status} = await post(server, kChat, kBody, {"Content-Type": type});
    assert.equal(status, 415, type);
  }
  for (const type of
           ["application/json; charset=utf-8", "Application/JSON", "application/json ;x=1"]) {
    assert.equal((await post(server, kChat, kBody, {"Content-Type": type})).status, 200, type);
  }
  for (const [host, status] of [
           ["evil.example", 403], [`evil.example:${server.port}`, 403],
           ["localhost.evil.example", 403], ["127.0.0.1.evil.example", 403], ["", [400, 403]],
           ["localhost", 200], [`LocalHost:${server.port}`, 200], ["localhost.", 200],
           ["[::1]:80", 200], ["127.0.0.1", 200]]) {
    const answer =
        await exchange(server, [`GET /v1/models HTTP/1.1\r\nHost: ${host}\r\n${kLast}\r\n`]);
    assert.ok([status].flat().includes(answer.status), `${host}: ${answer.status}`);
  }
  const absolute = await exchange(
      server, [`GET http://evil.example/v1/models HTTP/1.1\r\n${kHead(server)}\r\n`]);
  assert.equal(absolute.status, 403);
  const allowed = await get(locked, "/health", {Host: "models.example"});
  assert.equal(allowed.status, 200);
});

test("Without a right key everything but /health is refused in the same words", async () => {
  const texts = new Set();
  for (const headers
           of [{}, {Authorization: "Bearer "}, {Authorization: "Bearer wrong"},
               {Authorization: "first-key"}, {Authorization: "Basic first-key"},
               {"x-api-key": "first-ke"}, {"x-api-key": "first-key1"}, {"x-api-key": "# keys"},
               {"x-api-key": "x".repeat(10_000)}]) {
    for (const path of ["/v1/models", "/metrics", "/api/live"]) {
      const {status, json} = await get(locked, path, headers);
      assert.equal(status, 401, `${path} ${JSON.stringify(headers).slice(0, 60)}`);
      texts.add(JSON.stringify(json));
    }
    assert.equal((await post(locked, kChat, kBody, headers)).status, 401);
    assert.equal((await get(locked, "/health", headers)).status, 200);
  }
  assert.equal(texts.size, 1);
  for (const key of ["first-key", "second-key", "third-key"]) {
    assert.equal((await get(locked, "/v1/models", {Authorization: `Bearer ${key}`})).status, 200);
    assert.equal((await get(locked, "/v1/models", {"x-api-key": key})).status, 200);
  }
  // The body of a request without a key is not waited for.
  const {status, ms} =
      await exchange(locked, [`${postHead("Content-Length: 100000\r\n")}\r\n`], {quietMs: 2000});
  assert.equal(status, 401);
  assertSoon(ms, 2000);
});

test("After all this the server answers the same bits and has not grown", async () => {
  await waitForLoad(server, isIdle);
  const answer = await chat(server, {messages: userSays(kPrompt)});
  assert.equal(`${answer.message.content}\n`, run(["--temperature", "0", kPrompt]));
  const grown = server.residentBytes() - residentBefore;
  assertGrowth(grown, 40e6);
});
