import 'fake-indexeddb/auto';
import { beforeEach, describe, expect, it } from 'vitest';
import { addMessage, newConversation } from '../src/chat/conversation';
import {
  type ConversationStore,
  kCopySuffix,
  MemoryStore,
  openStore,
  type StoreChange,
} from '../src/chat/conversation_store';

let count = 0;
const kinds: [string, () => Promise<ConversationStore>][] = [
  ['IndexedDB', () => openStore(`test-${++count}`)],
  ['memory', async () => new MemoryStore()],
];

describe.each(kinds)('the store in %s', (_, open) => {
  let store: ConversationStore;
  beforeEach(async () => {
    store = await open();
  });

  it('keeps, lists and removes', async () => {
    const conversation = newConversation('a', 1);
    addMessage(conversation, 'user', '', 'hello', 2);
    expect(await store.save(conversation)).toEqual({ kind: 'saved' });
    expect(conversation.revision).toBe(1);
    expect(await store.heads()).toEqual([{ id: 'a', title: 'hello', updatedMs: 2 }]);
    expect(await store.read('a')).toEqual(conversation);
    await store.remove('a');
    expect(await store.read('a')).toBeNull();
    expect(await store.heads()).toEqual([]);
  });

  it('keeps both sides of a conversation that two tabs changed', async () => {
    const mine = newConversation('a', 1);
    mine.title = 'Rivers';
    await store.save(mine);
    const theirs = (await store.read('a'))!;
    addMessage(theirs, 'user', '', 'theirs', 2);
    expect((await store.save(theirs)).kind).toBe('saved');
    addMessage(mine, 'user', '', 'mine', 3);
    const outcome = await store.save(mine);
    expect(outcome).toEqual({ kind: 'copied', id: mine.id });
    expect(mine.id).not.toBe('a');
    expect(mine.title.endsWith(kCopySuffix)).toBe(true);
    expect((await store.read('a'))!.messages.map((each) => each.text)).toEqual(['theirs']);
    expect((await store.read(mine.id))!.messages.map((each) => each.text)).toEqual(['mine']);
    expect((await store.save(mine)).kind).toBe('saved'); // the copy goes on as usual
  });

  it('lets two new conversations of one id become two', async () => {
    const [first, second] = [newConversation('a', 1), newConversation('a', 1)];
    await store.save(first);
    expect((await store.save(second)).kind).toBe('copied');
    expect(await store.heads()).toHaveLength(2);
  });

  it('leaves a conversation deleted that another tab still holds', async () => {
    const conversation = newConversation('a', 1);
    await store.save(conversation);
    await store.remove('a');
    expect((await store.save(conversation)).kind).toBe('gone');
    expect(await store.heads()).toEqual([]);
    await store.restore(conversation);
    expect((await store.read('a'))!.revision).toBe(1);
    expect((await store.save(conversation)).kind).toBe('saved');
  });

  it('keeps drafts until they are empty', async () => {
    await store.setDraft('a', 'half a th');
    await store.setDraft('b', 'x');
    await store.setDraft('b', '');
    expect((await store.drafts()).map(({ id, text }) => [id, text])).toEqual([['a', 'half a th']]);
  });
});

describe('the store in IndexedDB', () => {
  it('is the same for another tab, and tells it of changes', async () => {
    const name = `test-${++count}`;
    const [one, other] = [await openStore(name), await openStore(name)];
    expect(one.isLasting).toBe(true);
    const told: StoreChange[] = [];
    other.onChange((change) => told.push(change));
    const conversation = newConversation('a', 1);
    await one.save(conversation);
    await one.setDraft('a', 'x');
    await one.remove('a');
    await expect.poll(() => told.map(({ kind, id }) => [kind, id])).toEqual([
      ['saved', 'a'],
      ['draft', 'a'],
      ['removed', 'a'],
    ]);
    expect(await other.heads()).toEqual([]);
  });
});
