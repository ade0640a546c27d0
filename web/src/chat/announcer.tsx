// Tells a screen reader what is being answered: whole sentences, a few seconds apart.
import { useEffect, useRef, useState } from 'preact/hooks';
import { completedPart } from './announced_part';
import type { Message } from './conversation';
import { plainText } from './markdown';

const kEveryMs = 4000;
const kFreshMs = 10_000; // an answer that is no older is news

// `message` is the last answer.
export function Announcer({ message, isWriting }: { message: Message | null; isWriting: boolean }) {
  const [said, setSaid] = useState('');
  const told = useRef({ id: message?.id ?? '', from: 0 }); // up to where of which answer
  const latest = useRef(message);
  latest.current = message;
  const say = (isOver: boolean) => {
    const now = latest.current;
    if (!now || now.id !== told.current.id) return; // another conversation is open
    const part = completedPart(plainText(now.text), told.current.from, isOver);
    told.current.from += part.length;
    const end = now.state === 'failed' ? now.error : 'The answer is complete.';
    const words = isOver ? `${part} ${end}` : part;
    if (words.trim() !== '') setSaid(words.trim());
  };
  useEffect(() => {
    if (!message || (message.id === told.current.id && !isWriting)) return;
    const isFresh = Date.now() - message.timeMs < kFreshMs;
    told.current = { id: message.id, from: 0 };
    if (!isWriting) {
      if (isFresh && message.state !== 'writing') say(true); // it came all at once
      return;
    }
    setSaid('The model is answering.');
    const timer = setInterval(() => say(false), kEveryMs);
    return () => {
      clearInterval(timer);
      say(true);
    };
  }, [isWriting, message?.id]);
  return (
    <div class="off-screen" role="status" aria-live="polite" aria-atomic="true">
      {said}
    </div>
  );
}
