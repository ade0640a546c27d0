// What a conversation becomes: prompts, turns, reasoning.
import assert from "node:assert/strict";
import {after, before, test} from "node:test";

import {run, startServer} from "./program.mjs";
import {
  chat, get, kChat, kCompletions, kMessages, post, streamChat, userSays,
} from "./requests.mjs";

let server;
before(async () => {
  server = await startServer();
});
after(async () => {
  assert.deepEqual(await server.stop(), {code: 0, signal: null});
});

const kSum = userSays("What is 12 + 30?");
const countTokens = async (body) =>
    (await post(server, "/v1/messages/count_tokens", body)).json.input_tokens;

test("C13 the server's answer is that of hillstar run", async () => {
  for (const prompt
           of ["List the first 12 prime numbers.", "What is a river?",
               "Sort these words: green, black, white, Dan"]) {
    const answer = await chat(server, {messages: userSays(prompt)});
    assert.equal(`${answer.message.content}\n`, run(["--temperature", "0", prompt]));
  }
});

test("B9 a turn ends at the next role, whatever the request says about stops", async () => {
  for (const stop of [undefined, "zzzz", ["zzzz", "yyyy"]]) {
    const answer =
        await chat(server, {messages: userSays("What is a river?"), max_tokens: 400, stop});
    assert.equal(answer.finish_reason, "stop");
    assert.doesNotMatch(answer.message.content, /<\|/);
  }
  const message = await post(
      server, kMessages, {messages: userSays("What is a river?"), max_tokens: 400, temperature: 0});
  assert.equal(message.json.stop_reason, "end_turn");
});

test("B12 arguments of past calls that are no object count as none", async () => {
  const turns = (call) =>
      [...userSays("What time is it?"),
       {
         role: "assistant",
         content: null,
         tool_calls: [{id: "call_1", type: "function", function: call}]
       },
       {role: "tool", tool_call_id: "call_1", content: "12:00"},
  ];
  const base =
      await chat(server, {messages: turns({name: "clock", arguments: "{}"}), max_tokens: 8});
  for (const args of ["null", "", "{}", undefined, null]) {
    const answer =
        await chat(server, {messages: turns({name: "clock", arguments: args}), max_tokens: 8});
    assert.equal(answer.usage.prompt_tokens, base.usage.prompt_tokens, `${args}`);
    assert.equal(answer.message.content, base.message.content);
  }
  const full = await chat(
      server, {messages: turns({name: "clock", arguments: '{"zone":"UTC"}'}), max_tokens: 8});
  assert.ok(full.usage.prompt_tokens > base.usage.prompt_tokens);
  const object = await chat(
      server, {messages: turns({name: "clock", arguments: {zone: "UTC"}}), max_tokens: 8});
  assert.equal(object.usage.prompt_tokens, full.usage.prompt_tokens);
  for (const args of ["[]", "1", "{", "[1]", '"a"', "{\"a\":"]) {
    const {status} = await post(
        server, kChat,
        {messages: turns({name: "clock", arguments: args}), max_tokens: 8, temperature: 0});
    assert.ok(status === 200 || status === 400, `${args}: ${status}`);
  }
});

test("B14 B15 B18 reasoning never shows in content, on and off, streamed and whole", async () => {
  const turns = [
    ...kSum,
    {role: "assistant", content: "42", reasoning_content: "12 + 30 = 42"},
    {role: "user", content: "What is 7 + 5?"},
    {
      role: "assistant",
      content: null,
      reasoning_content: "I call the tool.",
      tool_calls: [{id: "a", type: "function", function: {name: "add", arguments: '{"a":7,"b":5}'}}]
    },
    {role: "tool", tool_call_id: "a", content: "12"},
  ];
  const tools = [{type: "function", function: {name: "add", parameters: {type: "object"}}}];
  for (const how
           of [{chat_template_kwargs: {enable_thinking: true}}, {reasoning_effort: "high"},
               {reasoning_effort: "max"}, {reasoning_effort: "none"}, {thinking: {type: "enabled"}},
               {thinking: {type: "disabled"}}, {}]) {
    for (const body of [{messages: kSum}, {messages: turns, tools}]) {
      const asked = {...body, ...how, max_tokens: 300};
      const whole = await chat(server, asked), streamed = await streamChat(server, asked);
      assert.doesNotMatch(whole.message.content ?? "", /<\/?think>/);
      assert.doesNotMatch(whole.message.reasoning_content ?? "", /<\/?think>/);
      assert.equal(streamed.content, whole.message.content ?? "");
      assert.equal(streamed.reasoning, whole.message.reasoning_content ?? "");
      assert.equal(streamed.finish_reason, whole.finish_reason);
      const isOff = how.reasoning_effort === "none" || how.thinking?.type === "disabled" ||
          Object.keys(how).length === 0;
      if (isOff) assert.equal(whole.message.reasoning_content, undefined);
      if (isOff)
        assert.equal(whole.usage.completion_tokens_details.reasoning_tokens, 0);
      else if (body.messages === kSum)
        assert.ok(whole.message.reasoning_content.length > 0);
    }
  }
});

test("B16 reasoning of past turns goes into the prompt where it is to be kept", async () => {
  const turns = (reasoning) =>
      [...kSum, {role: "assistant", content: "42", reasoning_content: reasoning},
       {role: "user", content: "And 7 + 5?"}];
  const tokens = async (reasoning, keep) => (await chat(server, {
                                              messages: turns(reasoning),
                                              max_tokens: 1,
                                              thinking: {type: "enabled", clear_thinking: !keep}
                                            })).usage.prompt_tokens;
  const long = "First the tens, then the ones. ".repeat(5);
  assert.ok(await tokens(long, true) > await tokens("Short.", true) + 10);
  assert.equal(await tokens(long, false), await tokens("Short.", false));
});

test("B18 streamed and whole answers agree for many prompts", async () => {
  const prompts = [
    "Spell the word river.", "What is 3 * 4?", "Give a synonym of quick.",
    "Describe a dog as JSON.", "日本語で答えて", "```", "<think>", "</think>a<think>",
    "<tool_call>x</tool_call>", "<|user|>", "\u0000", "a\r\nb", "😀"
  ];
  await Promise.all(prompts.flatMap((prompt) => [false, true].map(async (enable_thinking) => {
    const body = {
      messages: userSays(prompt),
      max_tokens: 60,
      chat_template_kwargs: {enable_thinking}
    };
    const whole = await chat(server, body), streamed = await streamChat(server, body);
    assert.equal(streamed.content, whole.message.content, prompt);
    assert.equal(streamed.reasoning, whole.message.reasoning_content ?? "", prompt);
  })));
});

test("B19 the model's prefix stands once before every prompt", async () => {
  const tokens = async (prompt) =>
      (await post(server, kCompletions, {prompt, max_tokens: 1, temperature: 0}))
          .json.usage.prompt_tokens;
  assert.equal(await tokens("[gMASK]<sop>A river is"), await tokens("A river is"));
  assert.ok(await tokens("A river is") >= 5);
});

test("B19 count_tokens is what the same request then uses", async () => {
  const body = {messages: userSays("What is a river?"), system: "Be short."};
  const counted = await countTokens(body);
  const {json} = await post(server, kMessages, {...body, max_tokens: 2, temperature: 0});
  assert.equal(json.usage.input_tokens + (json.usage.cache_read_input_tokens ?? 0), counted);
});

test("G27 C35 the same prompt again has the same bits and its rows are taken over", async () => {
  const body = {messages: userSays("word river stone ".repeat(120)), max_tokens: 12};
  const answers = [];
  for (let i = 0; i < 3; ++i) answers.push(await chat(server, body));
  assert.equal(answers[0].usage.prompt_tokens_details.cached_tokens < 64, true);
  for (const answer of answers.slice(1)) {
    assert.equal(answer.message.content, answers[0].message.content);
    assert.ok(answer.usage.prompt_tokens_details.cached_tokens >= 256);
  }
  const longer = {...body, messages: userSays(`${body.messages[0].content}green walk paper`)};
  const first = await chat(server, longer), second = await chat(server, longer);
  assert.equal(first.message.content, second.message.content);
});

test("A conversation of wrong turns is refused by its place", async () => {
  for (const [messages, param] of [
           [[{role: "assistant", content: "a"}], "messages[0]"],
           [[...kSum, {role: "assistant", content: "a"}], "messages[1]"],
           [[{role: "robot", content: "a"}], "messages[0].role"],
           [[{role: "user", content: 5}], "messages[0].content"],
           [[{role: "user", content: {text: "a"}}], "messages[0].content"],
           [["a"], "messages[0]"],
           [[null], "messages[0]"],
           [[{role: "user", content: "a", extra: 1}], "messages[0].extra"],
           [[{role: "user", content: "a", tool_calls: []}], "messages[0].tool_calls"],
           [[...kSum, {role: "tool"}], "messages[1].content"],
           [
             [...kSum, {role: "assistant", tool_calls: [{}]}, ...kSum],
             "messages[1].tool_calls[0].function"
           ],
           [
             [
               ...kSum, {role: "assistant", tool_calls: [{type: "function", function: {name: 5}}]},
               ...kSum
             ],
             "messages[1].tool_calls[0].function.name"
           ],
  ]) {
    const {status, json} = await post(server, kChat, {messages, max_tokens: 5});
    assert.equal(status, 400, JSON.stringify(messages));
    assert.equal(json.error.param, param);
  }
  assert.equal((await get(server, "/health")).status, 200);
});
