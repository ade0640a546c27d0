// The file that conversations are exported to and imported from. A file may come from anywhere, so
// everything in it is checked.
import { type AnswerStats, type Conversation, type Message, newId } from './conversation';

const kFormat = 'hillstar-conversations';
const kVersion = 1;
const kMaxMessages = 100_000;

export function exportText(conversations: Conversation[]): string {
  const file = { format: kFormat, version: kVersion, conversations };
  return `${JSON.stringify(file, null, 1)}\n`;
}

class BadFile extends Error {}

type Json = Record<string, unknown>;

function object(value: unknown, what: string): Json {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Json;
  throw new BadFile(`${what} is no object`);
}

function text(value: unknown, what: string): string {
  if (value === undefined) return '';
  if (typeof value === 'string') return value;
  throw new BadFile(`${what} is no text`);
}

function number(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) ? value : 0;
}

function readStats(value: unknown): AnswerStats | null {
  if (typeof value !== 'object' || value === null) return null;
  const given = value as Json;
  return {
    model: typeof given.model === 'string' ? given.model : '',
    promptTokens: number(given.promptTokens),
    cachedTokens: number(given.cachedTokens),
    answerTokens: number(given.answerTokens),
    firstTokenSeconds: number(given.firstTokenSeconds),
    totalSeconds: number(given.totalSeconds),
    tokensPerSecond: number(given.tokensPerSecond),
  };
}

const kStates = ['done', 'stopped', 'full', 'cut', 'failed'] as const;

function readMessage(value: unknown, what: string): Message {
  const given = object(value, what);
  const id = text(given.id, `${what}.id`);
  if (id === '') throw new BadFile(`${what}.id is missing`);
  if (given.role !== 'user' && given.role !== 'assistant') {
    throw new BadFile(`${what}.role is neither "user" nor "assistant"`);
  }
  return {
    id,
    parent: text(given.parent, `${what}.parent`),
    role: given.role,
    text: text(given.text, `${what}.text`),
    thinking: text(given.thinking, `${what}.thinking`),
    thinkingSeconds: number(given.thinkingSeconds),
    state: kStates.find((state) => state === given.state) ?? 'cut',
    error: text(given.error, `${what}.error`),
    stats: readStats(given.stats),
    timeMs: number(given.timeMs),
  };
}

function readConversation(value: unknown, what: string): Conversation {
  const given = object(value, what);
  if (!Array.isArray(given.messages)) throw new BadFile(`${what}.messages is no array`);
  if (given.messages.length > kMaxMessages) throw new BadFile(`${what} has too many messages`);
  const chosen: Record<string, string> = {};
  for (const [parent, child] of Object.entries(object(given.chosen ?? {}, `${what}.chosen`))) {
    chosen[parent] = text(child, `${what}.chosen`);
  }
  return {
    // A new one: the file may hold an older state of a conversation that goes on here.
    id: newId(),
    title: text(given.title, `${what}.title`),
    hasOwnTitle: given.hasOwnTitle === true,
    createdMs: number(given.createdMs),
    updatedMs: number(given.updatedMs),
    revision: 0,
    messages: given.messages.map((message, i) => readMessage(message, `${what}.messages[${i}]`)),
    chosen,
  };
}

// Throws an Error whose message is a sentence.
export function importText(content: string): Conversation[] {
  let parsed: unknown;
  try {
    parsed = JSON.parse(content);
  } catch {
    throw new Error('This file is no JSON, so it is no export of conversations.');
  }
  try {
    const file = object(parsed, 'the file');
    if (file.format !== kFormat) throw new BadFile(`"format" is not "${kFormat}"`);
    if (file.version !== kVersion) {
      throw new BadFile(`"version" is ${JSON.stringify(file.version)}, and this page knows 1`);
    }
    if (!Array.isArray(file.conversations)) throw new BadFile('"conversations" is no array');
    return file.conversations.map((each, i) => readConversation(each, `conversations[${i}]`));
  } catch (error) {
    if (!(error instanceof BadFile)) throw error;
    throw new Error(`This file is no export of conversations: ${error.message}.`);
  }
}
