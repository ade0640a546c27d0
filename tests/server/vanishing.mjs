// Clients that go away at any moment: a seeded crowd of them for tests, and as a program
//   node vanishing.mjs PATH/TO/hillstar [CLIENTS [SEED]]
// which says what was left behind and how long a place stays taken.
import net from "node:net";
import {fileURLToPath} from "node:url";

import {startServer} from "./program.mjs";
import {
  chat, isIdle, kChat, kEndless, kHead, load, longText, randomFrom, sleep, userSays, waitForLoad,
} from "./requests.mjs";

// Where a client goes: at a share of its head or body, some time after its request, or after some
// of the answer's events. It closes, resets, or closes its half of the connection.
export const kMoments = ["head", "body", "wait", "prompt", "stream", "whole"];
const kWays = ["destroy", "resetAndDestroy", "end"];

function planOf(random, i) {
  const at = kMoments[Math.floor(random() * kMoments.length)];
  return {
    at,
    way: kWays[Math.floor(random() * kWays.length)],
    share: random(),
    afterMs: Math.floor(random() * 150),
    afterEvents: 1 + Math.floor(random() * 12),
    body: {
      messages:
          userSays(longText(at === "prompt" ? 1500 + Math.floor(random() * 1500) : 20, i + 1)),
      stream: at !== "whole" && at !== "wait",
      max_tokens: 400,
      temperature: 0,
      ...kEndless,
    },
  };
}

function vanish(server, plan) {
  return new Promise((resolve) => {
    const body = JSON.stringify(plan.body);
    const head = `POST ${kChat} HTTP/1.1\r\n${kHead(server)}Content-Type: application/json\r\n` +
        `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n`;
    const socket = net.connect(server.port, server.host);
    const go = () => {
      if (socket.destroyed) return;
      socket[plan.way]();
      // After a half-close the server closes the connection.
      if (plan.way === "end") socket.resume();
    };
    socket.on("error", () => {});
    socket.on("close", resolve);
    socket.on("connect", async () => {
      if (plan.at === "head") {
        socket.write(head.slice(0, Math.floor(plan.share * head.length)), go);
      } else if (plan.at === "body") {
        socket.write(head + body.slice(0, Math.floor(plan.share * body.length)), go);
      } else {
        socket.write(head + body);
        if (plan.at !== "stream") return setTimeout(go, plan.afterMs);
        let events = 0;
        socket.on("data", (bytes) => {
          events += bytes.toString("latin1").split("data: ").length - 1;
          if (events >= plan.afterEvents) go();
        });
      }
    });
  });
}

// So many clients, `atOnce` at a time.
export async function vanishMany(server, count, seed, atOnce = 32) {
  const random = randomFrom(seed);
  const plans = Array.from({length: count}, (_, i) => planOf(random, seed * 1e6 + i));
  await Promise.all(Array.from({length: atOnce}, async () => {
    for (let plan; (plan = plans.pop()) !== undefined;) await vanish(server, plan);
  }));
}

// From a client's close during a long prompt to its place being free, and how long a step and a
// layer take meanwhile; in ms.
export async function measureRelease(server, tokens, seed, way) {
  const body =
      JSON.stringify({messages: userSays(longText(tokens, seed)), stream: true, max_tokens: 5});
  const socket = net.connect(server.port, server.host);
  socket.on("error", () => {});
  socket.write(
      `POST ${kChat} HTTP/1.1\r\n${kHead(server)}Content-Type: application/json\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
  const progress = [];
  await new Promise((resolve, reject) => {
    socket.on("close", () => reject(new Error("the server closed the connection")));
    socket.on("data", (bytes) => {
      for (const match of bytes.toString("latin1").matchAll(/: prompt (\d+)\/(\d+)/g)) {
        progress.push({done: Number(match[1]), total: Number(match[2]), at: performance.now()});
      }
      if (progress.length >= 4) resolve();
    });
  });
  const stepMs = (progress.at(-1).at - progress[0].at) / (progress.length - 1);
  await sleep(stepMs * ((seed * 0.37) % 0.8));  // somewhere within the next step
  socket.removeAllListeners("close");
  socket[way]();
  const {ms, now} = await waitForLoad(server, isIdle);
  return {ms, stepMs, done: progress.at(-1).done, total: progress.at(-1).total, now};
}

async function main(count, seed) {
  const server = await startServer(["--max-sequences", "16"]);
  const ask = {messages: userSays("List the first 12 prime numbers.")};
  const before = await chat(server, ask);
  await vanishMany(server, Math.ceil(count / 5), seed + 1);  // takes what is taken for good
  await waitForLoad(server, isIdle, 30_000);
  const residentBefore = server.residentBytes();
  const began = performance.now();
  await vanishMany(server, count, seed);
  const left = await waitForLoad(server, isIdle, 30_000);
  const seconds = (performance.now() - began) / 1000;
  const resident = server.residentBytes();
  const after = await chat(server, ask);
  const same = after.message.content === before.message.content;
  console.log(
      `${count} clients vanished in ${seconds.toFixed(1)} s; ${
          left.ms.toFixed(1)} ms later nothing ` +
      `ran, waited or held pages; the next answer has ${same ? "the same" : "OTHER"} bits; ` +
      `memory ${(residentBefore / 1e6).toFixed(0)} -> ${(resident / 1e6).toFixed(0)} MB`);
  for (const way of ["resetAndDestroy", "destroy"]) {
    const released = [];
    for (let i = 0; i < 10; ++i) released.push(await measureRelease(server, 12_000, seed + i, way));
    const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
    const times = released.map(({ms}) => ms);
    console.log(
        `${way} in a prompt of ${released[0].total} tokens: free after ` +
        `${median(times).toFixed(1)} ms, ${Math.max(...times).toFixed(1)} at most; a step takes ` +
        `${median(released.map((r) => r.stepMs)).toFixed(1)} ms`);
  }
  const {cancelled} = await load(server);
  const exit = await server.stop();
  console.log(
      `${cancelled} requests were cancelled; the server ended with ${JSON.stringify(exit)}`);
  if (!same || exit.code !== 0) process.exit(1);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await main(Number(process.argv[3] ?? 1000), Number(process.argv[4] ?? 1));
}
