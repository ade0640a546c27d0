// Starts `hillstar serve` for tests, with a port of its own, and asks the same program without a
// server. A test file is run as `node FILE PATH/TO/hillstar [sanitized]`.
import assert from "node:assert/strict";
import {spawn, spawnSync} from "node:child_process";
import {readFileSync} from "node:fs";

const program = process.argv[2];
// A build with thread or address checks is many times slower, and what it keeps says nothing.
const isSanitized = process.argv[3] === "sanitized";
export const kSlowness = isSanitized ? 30 : 1;
if (!program) {
  console.error(`node ${process.argv[1]} PATH/TO/hillstar [sanitized]`);
  process.exit(2);
}

const kStartMs = 60_000 * kSlowness;
const kStopMs = 60_000 * kSlowness;

class Server {
  constructor(child) {
    this.child = child;
    this.log = "";
    child.stderr.on("data", (bytes) => {
      this.log = (this.log + bytes).slice(-1_000_000);
    });
    this.ended = new Promise((resolve) => child.on("exit", (code, signal) => {
      this.exit = {code, signal};
      resolve(this.exit);
    }));
  }

  get pid() {
    return this.child.pid;
  }
  get isAlive() {
    return this.exit === undefined;
  }

  residentBytes() {
    const status = readFileSync(`/proc/${this.pid}/status`, "utf8");
    return 1024 * Number(/VmRSS:\s+(\d+) kB/.exec(status)[1]);
  }

  // The processor's time that the server has taken so far, whatever else the machine does.
  processorMs() {
    const [user, system] = readFileSync(`/proc/${this.pid}/stat`, "utf8").split(" ").slice(13, 15);
    const kMsPerTick = 10;
    return kMsPerTick * (Number(user) + Number(system));
  }

  // Ends the server as an operator would, and says how it ended.
  async stop() {
    if (this.isAlive) this.child.kill("SIGTERM");
    const timer = setTimeout(() => this.child.kill("SIGKILL"), kStopMs);
    const exit = await this.ended;
    clearTimeout(timer);
    return exit;
  }
}

// Waits until the server says where it is.
export async function startServer(options = []) {
  const args = ["serve", "--config", "/dev/null", "--port", "0", "--threads", "2", ...options];
  const child = spawn(program, args, {stdio: ["ignore", "pipe", "pipe"]});
  const server = new Server(child);
  let out = "";
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no server after ${kStartMs} ms`)), kStartMs);
    child.stdout.on("data", (bytes) => {
      out += bytes;
      const match = /^hillstar serves (\S+) at http:\/\/([^/]+):(\d+)\/$/m.exec(out);
      if (!match) return;
      [, server.model, server.host, server.port] = match;
      server.port = Number(server.port);
      clearTimeout(timer);
      resolve();
    });
    server.ended.then((exit) => {
      clearTimeout(timer);
      reject(new Error(`the server ended with ${JSON.stringify(exit)}:\n${server.log}`));
    });
  });
  return server;
}

// What `hillstar run` prints.
export function run(args) {
  const ran = spawnSync(
      program, ["run", "--config", "/dev/null", "--threads", "2", ...args], {encoding: "utf8"});
  if (ran.status !== 0) throw new Error(`hillstar run: ${ran.stderr}`);
  return ran.stdout;
}

export function assertSoon(ms, limitMs, what = "it") {
  assert.ok(ms < limitMs * kSlowness, `${what} took ${ms} ms; ${limitMs} are the most`);
}

// `grown` are bytes that the server holds more than before.
export function assertGrowth(grown, limit, what = "the server") {
  assert.ok(isSanitized || grown < limit, `${what} grew by ${grown} bytes; ${limit} are the most`);
}
