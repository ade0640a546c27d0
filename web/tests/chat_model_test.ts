import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ChatModel } from '../src/chat/chat_model';
import { type Conversation, shownMessages } from '../src/chat/conversation';
import { MemoryStore } from '../src/chat/conversation_store';
import { kDefaultSettings } from '../src/chat/settings';

// A browser whose storage can be full.
class FullStore extends MemoryStore {
  override readonly isLasting = true as unknown as false;
  isFull = false;
  override async save(conversation: Conversation) {
    if (this.isFull) throw new DOMException('full', 'QuotaExceededError');
    return super.save(conversation);
  }
}

const chunk = (text: string) =>
  `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: text }, finish_reason: null }] })}\n\n`;

let bodies: { messages: { role: string; content: string }[] }[];
let answer: () => Response;

beforeEach(() => {
  bodies = [];
  answer = () => new Response(`${chunk('An ')}${chunk('answer.')}data: [DONE]\n\n`);
  vi.stubGlobal('document', { baseURI: 'http://host/' });
  vi.stubGlobal('requestAnimationFrame', (callback: () => void) => setTimeout(callback, 0));
  vi.stubGlobal('fetch', async (_: URL, init: RequestInit) => {
    bodies.push(JSON.parse(init.body as string));
    return answer();
  });
});
afterEach(() => vi.unstubAllGlobals());

async function makeModel(store = new FullStore(), settings = kDefaultSettings) {
  const model = new ChatModel(store, () => settings);
  await model.start();
  return { model, store };
}

const ended = (model: ChatModel) => expect.poll(() => model.run()).toBeNull();
const texts = (model: ChatModel) => shownMessages(model.open).map((message) => message.text);

describe('ChatModel', () => {
  it('sends, answers and keeps', async () => {
    const { model, store } = await makeModel(undefined, { ...kDefaultSettings, system: 'Be brief.' });
    expect(await model.send('What is a river?')).toBe(true);
    await ended(model);
    expect(texts(model)).toEqual(['What is a river?', 'An answer.']);
    expect(bodies[0]!.messages).toEqual([
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'What is a river?' },
    ]);
    await expect.poll(async () => (await store.read(model.open.id))?.messages[1]?.state).toBe('done');
    expect(model.list().map((entry) => entry.title)).toEqual(['What is a river?']);
  });

  it('asks with the versions that are shown', async () => {
    const { model } = await makeModel();
    await model.send('one');
    await ended(model);
    await model.edit(shownMessages(model.open)[0]!, 'two');
    await ended(model);
    await model.send('three');
    await ended(model);
    expect(bodies[2]!.messages.map((message) => message.content)).toEqual(['two', 'An answer.', 'three']);
    expect(model.open.messages.filter((message) => message.parent === '')).toHaveLength(2);
  });

  it('keeps what was typed as a draft where the message itself cannot be kept', async () => {
    const { model, store } = await makeModel();
    model.setDraft(model.open.id, 'precious');
    store.isFull = true;
    await model.send('precious');
    await ended(model);
    await expect.poll(() => model.trouble).toContain('storage is full');
    expect(model.hasUnkept()).toBe(true);
    expect((await store.drafts()).map((draft) => draft.text)).toEqual(['precious']);
    expect(texts(model)).toEqual(['precious', 'An answer.']); // and in this tab
    expect(model.exportOpen()).toContain('precious');
    store.isFull = false;
    await model.rename(model.open.id, 'kept');
    await expect.poll(() => model.trouble).toBe('');
    expect((await store.read(model.open.id))!.messages).toHaveLength(2);
  });

  it('forgets the draft once the message is kept', async () => {
    const { model, store } = await makeModel();
    model.setDraft(model.open.id, 'hello');
    await model.send('hello');
    await ended(model);
    expect(model.draft(model.open.id)).toBe('');
    await expect.poll(() => store.drafts()).toEqual([]);
  });

  it('says what went wrong, keeps the question, and answers it again', async () => {
    const { model } = await makeModel();
    answer = () => new Response('{"error":{"message":"the prompt is too long"}}', { status: 400 });
    await model.send('long');
    await ended(model);
    const failed = shownMessages(model.open)[1]!;
    expect([failed.state, failed.error]).toEqual(['failed', 'The prompt is too long.']);
    answer = () => new Response(`${chunk('Now.')}data: [DONE]\n\n`);
    await model.regenerate(failed);
    await ended(model);
    expect(texts(model)).toEqual(['long', 'Now.']);
    expect(model.open.messages).toHaveLength(2); // the empty one is gone
  });

  it('asks for a key and goes on with it', async () => {
    const { model } = await makeModel();
    const wanted = vi.fn();
    model.onKeyWanted = wanted;
    answer = () => new Response('', { status: 401 });
    await model.send('hello');
    await ended(model);
    expect(wanted).toHaveBeenCalledOnce();
    answer = () => new Response(`${chunk('Hi.')}data: [DONE]\n\n`);
    await model.retryAfterKey();
    await ended(model);
    expect(texts(model)).toEqual(['hello', 'Hi.']);
  });

  it('puts a deleted conversation back, with its draft', async () => {
    const { model, store } = await makeModel();
    await model.send('hello');
    await ended(model);
    const { id } = model.open;
    model.setDraft(id, 'and then');
    await model.remove(id);
    expect(model.list()).toEqual([]);
    await expect.poll(() => store.read(id)).toBeNull();
    model.undoRemove();
    await expect.poll(async () => (await store.read(id))?.messages.length).toBe(2);
    await model.show(id);
    expect([texts(model), model.draft(id)]).toEqual([['hello', 'An answer.'], 'and then']);
  });

  it('adds to the latest state where another tab went on', async () => {
    const store = new FullStore();
    const { model: one } = await makeModel(store);
    await one.send('first');
    await ended(one);
    const { model: other } = await makeModel(store);
    await other.show(one.open.id);
    await other.send('second');
    await ended(other);
    await expect.poll(async () => (await store.read(one.open.id))?.messages.length).toBe(4);
    await one.send('third');
    await ended(one);
    expect(texts(one)).toEqual(['first', 'An answer.', 'second', 'An answer.', 'third', 'An answer.']);
    expect(await store.heads()).toHaveLength(1);
  });

  it('marks an answer whose tab was closed', async () => {
    const store = new FullStore();
    const { model } = await makeModel(store);
    await model.send('hello');
    await ended(model);
    const kept = (await store.read(model.open.id))!;
    kept.messages[1]!.state = 'writing';
    kept.updatedMs = Date.now() - 60_000;
    await store.restore(kept);
    const { model: later } = await makeModel(store);
    await later.show(kept.id);
    expect(shownMessages(later.open)[1]!.state).toBe('cut');
  });
});
