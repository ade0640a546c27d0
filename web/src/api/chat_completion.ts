// POST /v1/chat/completions, streamed: what comes, as events in order.
import { request, sentence, ServerError } from './server';
import { SseParser } from './sse';

export interface PromptMessage {
  role: 'system' | 'user' | 'assistant';
  content: string;
  reasoning_content?: string;
}

export interface ChatRequest {
  messages: PromptMessage[];
  temperature?: number;
  top_p?: number;
  max_tokens?: number;
  reasoning_effort?: string;
  chat_template_kwargs?: { enable_thinking: boolean };
}

export interface Usage {
  promptTokens: number;
  cachedTokens: number;
  answerTokens: number;
  thinkingTokens: number;
}

export type ChatEvent =
  | { kind: 'progress'; done: number; total: number } // of the prompt's tokens
  | { kind: 'thinking'; text: string }
  | { kind: 'text'; text: string }
  | { kind: 'finish'; reason: string }
  | { kind: 'usage'; usage: Usage };

interface Chunk {
  error?: { message?: string };
  choices?: {
    delta?: { content?: string | null; reasoning_content?: string | null };
    finish_reason?: string | null;
  }[];
  usage?: {
    prompt_tokens?: number;
    completion_tokens?: number;
    prompt_tokens_details?: { cached_tokens?: number } | null;
    completion_tokens_details?: { reasoning_tokens?: number } | null;
  } | null;
}

export function eventsOfChunk(data: string): ChatEvent[] {
  let chunk: Chunk;
  try {
    chunk = JSON.parse(data) as Chunk;
  } catch {
    throw new ServerError('broken', 'The server sent something that is no JSON.');
  }
  if (chunk.error) {
    throw new ServerError('failed', sentence(chunk.error.message ?? 'the server failed'));
  }
  const events: ChatEvent[] = [];
  const choice = chunk.choices?.[0];
  const { content, reasoning_content: thinking } = choice?.delta ?? {};
  if (thinking) events.push({ kind: 'thinking', text: thinking });
  if (content) events.push({ kind: 'text', text: content });
  if (choice?.finish_reason) events.push({ kind: 'finish', reason: choice.finish_reason });
  if (chunk.usage) {
    const { usage } = chunk;
    events.push({
      kind: 'usage',
      usage: {
        promptTokens: usage.prompt_tokens ?? 0,
        cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
        answerTokens: usage.completion_tokens ?? 0,
        thinkingTokens: usage.completion_tokens_details?.reasoning_tokens ?? 0,
      },
    });
  }
  return events;
}

export function progressOfComment(text: string): ChatEvent | null {
  const match = /^prompt (\d+)\/(\d+)$/.exec(text.trim());
  return match ? { kind: 'progress', done: Number(match[1]), total: Number(match[2]) } : null;
}

// Throws ServerError, and what the signal's abort throws.
export async function* streamChat(
  chat: ChatRequest,
  signal: AbortSignal,
): AsyncGenerator<ChatEvent> {
  const response = await request('v1/chat/completions', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ ...chat, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.body) throw new ServerError('broken', 'The server sent an empty answer.');
  const parser = new SseParser();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await readPiece(reader, signal);
      if (done) throw brokenOff();
      for (const item of parser.push(value)) {
        if (item.kind === 'comment') {
          const progress = progressOfComment(item.text);
          if (progress) yield progress;
        } else if (item.data === '[DONE]') {
          return;
        } else {
          yield* eventsOfChunk(item.data);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection may be gone already
  }
}

function brokenOff(): ServerError {
  return new ServerError('broken', 'The connection broke off before the answer was complete.');
}

async function readPiece(reader: ReadableStreamDefaultReader<Uint8Array>, signal: AbortSignal) {
  try {
    return await reader.read();
  } catch (error) {
    throw signal.aborted ? error : brokenOff();
  }
}
