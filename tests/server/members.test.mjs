// Every member of every request, given a value of every wrong kind: refused, and named.
import assert from "node:assert/strict";
import {after, before, test} from "node:test";

import {startServer} from "./program.mjs";
import {kChat, kCompletions, kMessages, post, userSays} from "./requests.mjs";

let server;
before(async () => {
  server = await startServer();
});
after(async () => {
  assert.deepEqual(await server.stop(), {code: 0, signal: null});
});

const kValues = {
  text: "x",
  integer: 1,
  number: 0.5,
  flag: true,
  array: [1],
  object: {x: 1}
};
const kWrong = {
  text: ["integer", "number", "flag", "array", "object"],
  integer: ["text", "number", "flag", "array", "object"],
  number: ["text", "flag", "array", "object"],
  flag: ["text", "integer", "number", "array", "object"],
  array: ["text", "integer", "number", "flag", "object"],
  object: ["text", "integer", "number", "flag", "array"],
  texts: ["integer", "number", "flag", "object"],  // and an array of other things
  prompt: ["integer", "number", "flag", "object"],
};

const kDrawing = {
  temperature: "number",
  top_p: "number",
  top_k: "integer",
  min_p: "number",
  presence_penalty: "number",
  frequency_penalty: "number",
  repetition_penalty: "number",
  seed: "integer",
};
const kStreaming = {
  stream: "flag",
  stream_options: "object"
};
const tool = (more) => [{type: "function", function: {name: "f", ...more}}];
const userPart = (part) => [{role: "user", content: [part]}];
const assistant = (more) => [...userSays("a"), {role: "assistant", ...more}, ...userSays("b")];

const kTables = {
  [kChat]: {
    base: {messages: userSays("a"), max_tokens: 1},
    members: {
      messages: "array",
      model: "text",
      max_tokens: "integer",
      max_completion_tokens: "integer",
      ...kDrawing,
      logit_bias: "object",
      n: "integer",
      stop: "texts",
      ...kStreaming,
      logprobs: "flag",
      top_logprobs: "integer",
      response_format: "object",
      grammar: "text",
      tools: "array",
      tool_choice: "object",
      parallel_tool_calls: "flag",
      reasoning_effort: "text",
      thinking: "object",
      chat_template_kwargs: "object",
      user: "text",
      metadata: "object",
      store: "flag",
      service_tier: "text",
      safety_identifier: "text",
      prompt_cache_key: "text",
      prompt_cache_retention: "text",
      prediction: "object",
    },
    // The path of a member, its kind, and the request with a value there.
    nested: [
      [
        "stream_options.include_usage", "flag",
        (v) => ({stream: true, stream_options: {include_usage: v}})
      ],
      ["response_format.type", "text", (v) => ({response_format: {type: v}})],
      [
        "response_format.json_schema", "object",
        (v) => ({response_format: {type: "json_schema", json_schema: v}})
      ],
      ["thinking.type", "text", (v) => ({thinking: {type: v}})],
      [
        "thinking.clear_thinking", "flag", (v) => ({thinking: {type: "enabled", clear_thinking: v}})
      ],
      [
        "chat_template_kwargs.enable_thinking", "flag",
        (v) => ({chat_template_kwargs: {enable_thinking: v}})
      ],
      [
        "chat_template_kwargs.clear_thinking", "flag",
        (v) => ({chat_template_kwargs: {clear_thinking: v}})
      ],
      [
        "chat_template_kwargs.reasoning_effort", "text",
        (v) => ({chat_template_kwargs: {reasoning_effort: v}})
      ],
      ["tools[0]", "object", (v) => ({tools: [v]})],
      ["tools[0].type", "text", (v) => ({tools: [{type: v, function: {name: "f"}}]})],
      ["tools[0].function", "object", (v) => ({tools: [{type: "function", function: v}]})],
      ["tools[0].function.name", "text", (v) => ({tools: tool({name: v})})],
      ["tools[0].function.description", "text", (v) => ({tools: tool({description: v})})],
      ["tools[0].function.parameters", "object", (v) => ({tools: tool({parameters: v})})],
      ["tools[0].function.strict", "flag", (v) => ({tools: tool({strict: v})})],
      [
        "tool_choice.type", "text",
        (v) => ({tools: tool(), tool_choice: {type: v, function: {name: "f"}}})
      ],
      [
        "tool_choice.function", "object",
        (v) => ({tools: tool(), tool_choice: {type: "function", function: v}})
      ],
      [
        "tool_choice.function.name", "text",
        (v) => ({tools: tool(), tool_choice: {type: "function", function: {name: v}}})
      ],
      ["messages[0]", "object", (v) => ({messages: [v]})],
      ["messages[0].role", "text", (v) => ({messages: [{role: v, content: "a"}]})],
      ["messages[0].content", "texts", (v) => ({messages: [{role: "user", content: v}]})],
      ["messages[0].name", "text", (v) => ({messages: [{role: "user", content: "a", name: v}]})],
      ["messages[0].content[0]", "object", (v) => ({messages: userPart(v)})],
      ["messages[0].content[0].type", "text", (v) => ({messages: userPart({type: v, text: "a"})})],
      [
        "messages[0].content[0].text", "text",
        (v) => ({messages: userPart({type: "text", text: v})})
      ],
      ["messages[1].content", "texts", (v) => ({messages: assistant({content: v})})],
      [
        "messages[1].reasoning_content", "text",
        (v) => ({messages: assistant({content: "a", reasoning_content: v})})
      ],
      [
        "messages[1].reasoning", "text",
        (v) => ({messages: assistant({content: "a", reasoning: v})})
      ],
      ["messages[1].tool_calls", "array", (v) => ({messages: assistant({tool_calls: v})})],
      ["messages[1].tool_calls[0]", "object", (v) => ({messages: assistant({tool_calls: [v]})})],
      [
        "messages[1].tool_calls[0].type", "text",
        (v) => ({messages: assistant({tool_calls: [{id: "a", type: v, function: {name: "f"}}]})})
      ],
      [
        "messages[1].tool_calls[0].function", "object",
        (v) => ({messages: assistant({tool_calls: [{id: "a", type: "function", function: v}]})})
      ],
      [
        "messages[1].tool_calls[0].function.name", "text",
        (v) => (
            {messages: assistant({tool_calls: [{id: "a", type: "function", function: {name: v}}]})})
      ],
    ],
    unknown: [
      ["stream_options.x", {stream: true, stream_options: {x: 1}}],
      ["response_format.x", {response_format: {type: "text", x: 1}}],
      ["thinking.x", {thinking: {type: "enabled", x: 1}}],
      ["chat_template_kwargs.x", {chat_template_kwargs: {x: 1}}],
      ["tools[0].x", {tools: [{type: "function", function: {name: "f"}, x: 1}]}],
      ["tools[0].function.x", {tools: tool({x: 1})}],
      [
        "tool_choice.x",
        {tools: tool(), tool_choice: {type: "function", function: {name: "f"}, x: 1}}
      ],
      [
        "tool_choice.function.x",
        {tools: tool(), tool_choice: {type: "function", function: {name: "f", x: 1}}}
      ],
      ["messages[0].x", {messages: [{role: "user", content: "a", x: 1}]}],
      ["messages[0].content[0].x", {messages: userPart({type: "text", text: "a", x: 1})}],
      [
        "messages[1].tool_calls[0].x", {
          messages:
              assistant({tool_calls: [{id: "a", type: "function", function: {name: "f"}, x: 1}]})
        }
      ],
      [
        "messages[1].tool_calls[0].function.x", {
          messages:
              assistant({tool_calls: [{id: "a", type: "function", function: {name: "f", x: 1}}]})
        }
      ],
    ],
    refused: ["functions", "function_call", "audio", "web_search_options", "verbosity"],
  },
  [kCompletions]: {
    base: {prompt: "a", max_tokens: 1},
    members: {
      prompt: "prompt",
      model: "text",
      max_tokens: "integer",
      ...kDrawing,
      logit_bias: "object",
      n: "integer",
      stop: "texts",
      ...kStreaming,
      logprobs: "integer",
      echo: "flag",
      grammar: "text",
      best_of: "integer",
      user: "text",
    },
    nested: [[
      "stream_options.include_usage", "flag",
      (v) => ({stream: true, stream_options: {include_usage: v}})
    ]],
    unknown: [["stream_options.x", {stream: true, stream_options: {x: 1}}]],
    refused: ["suffix"],
  },
  [kMessages]: {
    base: {messages: userSays("a"), max_tokens: 1},
    members: {
      messages: "array",
      model: "text",
      max_tokens: "integer",
      ...kDrawing,
      system: "texts",
      stop_sequences: "array",
      stream: "flag",
      tools: "array",
      tool_choice: "object",
      thinking: "object",
      output_config: "object",
      output_format: "object",
      metadata: "object",
      service_tier: "text",
      cache_control: "object",
      betas: "array",
    },
    nested: [
      ["messages[0].role", "text", (v) => ({messages: [{role: v, content: "a"}]})],
      ["messages[0].content", "texts", (v) => ({messages: [{role: "user", content: v}]})],
      [
        "messages[0].content[0].text", "text",
        (v) => ({messages: userPart({type: "text", text: v})})
      ],
      ["tools[0].name", "text", (v) => ({tools: [{name: v, input_schema: {}}]})],
      ["tools[0].input_schema", "object", (v) => ({tools: [{name: "f", input_schema: v}]})],
      ["tool_choice.type", "text", (v) => ({tool_choice: {type: v}})],
      ["thinking.type", "text", (v) => ({thinking: {type: v}})],
      [
        "thinking.budget_tokens", "integer",
        (v) => ({thinking: {type: "enabled", budget_tokens: v}})
      ],
      ["output_config.effort", "text", (v) => ({output_config: {effort: v}})],
      ["output_config.format", "object", (v) => ({output_config: {format: v}})],
    ],
    unknown: [
      ["messages[0].x", {messages: [{role: "user", content: "a", x: 1}]}],
      ["messages[0].content[0].x", {messages: userPart({type: "text", text: "a", x: 1})}],
      ["tools[0].x", {tools: [{name: "f", input_schema: {}, x: 1}]}],
      [
        "tool_choice.x", {tools: [{name: "f", input_schema: {}}], tool_choice: {type: "auto", x: 1}}
      ],
      ["thinking.x", {thinking: {type: "enabled", x: 1}}],
      ["output_config.x", {output_config: {x: 1}}],
    ],
    refused: ["container", "mcp_servers", "context_management"],
  },
};

// The member that an error names: `param`, or what the sentence begins with in Anthropic's shape.
function namedBy(path, json) {
  return path === kMessages ? json.error.message.split(/ (?:is|has|cannot) /)[0] : json.error.param;
}

async function expectNamed(path, body, member, what) {
  const {status, json, text} = await post(server, path, body);
  assert.equal(status, 400, `${member} ${what}: ${text.slice(0, 200)}`);
  // What is within and of the wrong kind may be named itself.
  const named = namedBy(path, json);
  assert.ok(
      named === member || named.startsWith(`${member}[`) || named.startsWith(`${member}.`),
      `${member} ${what}: named ${named}`);
  assert.ok(json.error.message.includes(member), json.error.message);
}

for (const [path, {base, members, nested, unknown, refused}] of Object.entries(kTables)) {
  test(
      `${path}: the base of these tests is answered, with null for every other member`,
      async () => {
        const nulls = Object.fromEntries(Object.keys(members).map((name) => [name, null]));
        const {status, text} = await post(server, path, {...nulls, ...base});
        assert.equal(status, 200, text);
      });

  test(`${path}: every member refuses values of other kinds by its name`, async () => {
    for (const [member, kind] of Object.entries(members)) {
      for (const wrong of kWrong[kind]) {
        // A choice may be a text too, which is then none of those.
        await expectNamed(path, {...base, [member]: kValues[wrong]}, member, wrong);
      }
    }
  });

  test(`${path}: every member within refuses values of other kinds by its path`, async () => {
    for (const [member, kind, make] of nested) {
      for (const wrong of kWrong[kind]) {
        await expectNamed(path, {...base, ...make(kValues[wrong])}, member, wrong);
      }
    }
  });

  test(`G30 ${path}: members that are not known are refused by name`, async () => {
    for (const name
             of ["x", "Temperature", "max_token", "temperature ", "constructor", "__proto__x"]) {
      const {status, json} = await post(server, path, {...base, [name]: 1});
      assert.equal(status, 400, name);
      assert.equal(namedBy(path, json), name);
    }
    for (const [member, change] of unknown) {
      await expectNamed(path, {...base, ...change}, member, "unknown");
    }
  });

  test(`G30 ${path}: members that are not served are refused by name`, async () => {
    for (const name of refused) {
      await expectNamed(path, {...base, [name]: "x"}, name, "refused");
      await expectNamed(path, {...base, [name]: {x: 1}}, name, "refused");
    }
  });
}
