// Starts `hillstar serve` with the built-in model for one file of tests, and stops it behind them.
// The program's path is the file's first argument: node FILE.test.mjs build/hillstar
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { after, before } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

const kStartMs = 60_000; // built with thread checks it takes a while
const kFreeMs = 30_000;

class Server {
  key = ""; // what fetch sends
  #process;
  #log = "";

  // Becomes ready, or throws with what the program said.
  async start(options) {
    const [program] = process.argv.slice(2);
    assert.ok(program, "give the program: node FILE.test.mjs build/hillstar");
    this.#process = spawn(program, ["serve", "--port", "0", ...options], {
      stdio: ["ignore", "pipe", "pipe"],
    });
    process.on("exit", () => this.#process.kill("SIGKILL"));
    this.#process.stderr.on("data", (text) => (this.#log += text));
    const said = await this.#readyLine();
    const match = /^hillstar serves (\S+) at (http:\/\/127\.0\.0\.1:\d+)\/$/.exec(said ?? "");
    assert.ok(match, `the server said ${JSON.stringify(said)} and logged:\n${this.#log}`);
    [, this.model, this.url] = match;
  }

  async #readyLine() {
    const lines = createInterface({ input: this.#process.stdout });
    const end = AbortSignal.timeout(kStartMs);
    end.addEventListener("abort", () => lines.close());
    for await (const line of lines) return line;
    return null;
  }

  // A server that crashed, or that a signal does not end orderly, fails the file.
  async stop() {
    const { exitCode, signalCode } = this.#process;
    assert.ok(exitCode === null && signalCode === null,
      `the server ended by itself (${exitCode ?? signalCode}):\n${this.#log}`);
    const ended = new Promise((resolve) => this.#process.on("exit", resolve));
    this.#process.kill("SIGTERM");
    assert.equal(await ended, 0, this.#log);
  }

  fetch(path, body, headers = {}) {
    const method = body === undefined ? "GET" : "POST";
    const content = body === undefined ? {} : { "content-type": "application/json" };
    if (this.key) content["x-api-key"] = this.key;
    return fetch(this.url + path, {
      method, headers: { ...content, ...headers }, body: body && JSON.stringify(body),
    });
  }

  async computedPromptTokens() {
    const text = await (await this.fetch("/metrics")).text();
    return Number(/^hillstar_computed_tokens\{kind="prompt"\} (\S+)$/m.exec(text)[1]);
  }

  // {running, waiting, paused}, as /metrics has it.
  async answers() {
    const text = await (await this.fetch("/metrics")).text();
    const counts = {};
    for (const [, state, value] of text.matchAll(/^hillstar_answers\{state="(\w+)"\} (\S+)$/gm)) {
      counts[state] = Number(value);
    }
    assert.deepEqual(Object.keys(counts).sort(), ["paused", "running", "waiting"], text);
    return counts;
  }

  // The time in ms until no answer has a place; fails when one keeps it.
  async untilFree() {
    return this.#until((counts) => Object.values(counts).every((count) => count === 0));
  }
  async untilBusy() {
    return this.#until((counts) => counts.running > 0);
  }
  async #until(condition) {
    const began = performance.now();
    for (;;) {
      const counts = await this.answers();
      const passed = performance.now() - began;
      if (condition(counts)) return passed;
      assert.ok(passed < kFreeMs, `after ${kFreeMs} ms there are ${JSON.stringify(counts)}`);
      await sleep(5);
    }
  }
}

// Registers the start before the calling file's tests and the end behind them. The server is ready
// inside of tests only.
export function serve(...options) {
  const server = new Server();
  before(() => server.start(options));
  after(() => server.stop());
  return server;
}
