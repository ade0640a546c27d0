// A conversation and what can be done with it. Messages form a tree: an edited question or another
// answer stands beside the first one, and nothing is ever overwritten. Plain values.

export type MessageState =
  | 'done'
  | 'writing' // in this tab or another one
  | 'stopped' // by the user
  | 'full' // ended at the limit of tokens
  | 'cut' // the tab was closed while it was written
  | 'failed';

export interface AnswerStats {
  model: string;
  promptTokens: number;
  cachedTokens: number;
  answerTokens: number;
  firstTokenSeconds: number;
  totalSeconds: number;
  tokensPerSecond: number; // from the first token to the last; 0: too short to tell
}

export interface Message {
  id: string;
  parent: string; // '' for the first
  role: 'user' | 'assistant';
  text: string;
  thinking: string;
  thinkingSeconds: number;
  state: MessageState;
  error: string;
  stats: AnswerStats | null;
  timeMs: number;
}

export interface Conversation {
  id: string;
  title: string;
  hasOwnTitle: boolean; // given by the user
  createdMs: number;
  updatedMs: number;
  revision: number; // 0: not kept yet; grows with every change that is kept
  messages: Message[];
  chosen: Record<string, string>; // which child of a message is shown; by default the last
}

// What the list shows.
export interface ConversationHead {
  id: string;
  title: string;
  updatedMs: number;
}

// crypto.randomUUID is missing where the page is not served from this machine or by HTTPS.
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

export function newConversation(id: string, nowMs: number): Conversation {
  return {
    id,
    title: '',
    hasOwnTitle: false,
    createdMs: nowMs,
    updatedMs: nowMs,
    revision: 0,
    messages: [],
    chosen: {},
  };
}

export function headOf(conversation: Conversation): ConversationHead {
  const { id, updatedMs } = conversation;
  return { id, title: conversation.title || 'Untitled', updatedMs };
}

export function childrenOf(conversation: Conversation, parent: string): Message[] {
  return conversation.messages.filter((message) => message.parent === parent);
}

// The messages that are shown, from the first on.
export function shownMessages(conversation: Conversation): Message[] {
  const children = new Map<string, Message[]>();
  for (const message of conversation.messages) {
    const siblings = children.get(message.parent);
    if (siblings) siblings.push(message);
    else children.set(message.parent, [message]);
  }
  const shown: Message[] = [];
  const seen = new Set<string>(['']);
  for (let parent = ''; ; ) {
    const siblings = children.get(parent);
    if (!siblings) return shown;
    const chosen = siblings.find((message) => message.id === conversation.chosen[parent]);
    const next = chosen ?? siblings[siblings.length - 1]!;
    if (seen.has(next.id)) return shown; // an imported file may hold a circle
    seen.add(next.id);
    shown.push(next);
    parent = next.id;
  }
}

export function addMessage(
  conversation: Conversation,
  role: Message['role'],
  parent: string,
  text: string,
  nowMs: number,
): Message {
  const message: Message = {
    id: newId(),
    parent,
    role,
    text,
    thinking: '',
    thinkingSeconds: 0,
    state: role === 'user' ? 'done' : 'writing',
    error: '',
    stats: null,
    timeMs: nowMs,
  };
  conversation.messages.push(message);
  conversation.chosen[parent] = message.id;
  conversation.updatedMs = nowMs;
  if (!conversation.hasOwnTitle && role === 'user' && parent === '') {
    conversation.title = titleOf(text);
  }
  return message;
}

// The beginning of a text, cut between words.
export function titleOf(text: string, maxCharacters = 60): string {
  const line = text.trim().replace(/\s+/g, ' ');
  const characters = Array.from(line);
  if (characters.length <= maxCharacters) return line;
  const cut = characters.slice(0, maxCharacters).join('');
  const space = cut.lastIndexOf(' ');
  return `${space > maxCharacters / 2 ? cut.slice(0, space) : cut}…`;
}
