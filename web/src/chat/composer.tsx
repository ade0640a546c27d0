// Where the next message is typed. What is typed is kept as a draft all the time.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Icon } from '../shell/icons';
import type { ChatModel } from './chat_model';

const kKeepDraftAfterMs = 200;

// Whether a key sends what was typed: Enter, but not the one that ends a composed character.
export function isSendKey(event: KeyboardEvent): boolean {
  if (event.key !== 'Enter' || event.shiftKey || event.altKey) return false;
  return !event.isComposing && event.keyCode !== 229;
}

// As high as its text, where CSS's field-sizing does not do that by itself.
export function fitHeight(area: HTMLTextAreaElement): void {
  if (CSS.supports('field-sizing', 'content')) return;
  area.style.height = 'auto';
  area.style.height = `${area.scrollHeight + 2}px`;
}

export function Composer({ model, id }: { model: ChatModel; id: string }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const [text, setText] = useState(() => model.draft(id));
  const typed = useRef(text);
  const timer = useRef(0);
  const isRunning = model.run() !== null;

  const keepDraft = () => {
    if (timer.current === 0) return; // nothing was typed since
    clearTimeout(timer.current);
    timer.current = 0;
    model.setDraft(id, typed.current);
  };
  const change = (value: string) => {
    typed.current = value;
    setText(value);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(keepDraft, kKeepDraftAfterMs);
  };
  const send = async () => {
    if (isRunning || typed.current.trim() === '') return;
    keepDraft();
    if (await model.send(typed.current)) {
      typed.current = '';
      setText('');
    }
    area.current?.focus();
  };
  useLayoutEffect(() => {
    if (area.current) fitHeight(area.current);
  }, [text]);
  useEffect(() => {
    if (matchMedia('(pointer: fine)').matches) area.current?.focus({ preventScroll: true });
    addEventListener('visibilitychange', keepDraft);
    addEventListener('pagehide', keepDraft);
    return () => {
      keepDraft();
      removeEventListener('visibilitychange', keepDraft);
      removeEventListener('pagehide', keepDraft);
    };
  }, []);

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      <div class="composer-box">
        <textarea
          ref={area}
          rows={1}
          value={text}
          aria-label="Message"
          placeholder="Ask something"
          enterkeyhint="send"
          dir="auto"
          onInput={(event) => change(event.currentTarget.value)}
          onBlur={keepDraft}
          onKeyDown={(event) => {
            if (!isSendKey(event)) return;
            event.preventDefault();
            void send();
          }}
        />
        {isRunning ? (
          <button type="button" class="round stop" aria-label="Stop the answer (Esc)" title="Stop (Esc)" onClick={() => model.stop()}>
            <Icon name="stop" />
          </button>
        ) : (
          <button type="submit" class="round" aria-label="Send" title="Send (Enter)" disabled={text.trim() === ''}>
            <Icon name="send" />
          </button>
        )}
      </div>
      <p class="composer-hint">
        <kbd>Enter</kbd> sends, <kbd>Shift</kbd> <kbd>Enter</kbd> begins a new line. Answers can be
        wrong.
      </p>
    </form>
  );
}
