// Writes what Hugging Face's JavaScript packages make of this folder's templates, conversations and
// texts, for reference_test.cc to compare.
//   node reference.mjs TOKENIZER.json SNIPPETS.json OUT.json
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { Template } from "@huggingface/jinja";
import { Tokenizer } from "@huggingface/tokenizers";

const [tokenizerPath, snippetsPath, outPath] = process.argv.slice(2);
const here = dirname(fileURLToPath(import.meta.url));
const readJson = (path) => JSON.parse(readFileSync(path, "utf8"));

// A conversation as apply_chat_template takes it.
function templateVariables({ messages, options = {} }) {
  const tools = (options.tools ?? []).map((tool) =>
    "function" in tool ? tool : { type: "function", function: tool });
  const variables = {
    messages: messages.map((message) => {
      const { tool_calls, ...rest } = message;
      if (!tool_calls) return rest;
      return {
        ...rest,
        tool_calls: tool_calls.map((call) => ({ type: "function", function: call })),
      };
    }),
    tools: tools.length > 0 ? tools : null,
    documents: null,
    add_generation_prompt: options.add_generation_prompt ?? true,
    enable_thinking: options.thinking ?? true,
    clear_thinking: options.clear_thinking ?? true,
  };
  if (options.reasoning_effort) variables.reasoning_effort = options.reasoning_effort;
  return variables;
}

function renderAll(conversations) {
  const renders = [];
  for (const file of readdirSync(join(here, "templates")).sort()) {
    const template = new Template(readFileSync(join(here, "templates", file), "utf8"));
    conversations.forEach((conversation, index) => {
      renders.push({ template: file, conversation: index,
                     text: template.render(templateVariables(conversation)) });
    });
  }
  return renders;
}

function renderSnippets({ variables, snippets }) {
  return snippets.map(({ template }) => {
    try {
      return new Template(template).render(structuredClone(variables));
    } catch (error) {
      return null; // a construct that the package does not know
    }
  });
}

// A generator of numbers from 0 to 1 (mulberry32).
function randomFrom(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

// Blocks whose characters have been assigned for many years, so that every library's tables agree.
const BLOCKS = [
  [0x20, 0x7e], [0x20, 0x7e], [0x20, 0x7e], [0x09, 0x0d], [0x00, 0x1f], [0xa0, 0xff],
  [0x100, 0x24f], [0x250, 0x36f], [0x391, 0x3c9], [0x400, 0x45f], [0x5d0, 0x5ea], [0x621, 0x64a],
  [0x660, 0x669], [0x905, 0x939], [0x966, 0x96f], [0xe01, 0xe30], [0x10d0, 0x10f0],
  [0x2000, 0x200f], [0x2010, 0x2027], [0x2028, 0x202f], [0x205f, 0x205f], [0x2070, 0x2079],
  [0x2100, 0x214f], [0x2160, 0x2188], [0x2200, 0x22ff], [0x2460, 0x249b], [0x2500, 0x257f],
  [0x2e80, 0x2e99], [0x3000, 0x301f], [0x3041, 0x3096], [0x30a1, 0x30fa], [0x4e00, 0x9fa5],
  [0xac00, 0xd7a3], [0xe000, 0xe010], [0xff01, 0xff5e], [0x1d400, 0x1d454], [0x1f300, 0x1f320],
  [0x1f600, 0x1f640], [0x20000, 0x20100], [0xe0001, 0xe0001], [0x16a0, 0x16ea], [0x1680, 0x1680],
];
// JavaScript's \s holds U+FEFF and lacks U+0085; its case-blind 's does not match U+017F. The Rust
// tokenizer, which counts, differs there.
const EXCLUDED = new Set([0x85, 0xfeff, 0x17f]);

function randomText(random) {
  let text = "";
  const length = Math.floor(random() * 40);
  const few = Array.from({ length: 3 }, () => BLOCKS[Math.floor(random() * BLOCKS.length)]);
  for (let i = 0; i < length; ++i) {
    const [first, last] = random() < 0.7 ? few[Math.floor(random() * few.length)]
                                         : BLOCKS[Math.floor(random() * BLOCKS.length)];
    const code = first + Math.floor(random() * (last - first + 1));
    if (!EXCLUDED.has(code)) text += String.fromCodePoint(code);
  }
  return text;
}

// Pieces that meet at every kind of border.
const PIECES = [" ", "  ", "\n", "\r\n", "\t", "a", "Zz", "'s", "'LL", "'", "12", "1234", ".", "!?",
                "é", "中", "文字", "🙂", "<|user|>", "<think>", "<", "|>", "\u3000", "\u00a0", "_", "/"];

function allTexts(lines) {
  const random = randomFrom(20250101);
  const texts = [...lines, lines.join("\n")];
  for (let i = 0; i < 3000; ++i) texts.push(randomText(random));
  for (let i = 0; i < 3000; ++i) {
    const count = 1 + Math.floor(random() * 8);
    texts.push(Array.from({ length: count },
                          () => PIECES[Math.floor(random() * PIECES.length)]).join(""));
  }
  return texts;
}

const tokenizer = new Tokenizer(readJson(tokenizerPath), {});
const encode = (text) =>
  text === "" ? [] : tokenizer.encode(text, { add_special_tokens: false }).ids;
const renders = renderAll(readJson(join(here, "conversations.json")));
const texts = allTexts(readJson(join(here, "lines.json")));
writeFileSync(outPath, JSON.stringify({
  renders: renders.map((render) => ({ ...render, ids: encode(render.text) })),
  snippets: renderSnippets(readJson(snippetsPath)),
  texts: texts.map((text) => ({ text, ids: encode(text) })),
}));
