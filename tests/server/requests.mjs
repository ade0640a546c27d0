// Asks a server by HTTP as clients do, or by raw bytes as nobody should.
import http from "node:http";
import net from "node:net";

import {kSlowness} from "./program.mjs";

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// One request on a connection of its own. `body` is an object, sent as JSON, or bytes as they are.
export function request(server, method, path, body, headers = {}) {
  const isJson = body !== undefined && typeof body !== "string" && !Buffer.isBuffer(body);
  const bytes = isJson ? JSON.stringify(body) : body;
  return new Promise((resolve, reject) => {
    const made = http.request(
        {
          host: server.host,
          port: server.port,
          method,
          path,
          agent: false,
          headers: {
            ...(bytes === undefined ? {} : {
              "Content-Type": "application/json",
              "Content-Length": Buffer.byteLength(bytes)
            }),
            ...headers,
          },
        },
        (answer) => {
          const chunks = [];
          answer.on("data", (chunk) => chunks.push(chunk));
          answer.on("error", reject);
          answer.on("end", () => {
            const text = Buffer.concat(chunks).toString("utf8");
            let json;
            try {
              json = JSON.parse(text);
            } catch {
              json = undefined;
            }
            resolve({status: answer.statusCode, headers: answer.headers, text, json});
          });
        });
    made.on("error", reject);
    made.end(bytes);
  });
}

export const get = (server, path, headers) => request(server, "GET", path, undefined, headers);
export const post = (server, path, body, headers) => request(server, "POST", path, body, headers);
export const kChat = "/v1/chat/completions";
export const kCompletions = "/v1/completions";
export const kMessages = "/v1/messages";

// The built-in model's control tokens cannot be drawn: an answer as long as max_tokens.
export const kEndless = {
  logit_bias: Object.fromEntries(Array.from({length: 10}, (_, id) => [id, -100])),
};

export const userSays = (text) => [{role: "user", content: text}];

// The chat completion's choice. Fails loudly where there is none.
export async function chat(server, body) {
  const answer = await post(server, kChat, {temperature: 0, ...body});
  if (answer.status !== 200) throw new Error(`status ${answer.status}: ${answer.text}`);
  return {...answer.json.choices[0], usage: answer.json.usage, whole: answer.json};
}

// Events and comments of a body of server-sent events.
export function readEvents(text) {
  const events = [], comments = [];
  for (const block of text.split("\n\n")) {
    if (block === "") continue;
    let name, data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith(":"))
        comments.push(line.slice(1).trim());
      else if (line.startsWith("event: "))
        name = line.slice(7);
      else if (line.startsWith("data: "))
        data += line.slice(6);
      else
        throw new Error(`a line of an event stream is ${JSON.stringify(line)}`);
    }
    if (data !== "") events.push({name, data});
  }
  return {events, comments};
}

// A streamed chat completion put together again, with its chunks.
export async function streamChat(server, body) {
  const answer = await post(server, kChat, {temperature: 0, stream: true, ...body});
  if (answer.status !== 200) throw new Error(`status ${answer.status}: ${answer.text}`);
  const {events, comments} = readEvents(answer.text);
  const last = events.pop();
  if (last?.data !== "[DONE]") throw new Error(`the stream ends with ${JSON.stringify(last)}`);
  const chunks = events.map(({data}) => JSON.parse(data));
  const made = {
    content: "",
    reasoning: "",
    tool_calls: [],
    pieces: [],
    chunks,
    comments,
    finish_reason: null
  };
  for (const chunk of chunks) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) made.usage = chunk.usage;
    for (const {delta, finish_reason} of chunk.choices) {
      made.finish_reason ??= finish_reason;
      if (delta.content) made.pieces.push(delta.content);
      made.content += delta.content ?? "";
      made.reasoning += delta.reasoning_content ?? "";
      for (const call of delta.tool_calls ?? []) {
        const known =
            made.tool_calls[call.index] ??= {id: call.id, name: call.function.name, arguments: ""};
        known.arguments += call.function.arguments ?? "";
      }
    }
  }
  return made;
}

// Values of /metrics by name with labels, as they stand there.
export async function metrics(server, headers) {
  const {text} = await get(server, "/metrics", headers);
  const values = {};
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+(?:\{.*\})?) (\S+)$/.exec(line);
    if (match) values[match[1]] = Number(match[2]);
  }
  return values;
}

export async function load(server) {
  const m = await metrics(server);
  return {
    running: m['hillstar_answers{state="running"}'],
    waiting: m['hillstar_answers{state="waiting"}'],
    paused: m['hillstar_answers{state="paused"}'],
    pages: m['hillstar_kv_pages{state="used"}'],
    promptTokens: m['hillstar_computed_tokens{kind="prompt"}'],
    answerTokens: m['hillstar_computed_tokens{kind="answer"}'],
    steps: m.hillstar_steps,
    cancelled: m['hillstar_requests_total{outcome="cancelled"}'],
  };
}

// Waits until `isReached` of the server's load; how long that took.
export async function waitForLoad(server, isReached, patienceMs = 10_000) {
  const began = performance.now();
  for (;;) {
    const now = await load(server);
    const ms = performance.now() - began;
    if (isReached(now)) return {ms, now};
    if (ms > patienceMs * kSlowness)
      throw new Error(`after ${ms} ms the load is ${JSON.stringify(now)}`);
    await sleep(1);
  }
}

export const isIdle = (now) =>
    now.running === 0 && now.waiting === 0 && now.paused === 0 && now.pages === 0;

// Sends the pieces (numbers are pauses in ms) and gives what came until the server closed, or until
// nothing came for `quietMs`.
export function exchange(server, pieces, {quietMs = 300, limitMs = 20_000} = {}) {
  return new Promise((resolve) => {
    const socket = net.connect(server.port, server.host);
    const began = performance.now();
    let text = "", isClosed = false, hasEnded = false, quiet;
    const end = () => {
      hasEnded = true;
      clearTimeout(quiet);
      clearTimeout(limit);
      socket.destroy();
      resolve({
        text,
        isClosed,
        ms: performance.now() - began,
        status: Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1] ?? 0)
      });
    };
    const limit = setTimeout(end, limitMs);
    const restart = () => {
      clearTimeout(quiet);
      if (!hasEnded) quiet = setTimeout(end, quietMs);
    };
    socket.on("data", (bytes) => {
      text += bytes.toString("latin1");
      restart();
    });
    socket.on("error", () => {});
    socket.on("close", () => {
      isClosed = true;
      end();
    });
    socket.on("connect", async () => {
      for (const piece of [pieces].flat()) {
        if (hasEnded) return;
        if (typeof piece === "number")
          await sleep(piece);
        else if (!socket.destroyed)
          socket.write(piece);
      }
      restart();
    });
  });
}

export const kHead = (server) => `Host: ${server.host}:${server.port}\r\n`;
export const kLast = "Connection: close\r\n";

// A generator of numbers from 0 to 1 (mulberry32).
export function randomFrom(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

// A text of about so many tokens that no other seed begins with.
export function longText(tokens, seed) {
  const words = [
    "river", "stone", "green", "seven", "walk", "paper", "north", "light", "small", "bread",
    "cloud", "metal", "story", "quick", "music", "chair"
  ];
  const random = randomFrom(seed);
  const made = [`Number ${seed}.`];
  for (let i = 0; i < tokens; ++i) made.push(words[Math.floor(random() * words.length)]);
  return made.join(" ");
}
