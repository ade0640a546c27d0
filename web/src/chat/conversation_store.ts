// Conversations and drafts in the browser's IndexedDB. Several tabs share them: a change is kept only
// if nobody else has changed the conversation since it was read; otherwise it is kept as a copy.
// Where the browser has no IndexedDB, all is kept in memory, and isLasting is false.
import { type Conversation, type ConversationHead, headOf, newId } from './conversation';

export interface Draft {
  id: string; // of the conversation
  text: string;
  timeMs: number;
}

export type SaveOutcome =
  | { kind: 'saved' }
  | { kind: 'copied'; id: string } // another tab had changed it: now a conversation of its own
  | { kind: 'gone' }; // deleted in the meantime, and left so

export type StoreChange =
  | { kind: 'saved' | 'removed'; id: string; revision: number }
  | { kind: 'draft'; id: string };

export interface ConversationStore {
  readonly isLasting: boolean;
  heads(): Promise<ConversationHead[]>;
  read(id: string): Promise<Conversation | null>;
  // Sets revision and, of a copy, id and title.
  save(conversation: Conversation): Promise<SaveOutcome>;
  // As the only thing of its id, for one that was removed before.
  restore(conversation: Conversation): Promise<void>;
  remove(id: string): Promise<void>;
  drafts(): Promise<Draft[]>;
  // '' removes it.
  setDraft(id: string, text: string): Promise<void>;
  // Changes that other tabs make.
  onChange(listener: (change: StoreChange) => void): void;
}

export const kCopySuffix = ' (copy of this tab)';

function becomeCopy(conversation: Conversation): void {
  conversation.id = newId();
  conversation.title += kCopySuffix;
  conversation.hasOwnTitle = true;
  conversation.revision = 1;
}

// Decides what a save does, given what is kept now; changes `conversation` accordingly.
function prepareSave(conversation: Conversation, keptRevision: number | undefined): SaveOutcome {
  if (keptRevision === undefined && conversation.revision > 0) return { kind: 'gone' };
  if (keptRevision !== undefined && keptRevision !== conversation.revision) {
    becomeCopy(conversation);
    return { kind: 'copied', id: conversation.id };
  }
  conversation.revision += 1;
  return { kind: 'saved' };
}

export class MemoryStore implements ConversationStore {
  readonly isLasting = false;
  private readonly kept = new Map<string, Conversation>();
  private readonly keptDrafts = new Map<string, Draft>();

  async heads() {
    return [...this.kept.values()].map(headOf);
  }
  async read(id: string) {
    const found = this.kept.get(id);
    return found ? structuredClone(found) : null;
  }
  async save(conversation: Conversation) {
    const outcome = prepareSave(conversation, this.kept.get(conversation.id)?.revision);
    if (outcome.kind !== 'gone') this.kept.set(conversation.id, structuredClone(conversation));
    return outcome;
  }
  async restore(conversation: Conversation) {
    this.kept.set(conversation.id, structuredClone(conversation));
  }
  async remove(id: string) {
    this.kept.delete(id);
  }
  async drafts() {
    return [...this.keptDrafts.values()];
  }
  async setDraft(id: string, text: string) {
    if (text === '') this.keptDrafts.delete(id);
    else this.keptDrafts.set(id, { id, text, timeMs: Date.now() });
  }
  onChange() {}
}

function result<Value>(request: IDBRequest<Value>): Promise<Value> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// Errors of a full disk arrive only when the transaction ends.
function completed(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new DOMException('Aborted'));
  });
}

const kConversations = 'conversations';
const kHeads = 'heads'; // what the list shows, so that it need not read every conversation
const kDrafts = 'drafts';

class IndexedStore implements ConversationStore {
  readonly isLasting = true;
  private readonly channel =
    typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel('hillstar-conversations');

  constructor(private readonly db: IDBDatabase) {
    db.onversionchange = () => db.close(); // a newer page wants to change the database
  }

  heads(): Promise<ConversationHead[]> {
    return result(this.db.transaction(kHeads).objectStore(kHeads).getAll());
  }

  async read(id: string): Promise<Conversation | null> {
    const kept = this.db.transaction(kConversations).objectStore(kConversations).get(id);
    return ((await result(kept)) as Conversation | undefined) ?? null;
  }

  async save(conversation: Conversation): Promise<SaveOutcome> {
    const { id, title, hasOwnTitle, revision } = conversation;
    const transaction = this.db.transaction([kConversations, kHeads], 'readwrite');
    const done = completed(transaction);
    done.catch(() => {}); // awaited below, unless reading fails first
    try {
      const kept = (await result(transaction.objectStore(kConversations).get(id))) as
        | Conversation
        | undefined;
      const outcome = prepareSave(conversation, kept?.revision);
      if (outcome.kind !== 'gone') this.put(transaction, conversation);
      await done;
      if (outcome.kind !== 'gone') this.tell('saved', conversation);
      return outcome;
    } catch (error) {
      Object.assign(conversation, { id, title, hasOwnTitle, revision }); // nothing was kept
      throw error;
    }
  }

  async restore(conversation: Conversation): Promise<void> {
    const transaction = this.db.transaction([kConversations, kHeads], 'readwrite');
    const done = completed(transaction);
    this.put(transaction, conversation);
    await done;
    this.tell('saved', conversation);
  }

  async remove(id: string): Promise<void> {
    const transaction = this.db.transaction([kConversations, kHeads, kDrafts], 'readwrite');
    const done = completed(transaction);
    for (const name of [kConversations, kHeads, kDrafts]) transaction.objectStore(name).delete(id);
    await done;
    this.channel?.postMessage({ kind: 'removed', id, revision: 0 } satisfies StoreChange);
  }

  drafts(): Promise<Draft[]> {
    return result(this.db.transaction(kDrafts).objectStore(kDrafts).getAll());
  }

  async setDraft(id: string, text: string): Promise<void> {
    const transaction = this.db.transaction(kDrafts, 'readwrite');
    const done = completed(transaction);
    const drafts = transaction.objectStore(kDrafts);
    if (text === '') drafts.delete(id);
    else drafts.put({ id, text, timeMs: Date.now() } satisfies Draft);
    await done;
    this.channel?.postMessage({ kind: 'draft', id } satisfies StoreChange);
  }

  onChange(listener: (change: StoreChange) => void): void {
    this.channel?.addEventListener('message', (event) => listener(event.data as StoreChange));
  }

  private put(transaction: IDBTransaction, conversation: Conversation): void {
    transaction.objectStore(kConversations).put(conversation);
    transaction.objectStore(kHeads).put(headOf(conversation));
  }

  private tell(kind: 'saved', { id, revision }: Conversation): void {
    this.channel?.postMessage({ kind, id, revision } satisfies StoreChange);
  }
}

function openDatabase(name: string): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => {
      for (const store of [kConversations, kHeads, kDrafts]) {
        request.result.createObjectStore(store, { keyPath: 'id' });
      }
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export async function openStore(name = 'hillstar'): Promise<ConversationStore> {
  try {
    return new IndexedStore(await openDatabase(name));
  } catch {
    return new MemoryStore();
  }
}

export function isQuotaError(error: unknown): boolean {
  return error instanceof DOMException && error.name === 'QuotaExceededError';
}
