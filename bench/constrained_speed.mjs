// How fast answers come that follow a JSON schema, against those that follow nothing, from one server
// in one run, taking turns: node bench/constrained_speed.mjs build/hillstar [STREAMS] [ROUNDS]
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const [program, streams = "1", rounds = "9"] = process.argv.slice(2);
const kTokens = 200;
// An array that cannot end before the limit on tokens does.
const kSchema = {
  type: "array", minItems: 60,
  items: {
    type: "object", required: ["word", "kind", "letters"], additionalProperties: false,
    properties: { word: { type: "string" }, kind: { enum: ["noun", "verb"] },
      letters: { type: "integer", minimum: 1, maximum: 30 } },
  },
};
const kFormat = { type: "json_schema", json_schema: { name: "words", schema: kSchema } };

const server = spawn(program, ["serve", "--port", "0", "--log-level", "warn"],
  { stdio: ["ignore", "pipe", "inherit"] });
let url;
for await (const line of createInterface({ input: server.stdout })) {
  url = / at (http:\S+)\/$/.exec(line)[1];
  break;
}

// Seconds a token behind the first one.
async function answer(extra) {
  const body = { messages: [{ role: "user", content: "List words." }], stream: true,
    stream_options: { include_usage: true }, max_tokens: kTokens, ...extra };
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
  });
  let text = "";
  let first = 0;
  for await (const bytes of response.body) {
    text += Buffer.from(bytes).toString();
    if (!first && text.includes('"content":"', text.indexOf('"content":""') + 12)) {
      first = performance.now();
    }
  }
  const tokens = Number(/"completion_tokens":(\d+)/.exec(text)[1]);
  return (performance.now() - first) / 1000 / (tokens - 1);
}

// The mean of so many at once.
async function together(extra) {
  const all = await Promise.all(Array.from({ length: Number(streams) }, () => answer(extra)));
  return all.reduce((sum, x) => sum + x, 0) / all.length;
}

const ends = { 0: -100, 7: -100, 9: -100 };  // the built-in model's end tokens
const ratios = [];
for (let round = 0; round < Number(rounds); ++round) {
  const plain = await together({ logit_bias: ends });
  const constrained = await together({ response_format: kFormat });
  if (round > 0) ratios.push(plain / constrained);  // the first finds the masks
}
ratios.sort((a, b) => a - b);
console.log(`${streams} at once: constrained answers come at ${ratios[ratios.length >> 1].toFixed(3)} ` +
  `times the speed of others (${ratios[0].toFixed(3)} to ${ratios.at(-1).toFixed(3)})`);
server.kill("SIGTERM");
