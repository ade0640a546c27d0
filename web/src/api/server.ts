// Requests to the server that served this page. All errors are ServerErrors, whose message is a
// sentence for people.
import { apiKey } from './api_key';

export type ErrorKind =
  | 'unreachable' // no answer at all
  | 'key' // 401: a key is wanted, or another one
  | 'busy' // 429 or 503
  | 'refused' // the request cannot be served as it stands
  | 'failed' // the server's fault
  | 'broken'; // the connection ended before the answer did

export class ServerError extends Error {
  constructor(
    readonly kind: ErrorKind,
    message: string,
    readonly retryAfterSeconds = 0,
  ) {
    super(message);
  }
}

export interface Health {
  model: string;
  device: string;
  thinking: 'on' | 'off';
  needsKey: boolean;
  contextTokens: number;
  version: string;
}

function kindOf(status: number): ErrorKind {
  if (status === 401) return 'key';
  if (status === 429 || status === 503) return 'busy';
  return status >= 500 ? 'failed' : 'refused';
}

// The first letter large, a full stop behind: the server's messages begin in the middle.
export function sentence(text: string): string {
  const trimmed = text.trim();
  if (trimmed === '') return '';
  const ended = /[.!?:;]$/.test(trimmed) ? trimmed : `${trimmed}.`;
  return ended.charAt(0).toUpperCase() + ended.slice(1);
}

// What the body of an answer with an error's status says, in OpenAI's shape or another.
export function errorOf(status: number, body: string, retryAfter: string | null): ServerError {
  let message = '';
  try {
    const parsed: unknown = JSON.parse(body);
    const error = (parsed as { error?: unknown } | null)?.error;
    const said = typeof error === 'string' ? error : (error as { message?: unknown })?.message;
    if (typeof said === 'string') message = said;
  } catch {
    // No JSON: something between the page and the server answered.
  }
  const kind = kindOf(status);
  if (message === '' && kind === 'key') message = 'the server wants an API key';
  if (message === '') message = `the server answered with status ${status}`;
  const seconds = Number(retryAfter ?? '');
  return new ServerError(kind, sentence(message), Number.isFinite(seconds) ? seconds : 0);
}

// `path` is relative to the page, so that the server may stand behind a folder of another one.
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const key = apiKey();
  if (key !== '') headers.set('Authorization', `Bearer ${key}`);
  let response: Response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...init, headers, cache: 'no-store' });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ServerError('unreachable', 'The server cannot be reached. Is it still running?');
  }
  if (response.ok) return response;
  const body = await response.text().catch(() => '');
  throw errorOf(response.status, body, response.headers.get('Retry-After'));
}

export async function readHealth(signal?: AbortSignal): Promise<Health> {
  const response = await request('health', { signal: signal ?? null });
  const body = (await response.json()) as Record<string, unknown>;
  const text = (name: string) => (typeof body[name] === 'string' ? (body[name] as string) : '');
  return {
    model: text('model'),
    device: text('device'),
    thinking: body.thinking === 'on' ? 'on' : 'off',
    needsKey: body.needs_key === true,
    contextTokens: typeof body.context_tokens === 'number' ? body.context_tokens : 0,
    version: text('version'),
  };
}
