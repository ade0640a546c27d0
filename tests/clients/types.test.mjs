// Every member of what the server sends is one that the clients' own TypeScript types have, with a
// value that they allow: answers become literals of a program that tsc checks, in which a member
// too many is an error too. Exceptions stand in kTypes.
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { after, describe, test } from "node:test";
import ts from "typescript";
import {
  kAnthropicTools, kOpenAiTools, kRiver, kSum, kTools, kToolTurns, user,
} from "./prompts.mjs";
import { serve } from "./serve.mjs";

const server = serve();

const kTypes = `
import type OpenAI from "openai";
import type Anthropic from "@anthropic-ai/sdk";
type Chat = OpenAI.Chat.ChatCompletion;
type Choice = Chat["choices"][number];
type Chunk = OpenAI.Chat.ChatCompletionChunk;
type Part = Chunk["choices"][number];
type Reasoned = { reasoning_content?: string };
// Of GLM's and many other servers: the reasoning, which OpenAI's own never show.
export type ChatCompletion = Omit<Chat, "choices"> & {
  choices: (Omit<Choice, "message"> & { message: Choice["message"] & Reasoned })[];
};
export type ChatCompletionChunk = Omit<Chunk, "choices"> & {
  choices: (Omit<Part, "delta"> & { delta: Part["delta"] & Reasoned })[];
};
export type Completion = OpenAI.Completion;
// The context's length, as vLLM tells it.
export type Models = { object: "list"; data: (OpenAI.Model & { max_model_len: number })[] };
// "output_text" is put in by the client. What stands beside it OpenAI sends too; its types lack it.
export type Response = Omit<OpenAI.Responses.Response, "output_text" | "usage"> & {
  usage: OpenAI.Responses.ResponseUsage | null;
  store: boolean; max_tool_calls: null; presence_penalty: number; frequency_penalty: number;
};
// Logprobs of a delta are those of the text that it becomes part of, with bytes.
type OfWire<Event> = Event extends { response: unknown }
  ? Omit<Event, "response"> & { response: Response }
  : Event extends { logprobs: unknown }
    ? Omit<Event, "logprobs"> & { logprobs: OpenAI.Responses.ResponseOutputText.Logprob[] }
    : Event;
export type ResponseEvent = OfWire<OpenAI.Responses.ResponseStreamEvent>;
export type ResponseItems = OpenAI.Responses.ResponseItemList;
export type OpenAiError = {
  error: { message: string; type: string; param: string | null; code: string | null };
};
// Anthropic's types grow members that may be null. What this server has nothing to say about is
// left out.
type LeavesOutNulls<T> = T extends (infer Item)[] ? LeavesOutNulls<Item>[]
  : T extends object ? { [K in keyof T as null extends T[K] ? never : K]: LeavesOutNulls<T[K]> }
      & { [K in keyof T as null extends T[K] ? K : never]?: LeavesOutNulls<T[K]> }
  : T;
// Who calls is the model, always.
type ToolUse = Omit<Anthropic.ToolUseBlock, "caller">;
type Content = LeavesOutNulls<Anthropic.TextBlock | Anthropic.ThinkingBlock | ToolUse>;
export type Message = Omit<LeavesOutNulls<Anthropic.Message>, "content" | "stop_reason"
  | "stop_sequence"> & {
  content: Content[];
  stop_reason: Anthropic.StopReason | null;
  stop_sequence: string | null;
};
type Start = Omit<Anthropic.RawContentBlockStartEvent, "content_block">
  & { content_block: Content };
export type MessageEvent =
  | { type: "message_start"; message: Message }
  | Start | Anthropic.RawContentBlockDeltaEvent | Anthropic.RawContentBlockStopEvent
  | LeavesOutNulls<Anthropic.RawMessageDeltaEvent> | Anthropic.RawMessageStopEvent
  | { type: "ping" };
export type AnthropicModels = {
  data: Omit<LeavesOutNulls<Anthropic.ModelInfo>, "lifecycle">[];
  has_more: boolean; first_id: string | null; last_id: string | null;
};
export type AnthropicError = Omit<Anthropic.ErrorResponse, "error"> & {
  error: Anthropic.ErrorObject & { details?: { error_code: string } };
};
export type Count = Anthropic.MessageTokensCount;
`;

const literals = []; // {type, json} of every answer that a test has seen

async function seen(type, path, body, headers) {
  const reply = await server.fetch(path, body, headers);
  const json = await reply.text();
  literals.push({ type, json });
  return JSON.parse(json);
}

// The data of a stream's events.
async function seenStream(type, path, body) {
  const reply = await server.fetch(path, { ...body, stream: true });
  assert.equal(reply.headers.get("content-type"), "text/event-stream");
  const events = [];
  for (const event of (await reply.text()).split("\n\n")) {
    const data = /^data: (.*)$/m.exec(event)?.[1];
    if (data === undefined || data === "[DONE]") continue;
    literals.push({ type, json: data });
    events.push(JSON.parse(data));
  }
  return events;
}

// What tsc has to say of the literals, by their text.
function complaints() {
  const name = fileURLToPath(new URL("answers.ts", import.meta.url)); // in memory only
  const source = kTypes + literals.map(({ type, json }, i) =>
    `export const answer${i}: ${type} = ${json};\n`).join("");
  const options = {
    strict: true, noEmit: true, skipLibCheck: true, exactOptionalPropertyTypes: true,
    target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext, types: ["node"],
    typeRoots: [fileURLToPath(new URL("node_modules/@types", import.meta.url))],
  };
  const host = ts.createCompilerHost(options);
  const { getSourceFile, fileExists, readFile } = host;
  host.fileExists = (path) => path === name || fileExists(path);
  host.readFile = (path) => (path === name ? source : readFile(path));
  host.getSourceFile = (path, ...rest) => (path === name
    ? ts.createSourceFile(path, source, ts.ScriptTarget.ES2022) : getSourceFile(path, ...rest));
  const program = ts.createProgram([name], options, host);
  const lines = source.split("\n");
  return ts.getPreEmitDiagnostics(program).map(({ file, start, messageText }) => {
    const isOurs = file?.fileName === name;
    const line = isOurs ? lines[file.getLineAndCharacterOfPosition(start).line] : "";
    return `${ts.flattenDiagnosticMessageText(messageText, "\n")}\n${line.slice(0, 2000)}`;
  });
}

describe("answers to look at", () => {
  const chat = "/v1/chat/completions";
  const plain = { messages: user(kRiver), temperature: 0 };
  const requests = {
    "an answer": plain,
    "logprobs": { ...plain, logprobs: true, top_logprobs: 2, max_tokens: 3 },
    "reasoning": { ...plain, messages: user(kSum), reasoning_effort: "high" },
    "a call": { ...plain, messages: user(kToolTurns[0].ask), tools: kOpenAiTools },
    "two cut answers": { ...plain, n: 2, temperature: 1, max_tokens: 2 },
  };
  for (const [name, request] of Object.entries(requests)) {
    test(`OpenAI's chat: ${name}`, async () => {
      const { choices } = await seen("ChatCompletion", chat, request);
      assert.ok(choices.length >= 1);
      const withUsage = { ...request, stream_options: { include_usage: true } };
      for (const streamed of [request, withUsage]) {
        assert.ok((await seenStream("ChatCompletionChunk", chat, streamed)).length >= 3);
      }
    });
  }

  test("OpenAI's completions", async () => {
    const request = { prompt: "In the beginning", max_tokens: 4, temperature: 0, logprobs: 2 };
    await seen("Completion", "/v1/completions", request);
    await seen("Completion", "/v1/completions", { ...request, logprobs: null, echo: true });
  });

  const response = { input: kRiver, temperature: 0 };
  const tools = kTools.map((tool) => ({ type: "function", ...tool }));
  const schema = { type: "object", properties: { a: { type: "integer" } }, required: ["a"],
    additionalProperties: false };
  const responses = {
    "an answer": { ...response, instructions: "Be brief.", metadata: { a: "b" }, user: "u" },
    "logprobs": { ...response, top_logprobs: 2, include: ["message.output_text.logprobs"] },
    "reasoning": { ...response, input: kSum, reasoning: { effort: "high" } },
    "a call": { ...response, input: kToolTurns[0].ask, tools, tool_choice: "required" },
    "a schema": { ...response, text: { format: { type: "json_schema", name: "n", schema } } },
    "a cut answer": { ...response, max_output_tokens: 2, store: false },
  };
  for (const [name, request] of Object.entries(responses)) {
    test(`OpenAI's responses: ${name}`, async () => {
      assert.equal((await seen("Response", "/v1/responses", request)).object, "response");
      assert.ok((await seenStream("ResponseEvent", "/v1/responses", request)).length >= 8);
    });
  }

  test("OpenAI's kept responses", async () => {
    const call = { type: "function_call", call_id: "c", name: "f", arguments: "{}" };
    const input = [...user(kRiver), { role: "assistant", content: "A stream." },
      { type: "reasoning", summary: [{ type: "summary_text", text: "Hm." }] }, call,
      { type: "function_call_output", call_id: "c", output: "1" }];
    const { id } = await seen("Response", "/v1/responses", { ...response, input });
    await seen("Response", `/v1/responses/${id}`);
    const { data } = await seen("ResponseItems", `/v1/responses/${id}/input_items`);
    assert.equal(data.length, input.length);
    await seen("OpenAiError", "/v1/responses/none");
  });

  test("OpenAI's models and errors", async () => {
    await seen("Models", "/v1/models");
    await seen("OpenAiError", chat, {});
    await seen("OpenAiError", chat, { ...plain, temperature: "warm" });
    await seen("OpenAiError", "/v1/embeddings", {});
  });

  const message = { ...plain, max_tokens: 64 };
  const messages = {
    "an answer": message,
    "a stop sequence": { ...message, stop_sequences: ["stream"] },
    "thinking": { ...message, messages: user(kSum), thinking: { type: "adaptive" } },
    "a call": { ...message, messages: user(kToolTurns[1].ask), tools: kAnthropicTools },
  };
  for (const [name, request] of Object.entries(messages)) {
    test(`Anthropic's messages: ${name}`, async () => {
      assert.equal((await seen("Message", "/v1/messages", request)).type, "message");
      assert.ok((await seenStream("MessageEvent", "/v1/messages", request)).length >= 5);
    });
  }

  test("Anthropic's models, counts and errors", async () => {
    const version = { "anthropic-version": "2023-06-01" };
    await seen("AnthropicModels", "/v1/models", undefined, version);
    await seen("Count", "/v1/messages/count_tokens", { messages: user(kRiver) });
    await seen("AnthropicError", "/v1/messages", {});
    await seen("AnthropicError", "/v1/messages", { ...message, thread: { type: "create" } });
  });
});

describe("their types", () => {
  test("fit the clients'", () => {
    assert.ok(literals.length > 60, `${literals.length} answers were seen`);
    const found = complaints();
    assert.equal(found.length, 0, `\n${found.join("\n\n")}`);
  });

  test("would not fit with a member too many, too few, or null", () => {
    const wrong = [];
    for (const type of ["ChatCompletion", "Response"]) {
      const { id, ...others } = JSON.parse(literals.find((literal) => literal.type === type).json);
      for (const each of [{ id, ...others, extra: 1 }, others, { id: null, ...others }]) {
        wrong.push({ type, json: JSON.stringify(each) });
      }
    }
    const { type, json } = literals.find((literal) => literal.type === "ResponseEvent");
    const { sequence_number, ...event } = JSON.parse(json);
    wrong.push({ type, json: JSON.stringify(event) });
    literals.splice(0, literals.length, ...wrong);
    assert.equal(complaints().length, wrong.length);
  });
});
