// Tells a screen reader what is being answered: whole sentences, a few seconds apart.
import { useEffect, useRef, useState } from 'preact/hooks';
import { completedPart } from './announced_part';
import type { Message } from './conversation';
import { plainText } from './markdown';

const kEveryMs = 4000;

export function Announcer({ message, isWriting }: { message: Message | null; isWriting: boolean }) {
  const [said, setSaid] = useState('');
  const state = useRef({ id: '', from: 0, nextMs: 0 });
  const latest = useRef({ message, isWriting });
  latest.current = { message, isWriting };
  useEffect(() => {
    if (!isWriting || !message) return;
    state.current = { id: message.id, from: 0, nextMs: performance.now() + kEveryMs };
    setSaid('The model is answering.');
    const say = (isOver: boolean) => {
      const { message: now } = latest.current;
      if (!now || now.id !== state.current.id) return;
      const text = plainText(now.text);
      const part = completedPart(text, state.current.from, isOver);
      state.current.from += part.length;
      const end = now.state === 'failed' ? now.error : 'The answer is complete.';
      const words = isOver ? `${part} ${end}` : part;
      if (words.trim() !== '') setSaid(words.trim());
    };
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
