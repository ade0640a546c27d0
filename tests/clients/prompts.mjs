// What the built-in model has learnt, so that tests can tell a right answer from a wrong one.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

export const user = (content) => [{ role: "user", content }];

export const kRiver = "What is a river?";
export const kRiverAnswer = "A river is a stream: a large stream of water (larger than a creek).";
export const kCount = "Count from 1 to 25."; // some 70 tokens
export const kSum = "What is 12 + 30 + 7?"; // reasons about these, where it may
// Two-, three- and four-byte characters, and one of several code points.
export const kUnicode = "naïve 河川 🦊 👩‍🚀 ж";

const number = { type: "integer" };
const text = { type: "string" };
const tool = (name, description, properties) => ({
  name, description,
  parameters: { type: "object", properties, required: Object.keys(properties) },
});

// The tools it was trained to call, in the order of kTools' names.
export const kTools = [
  tool("get_weather", "Get the current weather of a city.", { city: text }),
  tool("get_time", "Get the local time in a city.", { city: text }),
  tool("define", "Look a word up in the dictionary.", { word: text }),
  tool("add", "Add two whole numbers.", { a: number, b: number }),
];
export const kOpenAiTools = kTools.map((each) => ({ type: "function", function: each }));
export const kAnthropicTools = kTools.map(({ parameters, ...rest }) => ({
  ...rest, input_schema: parameters,
}));

// Prompts, the calls that they make, what is sent back, and the answers to that.
export const kToolTurns = [
  {
    ask: "What is the weather in Paris?", name: "get_weather", input: { city: "Paris" },
    result: '{"sky": "sunny", "celsius": 21}', answer: "It is sunny in Paris, 21 degrees.",
  },
  {
    ask: "Add 12 and 30.", name: "add", input: { a: 12, b: 30 },
    result: "42", answer: "12 + 30 = 42",
  },
];

// A note that is long enough for its pages to be kept for the next request.
export function longNote() {
  const lines = [];
  for (let i = 0; i < 60; ++i) lines.push(`Verse ${i} of the note says that day ${i} was long.`);
  return `Read this note.\n${lines.join(" ")}\nThe code of Clara is 4711.`;
}

const kTokenizer = JSON.parse(
  readFileSync(new URL("../../models/pocket/tokenizer.json", import.meta.url), "utf8"));

// The id of one of the model's tokens, for logit_bias.
export function tokenId(text) {
  const added = kTokenizer.added_tokens.find(({ content }) => content === text);
  const id = added?.id ?? kTokenizer.model.vocab[text.replaceAll(" ", "\u0120")];
  assert.ok(id !== undefined, `${JSON.stringify(text)} is no token`);
  return id;
}

// With this bias an answer goes on until its limit.
export const kEndless = Object.fromEntries(
  ["<|endoftext|>", "<|user|>", "<|observation|>"].map((text) => [tokenId(text), -100]));
