// The conversations of this tab: which one is open, what is being answered, what is kept. Views call
// its methods and watch it. Everything that is typed or answered is kept before anything else happens
// to it; where keeping fails, `trouble` says so and the tab holds on to it.
import type { ChatRequest, PromptMessage } from '../api/chat_completion';
import { Observable } from '../shell/observable';
import { AnswerRun } from './answer_run';
import {
  addMessage,
  type Conversation,
  type ConversationHead,
  headOf,
  type Message,
  newConversation,
  newId,
  shownMessages,
} from './conversation';
import { type ConversationStore, isQuotaError, type StoreChange } from './conversation_store';
import { exportText, importText } from './export_file';
import { type Settings, requestOf } from './settings';

export interface ListEntry extends ConversationHead {
  isDraft: boolean; // has words that were not sent
  isAnswering: boolean;
}

const kSaveEveryMs = 1000; // while an answer is written
const kOtherTabAliveMs = 5000; // it keeps its answer at least that often

// Names in the tab's storage: the id of a conversation that is not kept yet, and
const kNewIdName = 'hillstar-new-conversation';
const kRunsName = 'hillstar-runs'; // ids of the messages that are being written

export class ChatModel extends Observable {
  open: Conversation;
  trouble = ''; // why something could not be kept
  notice = ''; // what else the user has to know
  removed: { conversation: Conversation; draft: string } | null = null; // can be put back
  onKeyWanted: () => void = () => {};
  onMoved: (id: string) => void = () => {}; // the open conversation has another id now
  settings: () => Settings;
  modelName = '';
  private heads = new Map<string, ConversationHead>();
  private drafts = new Map<string, string>();
  private readonly runs = new Map<Conversation, AnswerRun>();
  private readonly endedByReload = runsBeforeReload();
  private readonly failedForKey = new Set<string>(); // ids of messages
  private isLeaving = false;
  private saving: Promise<unknown> = Promise.resolve();
  private readonly unkept = new Set<Conversation>();

  constructor(
    private readonly store: ConversationStore,
    settings: () => Settings,
  ) {
    super();
    this.settings = settings;
    this.open = this.fresh();
    store.onChange((change) => void this.takeChange(change));
    if (!store.isLasting) {
      this.trouble = 'This browser keeps nothing for this page: conversations end with this tab.';
    }
  }

  async start(): Promise<void> {
    for (const head of await this.store.heads()) this.heads.set(head.id, head);
    for (const draft of await this.store.drafts()) this.drafts.set(draft.id, draft.text);
    this.open = this.fresh();
    this.changed();
  }

  // Latest first.
  list(): ListEntry[] {
    const entries = new Map<string, ListEntry>();
    for (const head of this.heads.values()) {
      entries.set(head.id, { ...head, isDraft: this.drafts.has(head.id), isAnswering: false });
    }
    for (const [id, text] of this.drafts) {
      if (entries.has(id) || id === this.open.id) continue;
      const title = text.trim().slice(0, 60);
      entries.set(id, { id, title, updatedMs: Date.now(), isDraft: true, isAnswering: false });
    }
    for (const { conversation } of this.runs.values()) {
      const entry = entries.get(conversation.id);
      if (entry) entry.isAnswering = true;
    }
    return [...entries.values()].sort((a, b) => b.updatedMs - a.updatedMs);
  }

  run(): AnswerRun | null {
    return this.runs.get(this.open) ?? null;
  }

  // '' or an unknown id opens a new conversation.
  async show(id: string): Promise<void> {
    this.notice = '';
    if (id === this.open.id) return this.changed();
    const running = [...this.runs.keys(), ...this.unkept].find((each) => each.id === id);
    let found = running ?? (id === '' ? null : await this.store.read(id));
    if (!found && id !== '' && this.drafts.has(id)) found = newConversation(id, Date.now());
    if (!found && id !== '') this.notice = 'That conversation is not kept in this browser.';
    if (found && !running) this.markCut(found);
    this.open = found ?? this.fresh();
    this.watchForCut();
    this.changed();
  }

  draft(id: string): string {
    return this.drafts.get(id) ?? '';
  }

  setDraft(id: string, text: string): void {
    if (text === '') this.drafts.delete(id);
    else this.drafts.set(id, text);
    this.changed();
    this.keep(() => this.store.setDraft(id, text));
  }

  // Whether the message was taken.
  async send(text: string, parent?: string): Promise<boolean> {
    const conversation = await this.latestOpen();
    if (!conversation) return false;
    const shown = shownMessages(conversation);
    const under = parent ?? shown[shown.length - 1]?.id ?? '';
    const question = addMessage(conversation, 'user', under, text, Date.now());
    this.answer(conversation, question);
    if (parent === undefined) this.dropDraft(conversation);
    return true;
  }

  // Another version of a question, and its answer.
  async edit(message: Message, text: string): Promise<boolean> {
    return this.send(text, message.parent);
  }

  // Another answer to the same question.
  async regenerate(answer: Message): Promise<void> {
    const conversation = await this.latestOpen();
    const question = conversation?.messages.find((message) => message.id === answer.parent);
    if (!conversation || !question) return;
    const isEmpty = answer.text === '' && answer.thinking === '';
    if (isEmpty) conversation.messages = conversation.messages.filter(({ id }) => id !== answer.id);
    this.answer(conversation, question);
  }

  stop(): void {
    this.run()?.stop();
  }

  // Shows another version of a message.
  choose(message: Message): void {
    this.open.chosen[message.parent] = message.id;
    this.save(this.open);
  }

  async rename(id: string, title: string): Promise<void> {
    const known = [this.open, ...this.runs.keys()].find((each) => each.id === id);
    const conversation = known ?? (await this.store.read(id));
    if (!conversation || title.trim() === '') return;
    conversation.title = title.trim();
    conversation.hasOwnTitle = true;
    this.save(conversation);
  }

  async remove(id: string): Promise<void> {
    for (const run of this.runs.values()) if (run.conversation.id === id) run.stop();
    const conversation = id === this.open.id ? this.open : await this.store.read(id);
    const draft = this.drafts.get(id) ?? '';
    this.removed = conversation || draft ? { conversation: conversation ?? newConversation(id, Date.now()), draft } : null;
    this.forget(id);
    this.keep(() => this.store.remove(id));
    for (const each of this.unkept) this.save(each); // there may be room now
  }

  undoRemove(): void {
    const back = this.removed;
    this.removed = null;
    if (!back) return;
    const { conversation, draft } = back;
    if (conversation.messages.length > 0) {
      this.heads.set(conversation.id, headOf(conversation));
      this.keep(() => this.store.restore(conversation));
    }
    if (draft !== '') {
      this.drafts.set(conversation.id, draft);
      this.keep(() => this.store.setDraft(conversation.id, draft));
    }
    this.changed();
  }

  dismiss(): void {
    this.removed = null;
    this.notice = '';
    this.changed();
  }

  tell(notice: string): void {
    this.notice = notice;
    this.changed();
  }

  // Answers again what failed for want of a key.
  async retryAfterKey(): Promise<void> {
    const last = shownMessages(this.open).at(-1);
    if (last?.state === 'failed' && this.failedForKey.has(last.id)) await this.regenerate(last);
  }

  // The file's text.
  async exportAll(): Promise<string> {
    await this.saving;
    const all: Conversation[] = [];
    for (const id of this.heads.keys()) {
      const here = [this.open, ...this.runs.keys(), ...this.unkept].find((each) => each.id === id);
      const conversation = here ?? (await this.store.read(id));
      if (conversation) all.push(conversation);
    }
    return exportText(all);
  }

  exportOpen(): string {
    return exportText([this.open]);
  }

  // Throws an Error whose message is a sentence.
  async importFile(content: string): Promise<number> {
    const imported = importText(content);
    for (const conversation of imported) this.save(conversation);
    await this.saving;
    return imported.length;
  }

  // While the page goes away its requests fail, which means nothing.
  setLeaving(isLeaving: boolean): void {
    this.isLeaving = isLeaving;
  }

  hasUnkept(): boolean {
    return this.unkept.size > 0;
  }

  // What was sent is no draft any more, as soon as the message itself is kept.
  private dropDraft(conversation: Conversation): void {
    const { id } = conversation;
    this.drafts.delete(id);
    this.keep(async () => {
      if (!this.unkept.has(conversation)) await this.store.setDraft(id, '');
    });
  }

  private answer(conversation: Conversation, question: Message): void {
    const { system } = this.settings();
    const messages: PromptMessage[] = system.trim() === '' ? [] : [{ role: 'system', content: system }];
    const answer = addMessage(conversation, 'assistant', question.id, '', Date.now());
    for (const message of shownMessages(conversation)) {
      if (message.id !== answer.id) messages.push(promptMessageOf(message));
    }
    const request: ChatRequest = { messages, ...requestOf(this.settings()) };
    let savedMs = Date.now();
    const run = new AnswerRun(conversation, answer, request, this.modelName, () => {
      if (Date.now() - savedMs > kSaveEveryMs) {
        savedMs = Date.now();
        this.save(conversation);
      }
      this.changed();
    });
    this.runs.set(conversation, run);
    this.noteRuns();
    // Its id is taken now, also where it is deleted later.
    if (tabStorage(kNewIdName) === conversation.id) keepInTab(kNewIdName, '');
    this.save(conversation);
    void run.run().then(() => this.endRun(run));
  }

  private endRun(run: AnswerRun): void {
    this.runs.delete(run.conversation);
    this.noteRuns();
    run.conversation.updatedMs = Date.now();
    this.save(run.conversation);
    if (run.error?.kind === 'key') {
      this.failedForKey.add(run.message.id);
      this.onKeyWanted();
    }
  }

  // The open conversation as it is kept now, if an answer may be added to it.
  private async latestOpen(): Promise<Conversation | null> {
    if (this.runs.has(this.open)) return null;
    await this.saving;
    const kept = await this.store.read(this.open.id).catch(() => null);
    const latest = kept && kept.revision > this.open.revision ? kept : this.open;
    this.markCut(latest);
    if (latest.messages.some((message) => message.state === 'writing')) {
      this.notice = 'Another tab is writing an answer to this conversation. Wait for its end.';
      this.changed();
      return null;
    }
    this.open = latest;
    return latest;
  }

  // What is typed in it outlives a reload of the tab: its id stays the same until it is kept.
  private fresh(): Conversation {
    let id = tabStorage(kNewIdName);
    if (id === '' || this.heads.has(id)) id = newId();
    keepInTab(kNewIdName, id);
    return newConversation(id, Date.now());
  }

  private noteRuns(): void {
    if (this.isLeaving) return;
    keepInTab(kRunsName, [...this.runs.values()].map((run) => run.message.id).join(' '));
  }

  // Marks answers that nobody writes any more: this tab was reloaded, or another one closed.
  private markCut(conversation: Conversation): void {
    const isStale = Date.now() - conversation.updatedMs >= kOtherTabAliveMs;
    for (const message of conversation.messages) {
      if (message.state !== 'writing') continue;
      if (isStale || this.endedByReload.has(message.id)) message.state = 'cut';
    }
  }

  // Another tab that writes an answer tells of it all the time; one that was closed does not.
  private watchForCut(): void {
    const conversation = this.open;
    if (this.runs.has(conversation)) return;
    if (!conversation.messages.some((message) => message.state === 'writing')) return;
    setTimeout(() => {
      if (this.open !== conversation) return;
      this.markCut(conversation);
      this.changed();
    }, kOtherTabAliveMs + 500);
  }

  private save(conversation: Conversation): void {
    if (this.runs.has(conversation)) conversation.updatedMs = Date.now();
    this.heads.set(conversation.id, headOf(conversation));
    this.changed();
    this.unkept.add(conversation);
    this.keep(async () => {
      const before = conversation.id;
      const outcome = await this.store.save(conversation);
      this.unkept.delete(conversation);
      if (outcome.kind === 'gone') this.forget(before);
      if (outcome.kind !== 'copied') return;
      const theirs = await this.store.read(before);
      if (theirs) this.heads.set(before, headOf(theirs));
      this.heads.set(conversation.id, headOf(conversation));
      this.notice = 'Another tab changed this conversation; what this tab added is now a copy.';
      if (conversation === this.open) this.onMoved(conversation.id);
    });
  }

  // One change after the other.
  private keep(change: () => Promise<unknown>): void {
    this.saving = this.saving.then(change).then(
      () => {
        if (this.store.isLasting && this.unkept.size === 0) this.trouble = '';
        this.changed();
      },
      (error: unknown) => {
        this.trouble = isQuotaError(error)
          ? 'The browser’s storage is full. What is new is in this tab only: export it, or delete ' +
            'other conversations.'
          : `The browser could not keep the last change (${String(error)}). It is in this tab only.`;
        this.changed();
      },
    );
  }

  private forget(id: string): void {
    this.heads.delete(id);
    this.drafts.delete(id);
    for (const each of this.unkept) if (each.id === id) this.unkept.delete(each);
    if (this.open.id === id) {
      this.open = this.fresh();
      this.onMoved('');
    }
    this.changed();
  }

  // Another tab has changed something.
  private async takeChange(change: StoreChange): Promise<void> {
    const { id } = change;
    const isOpen = id === this.open.id;
    if (change.kind === 'removed') {
      for (const run of this.runs.values()) if (run.conversation.id === id) run.stop();
      if (isOpen) this.notice = 'Another tab deleted the conversation that was open here.';
      return this.forget(id);
    }
    if (change.kind === 'draft') {
      const draft = (await this.store.drafts()).find((each) => each.id === id);
      if (isOpen) return; // what is being typed here stays
      if (draft) this.drafts.set(id, draft.text);
      else this.drafts.delete(id);
      return this.changed();
    }
    const kept = await this.store.read(id);
    if (!kept) return;
    this.heads.set(id, headOf(kept));
    const hasOwnChanges = this.runs.has(this.open) || this.unkept.has(this.open);
    if (this.open.id === id && !hasOwnChanges && kept.revision > this.open.revision) {
      this.open = kept;
      this.watchForCut();
    }
    this.changed();
  }
}

function promptMessageOf(message: Message): PromptMessage {
  const { role, text, thinking } = message;
  return thinking === ''
    ? { role, content: text }
    : { role, content: text, reasoning_content: thinking };
}

// What outlives a reload of this tab, and is of no other. '' where there is nothing.
function tabStorage(name: string): string {
  try {
    return sessionStorage.getItem(name) ?? '';
  } catch {
    return '';
  }
}

function keepInTab(name: string, value: string): void {
  try {
    sessionStorage.setItem(name, value);
  } catch {
    // The browser keeps nothing: a draft is then found in the list.
  }
}

// Ids of the messages that this tab was writing when it was reloaded. A tab that was duplicated has a
// copy of the other's notes, but was not reloaded.
function runsBeforeReload(): Set<string> {
  const [entry] = performance.getEntriesByType('navigation') as PerformanceNavigationTiming[];
  return new Set(entry?.type === 'reload' ? tabStorage(kRunsName).split(' ') : []);
}
