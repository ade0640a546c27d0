import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { type ChatEvent, progressOfComment, streamChat } from '../src/api/chat_completion';
import { errorOf, ServerError } from '../src/api/server';

const chunk = (delta: object, finish: string | null = null) =>
  `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`;
const usage = {
  prompt_tokens: 20,
  completion_tokens: 3,
  prompt_tokens_details: { cached_tokens: 16 },
  completion_tokens_details: { reasoning_tokens: 1 },
};
const kAnswer =
  ': prompt 4/20\n\n' +
  chunk({ role: 'assistant', content: '' }) +
  chunk({ reasoning_content: 'hm' }) +
  chunk({ content: 'Grüße' }) +
  chunk({}, 'length') +
  `data: ${JSON.stringify({ choices: [], usage })}\n\n` +
  'data: [DONE]\n\n';
const kEvents: ChatEvent[] = [
  { kind: 'progress', done: 4, total: 20 },
  { kind: 'thinking', text: 'hm' },
  { kind: 'text', text: 'Grüße' },
  { kind: 'finish', reason: 'length' },
  {
    kind: 'usage',
    usage: { promptTokens: 20, cachedTokens: 16, answerTokens: 3, thinkingTokens: 1 },
  },
];

function answerWith(pieces: string[] | Uint8Array[], status = 200, headers = {}) {
  const encoder = new TextEncoder();
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const piece of pieces) {
        controller.enqueue(typeof piece === 'string' ? encoder.encode(piece) : piece);
      }
      controller.close();
    },
  });
  const fetch = vi.fn(async (_: URL, __: RequestInit) => new Response(body, { status, headers }));
  vi.stubGlobal('fetch', fetch);
  return fetch;
}

async function collect(): Promise<ChatEvent[]> {
  const events: ChatEvent[] = [];
  const question = { messages: [{ role: 'user' as const, content: 'hi' }] };
  for await (const event of streamChat(question, new AbortController().signal)) events.push(event);
  return events;
}

async function failure(): Promise<ServerError> {
  try {
    await collect();
  } catch (error) {
    return error as ServerError;
  }
  throw new Error('nothing was thrown');
}

beforeEach(() => vi.stubGlobal('document', { baseURI: 'http://host/behind/' }));
afterEach(() => vi.unstubAllGlobals());

describe('streamChat', () => {
  it('gives progress, thoughts, text, end and usage', async () => {
    const fetch = answerWith([kAnswer]);
    expect(await collect()).toEqual(kEvents);
    const [address, init] = fetch.mock.calls[0]!;
    expect(String(address)).toBe('http://host/behind/v1/chat/completions');
    expect(JSON.parse(init.body as string)).toEqual({
      messages: [{ role: 'user', content: 'hi' }],
      stream: true,
      stream_options: { include_usage: true },
    });
  });

  it('gives the same however the bytes are cut', async () => {
    const whole = new TextEncoder().encode(kAnswer);
    for (let at = 1; at < whole.length; at += 3) {
      answerWith([whole.slice(0, at), whole.slice(at)]);
      expect(await collect()).toEqual(kEvents);
    }
  });

  it('says that the connection broke off where the end is missing', async () => {
    answerWith([kAnswer.replace('data: [DONE]\n\n', '')]);
    expect((await failure()).kind).toBe('broken');
  });

  it('takes an error within the stream', async () => {
    answerWith([chunk({ content: 'x' }), 'data: {"error":{"message":"out of memory"}}\n\n']);
    const error = await failure();
    expect([error.kind, error.message]).toEqual(['failed', 'Out of memory.']);
  });

  it('takes an error before the stream', async () => {
    answerWith(['{"error":{"message":"too many wait"}}'], 429, { 'Retry-After': '7' });
    const error = await failure();
    expect([error.kind, error.message, error.retryAfterSeconds]).toEqual(['busy', 'Too many wait.', 7]);
  });

  it('says that nobody answers', async () => {
    vi.stubGlobal('fetch', async () => Promise.reject(new TypeError('Failed to fetch')));
    expect((await failure()).kind).toBe('unreachable');
  });
});

describe('errorOf', () => {
  it('knows other shapes and none', () => {
    expect(errorOf(401, '', null).kind).toBe('key');
    expect(errorOf(500, '<html>', null).message).toBe('The server answered with status 500.');
    expect(errorOf(400, '{"error":"bad thing"}', null).message).toBe('Bad thing.');
    expect(errorOf(403, '{"error":{"message":"host"}}', null).kind).toBe('refused');
  });
});

describe('progressOfComment', () => {
  it('takes the progress and nothing else', () => {
    expect(progressOfComment('prompt 12/40')).toEqual({ kind: 'progress', done: 12, total: 40 });
    expect(progressOfComment('keep-alive')).toBeNull();
    expect(progressOfComment('prompt 12/40 of')).toBeNull();
  });
});
