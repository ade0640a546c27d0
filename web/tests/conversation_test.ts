import { describe, expect, it } from 'vitest';
import { addMessage, newConversation, shownMessages, titleOf } from '../src/chat/conversation';
import { exportText, importText } from '../src/chat/export_file';
import { checkedSettings, kDefaultSettings, requestOf } from '../src/chat/settings';

function sample() {
  const conversation = newConversation('c', 1000);
  const question = addMessage(conversation, 'user', '', 'What is   a river?', 1001);
  const answer = addMessage(conversation, 'assistant', question.id, 'Water.', 1002);
  answer.state = 'done';
  return { conversation, question, answer };
}

const texts = (conversation: Parameters<typeof shownMessages>[0]) =>
  shownMessages(conversation).map((message) => message.text);

describe('conversations', () => {
  it('take their title from the first question', () => {
    expect(sample().conversation.title).toBe('What is a river?');
    expect(titleOf('x'.repeat(80))).toBe(`${'x'.repeat(60)}…`);
    expect(titleOf(`${'word '.repeat(20)}`)).toMatch(/^(word ){10,11}word…$/);
    expect(Array.from(titleOf('😀'.repeat(70)))).toHaveLength(61);
  });

  it('show the newest version, and the chosen one', () => {
    const { conversation, question, answer } = sample();
    addMessage(conversation, 'assistant', question.id, 'A stream.', 1003);
    expect(texts(conversation)).toEqual(['What is   a river?', 'A stream.']);
    conversation.chosen[question.id] = answer.id;
    expect(texts(conversation)).toEqual(['What is   a river?', 'Water.']);
  });

  it('keep what stood behind a question that was edited', () => {
    const { conversation, question } = sample();
    addMessage(conversation, 'user', '', 'What is a lake?', 1004);
    expect(texts(conversation)).toEqual(['What is a lake?']);
    conversation.chosen[''] = question.id;
    expect(texts(conversation)).toEqual(['What is   a river?', 'Water.']);
  });

  it('do not run in a circle that an imported file holds', () => {
    const { conversation, question, answer } = sample();
    conversation.messages.push({ ...question, parent: answer.id });
    expect(texts(conversation)).toHaveLength(2);
  });
});

describe('export and import', () => {
  it('keep everything but the id', () => {
    const { conversation } = sample();
    const [back] = importText(exportText([conversation]));
    expect(back!.id).not.toBe('c');
    expect(back!.revision).toBe(0);
    expect({ ...back, id: 'c' }).toEqual(conversation);
  });

  it('refuse with a sentence what is no export', () => {
    expect(() => importText('{')).toThrow('This file is no JSON');
    expect(() => importText('[]')).toThrow('the file is no object.');
    expect(() => importText('{"format":"x"}')).toThrow('"format" is not "hillstar-conversations".');
    const head = '{"format":"hillstar-conversations","version":1,"conversations":';
    expect(() => importText(`${head}{}}`)).toThrow('"conversations" is no array.');
    expect(() => importText(`${head}[{}]}`)).toThrow('conversations[0].messages is no array.');
    expect(() => importText(`${head}[{"messages":[{"id":"a","role":"system"}]}]}`)).toThrow(
      'conversations[0].messages[0].role is neither "user" nor "assistant".',
    );
    expect(() => importText(`${head}[{"messages":[{"id":"a","role":"user","text":7}]}]}`)).toThrow(
      'conversations[0].messages[0].text is no text.',
    );
    expect(() => importText('{"format":"hillstar-conversations","version":2}')).toThrow(
      '"version" is 2, and this page knows 1.',
    );
  });

  it('take no answer for one that is being written', () => {
    const { conversation, answer } = sample();
    answer.state = 'writing';
    expect(importText(exportText([conversation]))[0]!.messages[1]!.state).toBe('cut');
  });
});

describe('settings', () => {
  it('leave to the server what is not set', () => {
    expect(requestOf(kDefaultSettings)).toEqual({});
  });

  it('become members of the request', () => {
    const settings = checkedSettings({ temperature: 0, topP: 0.9, maxTokens: 12.7, thinking: 'on', effort: 'max' });
    expect(requestOf(settings)).toEqual({
      temperature: 0,
      top_p: 0.9,
      max_tokens: 12,
      chat_template_kwargs: { enable_thinking: true },
      reasoning_effort: 'max',
    });
  });

  it('tell no effort without thinking, which it would turn on', () => {
    expect(requestOf(checkedSettings({ thinking: 'off', effort: 'max' }))).toEqual({
      chat_template_kwargs: { enable_thinking: false },
    });
    expect(requestOf(checkedSettings({ effort: 'max' }))).toEqual({});
  });

  it('do not take what cannot be', () => {
    const broken = { temperature: 3, topP: '1', maxTokens: 0, thinking: 1, effort: null, system: {} };
    expect(checkedSettings(broken)).toEqual(kDefaultSettings);
    expect(checkedSettings(null)).toEqual(kDefaultSettings);
  });
});
