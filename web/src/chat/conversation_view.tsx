// The messages of the open conversation. It follows the newest words until the user scrolls away.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { Health } from '../api/server';
import { Icon } from '../shell/icons';
import { Mark } from '../shell/mark';
import { Announcer } from './announcer';
import type { ChatModel } from './chat_model';
import { childrenOf, shownMessages } from './conversation';
import { AnswerMessage, UserMessage } from './message_view';

const kNearEndPixels = 48;

const kExamples = [
  'List the first 12 prime numbers.',
  'Sort these words: green, black, white, Dan',
  'What is a river?',
  'Describe the word “tree” as JSON.',
];

function Welcome({ model, health }: { model: ChatModel; health: Health | null }) {
  const send = (example: string) => {
    void model.send(example);
    document.querySelector<HTMLElement>('.composer textarea')?.focus(); // the button goes away
  };
  return (
    <div class="welcome">
      <Mark class="welcome-mark" />
      <h2>What would you like to know?</h2>
      <p>
        {health?.model === 'pocket'
          ? 'The built-in model is very small and often wrong. It explains common words, counts, and sorts.'
          : 'Answers are computed by this server alone. Conversations are kept in this browser.'}
      </p>
      <ul class="examples">
        {kExamples.map((example) => (
          <li key={example}>
            <button type="button" class="example" onClick={() => send(example)}>
              {example}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

// The scrolled element follows its end; `isAway` once the user has scrolled up.
function useFollowing(changes: unknown[]) {
  const element = useRef<HTMLDivElement>(null);
  const following = useRef(true);
  const lastTop = useRef(0);
  const [isAway, setAway] = useState(false);
  const follow = () => {
    const box = element.current;
    if (!box || !following.current) return;
    box.scrollTop = box.scrollHeight;
    lastTop.current = box.scrollTop;
  };
  const toEnd = () => {
    following.current = true;
    setAway(false);
    follow();
  };
  const onScroll = () => {
    const box = element.current;
    if (!box) return;
    const isNearEnd = box.scrollHeight - box.scrollTop - box.clientHeight < kNearEndPixels;
    if (box.scrollTop < lastTop.current - 1 && !isNearEnd) following.current = false;
    else if (isNearEnd) following.current = true;
    lastTop.current = box.scrollTop;
    setAway(!following.current);
  };
  useLayoutEffect(follow, changes);
  useEffect(() => {
    const box = element.current;
    if (!box) return;
    const observer = new ResizeObserver(follow); // a phone's keyboard, code that becomes higher
    observer.observe(box);
    if (box.firstElementChild) observer.observe(box.firstElementChild);
    return () => observer.disconnect();
  }, []);
  return { element, isAway, toEnd, onScroll };
}

export function ConversationView({ model, health }: { model: ChatModel; health: Health | null }) {
  const { open } = model;
  const run = model.run();
  const shown = shownMessages(open);
  const last = shown[shown.length - 1];
  const { element, isAway, toEnd, onScroll } = useFollowing([
    open.id,
    shown.length,
    last?.text.length,
    last?.thinking.length,
    last?.state,
  ]);
  useEffect(toEnd, [open.id, shown.length]);
  return (
    <div class="scroll-frame">
      <div class="scroll" ref={element} onScroll={onScroll}>
        <div class="messages">
          {shown.length === 0 && <Welcome model={model} health={health} />}
          {shown.map((message) => {
            const versions = childrenOf(open, message.parent);
            const props = { model, message, versions };
            return message.role === 'user' ? (
              <UserMessage key={message.id} {...props} />
            ) : (
              <AnswerMessage key={message.id} {...props} run={run?.message === message ? run : null} />
            );
          })}
        </div>
      </div>
      {isAway && (
        <button type="button" class="to-end" onClick={toEnd}>
          <Icon name="down" /> Newest
        </button>
      )}
      <Announcer message={last?.role === 'assistant' ? last : null} isWriting={run !== null} />
    </div>
  );
}
