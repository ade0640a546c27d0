// Tools and structured answers from outside. The built-in model calls tools where it has to.
import assert from "node:assert/strict";
import {after, before, test} from "node:test";

import {startServer} from "./program.mjs";
import {chat, kChat, post, streamChat, userSays} from "./requests.mjs";

let server;
before(async () => {
  server = await startServer();
});
after(async () => {
  assert.deepEqual(await server.stop(), {code: 0, signal: null});
});

const tool = (name, properties, required = Object.keys(properties)) => ({
  type: "function",
  function: {
    name,
    description: "A tool.",
    strict: true,
    parameters: {type: "object", properties, required, additionalProperties: false}
  },
});
const kWeather = tool(
    "get_weather",
    {city: {type: "string", maxLength: 12}, days: {type: "integer", minimum: 1, maximum: 9}});
const kTime = tool("get_current_time", {});
const kAsk = userSays("What is the weather in Paris for 3 days?");

test("G15 calls are the same streamed and whole, and their arguments fit the schema", async () => {
  for (const temperature of [0, 1]) {
    const body = {
      messages: kAsk,
      tools: [kWeather, kTime],
      tool_choice: "required",
      parallel_tool_calls: false,
      max_tokens: 200,
      temperature,
      seed: 7
    };
    const whole = await chat(server, body);
    assert.equal(whole.finish_reason, "tool_calls");
    const calls = whole.message.tool_calls.map((call) => call.function);
    const streamed = await streamChat(server, body);
    assert.deepEqual(
        streamed.tool_calls.map(({name, arguments: args}) => ({name, arguments: args})), calls);
    assert.equal(streamed.finish_reason, "tool_calls");
    assert.equal(calls.length, 1);
  }
});

test("G15 arguments of a named tool have its types", async () => {
  for (let seed = 0; seed < 4; ++seed) {
    const answer = await chat(server, {
      messages: kAsk,
      tools: [kWeather, kTime],
      max_tokens: 200,
      temperature: 2,
      seed,
      tool_choice: {type: "function", function: {name: "get_weather"}},
      parallel_tool_calls: false,
    });
    const [call] = answer.message.tool_calls;
    assert.equal(call.function.name, "get_weather");
    const given = JSON.parse(call.function.arguments);
    assert.deepEqual(Object.keys(given).sort(), ["city", "days"]);
    assert.equal(typeof given.city, "string");
    assert.ok(Number.isInteger(given.days) && given.days >= 1 && given.days <= 9, given.days);
  }
});

test("G16 a call without arguments has the arguments {}", async () => {
  const body = {
    messages: userSays("What time is it?"),
    tools: [kTime],
    tool_choice: "required",
    parallel_tool_calls: false,
    max_tokens: 60
  };
  const {message} = await chat(server, body);
  assert.deepEqual(
      message.tool_calls.map((call) => call.function),
      [{name: "get_current_time", arguments: "{}"}]);
  assert.deepEqual(
      (await streamChat(server, body)).tool_calls.map((call) => call.arguments), ["{}"]);
});

test("G18 a call that the limit cuts ends with length, streamed as whole", async () => {
  const body = {messages: kAsk, tools: [kWeather], tool_choice: "required"};
  for (let tokens = 1; tokens <= 12; ++tokens) {
    const cut = {...body, max_tokens: tokens};
    const whole = await chat(server, cut), streamed = await streamChat(server, cut);
    assert.equal(streamed.finish_reason, whole.finish_reason);
    assert.ok(["length", "tool_calls"].includes(whole.finish_reason));
    assert.equal(streamed.content, whole.message.content ?? "");
    assert.deepEqual(
        streamed.tool_calls.map(({name, arguments: args}) => ({name, arguments: args})),
        (whole.message.tool_calls ?? []).map((call) => call.function));
  }
});

test("G19 calls of many requests at once do not mix", async () => {
  const ask = async (i) => {
    const name = `tool_${i}`;
    const answer = await chat(server, {
      messages: kAsk,
      tools: [tool(name, {n: {const : i}})],
      tool_choice: "required",
      parallel_tool_calls: false,
      max_tokens: 100
    });
    assert.deepEqual(
        answer.message.tool_calls.map((call) => call.function),
        [{name, arguments: JSON.stringify({n: i})}]);
    assert.equal(new Set(answer.message.tool_calls.map((call) => call.id)).size, 1);
  };
  await Promise.all(Array.from({length: 24}, (_, i) => ask(i)));
});

test("G30 tools that cannot be are refused by name", async () => {
  for (const [change, param] of [
           [{tools: [{type: "web_search"}]}, "tools[0].type"],
           [{tools: [{type: "function"}]}, "tools[0].function"],
           [{tools: [{type: "function", function: {name: "a b"}}]}, "tools[0].function.name"],
           [{tools: [kTime, kTime]}, "tools[1].function.name"],
           [
             {tools: [kTime], tool_choice: {type: "function", function: {name: "other"}}},
             "tool_choice"
           ],
           [{tool_choice: "required"}, "tool_choice"],
           [{tools: [kTime], grammar: 'root ::= "a"'}, "tools"],
  ]) {
    const {status, json} = await post(server, kChat, {messages: kAsk, max_tokens: 5, ...change});
    assert.equal(status, 400, JSON.stringify(change));
    assert.equal(json.error.param, param);
  }
});

const kSchema = {
  type: "object",
  properties: {
    word: {type: "string", maxLength: 10},
    kind: {enum: ["noun", "verb"]},
    n: {type: "integer", minimum: 0, maximum: 99}
  },
  required: ["word", "kind", "n"],
  additionalProperties: false,
};

test("G22 an answer after reasoning follows its schema", async () => {
  for (let seed = 0; seed < 6; ++seed) {
    const body = {
      messages: userSays("What is 12 + 30?"),
      max_tokens: 1500,
      temperature: 1,
      seed,
      response_format: {type: "json_schema", json_schema: {name: "word", schema: kSchema}},
      chat_template_kwargs: {enable_thinking: true}
    };
    const answer = await chat(server, body);
    if (answer.finish_reason === "length") continue;  // the reasoning did not end
    const made = JSON.parse(answer.message.content);
    assert.deepEqual(Object.keys(made).sort(), ["kind", "n", "word"]);
    assert.ok(["noun", "verb"].includes(made.kind) && Number.isInteger(made.n));
    assert.ok([...made.word].length <= 10);
    const streamed = await streamChat(server, body);
    assert.equal(streamed.content, answer.message.content);
    assert.equal(streamed.reasoning, answer.message.reasoning_content ?? "");
  }
});

test("G22 a schema's answer without reasoning is valid at any temperature", async () => {
  await Promise.all(Array.from({length: 12}, async (_, seed) => {
    const answer = await chat(server, {
      messages: userSays("Describe the word river."),
      max_tokens: 300,
      temperature: 2,
      seed,
      response_format: {type: "json_schema", json_schema: {name: "word", schema: kSchema}}
    });
    assert.equal(answer.finish_reason, "stop");
    const made = JSON.parse(answer.message.content);
    assert.ok(made.n >= 0 && made.n <= 99);
  }));
});

test("G21 schemas that cannot be enforced are refused by their place", async () => {
  for (const schema
           of [{type: "object", properties: {a: {not: {}}}},
               {$ref: "#/$defs/missing"},
               {type: "nothing"},
               {minItems: 3, maxItems: 2, type: "array"},
               {pattern: "(", type: "string"},
               {$ref: "https://example.org/schema"},
               {$defs: {a: {$ref: "#/$defs/a"}}, $ref: "#/$defs/a"},
  ]) {
    const {status, json} = await post(server, kChat, {
      messages: kAsk,
      max_tokens: 5,
      response_format: {type: "json_schema", json_schema: {name: "x", schema}}
    });
    assert.equal(status, 400, JSON.stringify(schema));
    assert.equal(json.error.param, "response_format.json_schema.schema");
  }
});
