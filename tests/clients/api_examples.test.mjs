// Runs the examples of docs/api.md: every block of `sh` against a fresh server, in their order, and
// compares what they print with the block behind it. With the argument --update behind the program's
// path, writes that block instead.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { test } from "node:test";
import { promisify } from "node:util";

import { serve } from "./serve.mjs";

const kPage = new URL("../../docs/api.md", import.meta.url);
const kExample = /```sh\n([^`]+)```\n\n```(\w+)\n([^`]*)```/g;
const kAddress = "http://127.0.0.1:8080";

const run = promisify(execFile);
const server = serve();

// Ids and times differ from run to run.
function lasting(text) {
  return text
    .replace(/"(chatcmpl-|cmpl-|msg_|call_|toolu_)[0-9a-f_]+"/g, '"$1..."')
    .replace(/"created":\d+/g, '"created":0');
}

async function print(command) {
  const { stdout } = await run("bash", ["-c", command.replaceAll(kAddress, server.url)]);
  return `${lasting(stdout).trimEnd()}\n`;
}

test("the examples of docs/api.md print what stands there", async () => {
  const page = await readFile(kPage, "utf8");
  const examples = [...page.matchAll(kExample)];
  assert.ok(examples.length >= 6, `found ${examples.length}`);
  let updated = page;
  for (const [whole, command, language, expected] of examples) {
    const printed = await print(command);
    if (process.argv[3] === "--update") {
      const fresh = `\`\`\`sh\n${command}\`\`\`\n\n\`\`\`${language}\n${printed}\`\`\``;
      updated = updated.replace(whole, () => fresh);
    } else {
      assert.equal(printed, expected, command);
    }
  }
  if (updated !== page) await writeFile(kPage, updated);
});
