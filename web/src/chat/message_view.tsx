// One message with what can be done to it.
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from 'preact/hooks';
import { copyText } from '../shell/clipboard';
import { plural, rate, seconds, whole } from '../shell/format';
import { Icon, IconButton } from '../shell/icons';
import { Mark } from '../shell/mark';
import type { AnswerRun } from './answer_run';
import type { ChatModel } from './chat_model';
import { fitHeight, isSendKey } from './composer';
import type { AnswerStats, Message } from './conversation';
import { MarkdownView } from './markdown_view';

interface MessageProps {
  model: ChatModel;
  message: Message;
  versions: Message[]; // it and those that stand in its place
}

function CopyButton({ text }: { text: string }) {
  const [done, setDone] = useState(false);
  const copy = () => {
    void copyText(text).then((copied) => {
      setDone(copied);
      setTimeout(() => setDone(false), 2000);
    });
  };
  return <IconButton icon={done ? 'check' : 'copy'} label={done ? 'Copied' : 'Copy'} onClick={copy} />;
}

function Versions({ model, message, versions }: MessageProps) {
  if (versions.length < 2) return null;
  const at = versions.findIndex((each) => each.id === message.id);
  const isBusy = model.run() !== null;
  const show = (index: number) => model.choose(versions[index]!);
  return (
    <span class="versions" role="group" aria-label="Versions">
      <IconButton icon="left" label="Earlier version" disabled={at === 0 || isBusy} onClick={() => show(at - 1)} />
      <span>
        {at + 1}/{versions.length}
      </span>
      <IconButton
        icon="right"
        label="Later version"
        disabled={at === versions.length - 1 || isBusy}
        onClick={() => show(at + 1)}
      />
    </span>
  );
}

function EditMessage({ model, message, onEnd }: { model: ChatModel; message: Message; onEnd: () => void }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const [text, setText] = useState(message.text);
  useEffect(() => area.current?.focus(), []);
  useLayoutEffect(() => {
    if (area.current) fitHeight(area.current);
  }, [text]);
  const send = async () => {
    if (text.trim() !== '' && (await model.edit(message, text))) onEnd();
  };
  return (
    <form
      class="edit"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      <textarea
        ref={area}
        aria-label="Edit the message"
        dir="auto"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === 'Escape') {
            event.preventDefault();
            onEnd();
          } else if (isSendKey(event)) {
            event.preventDefault();
            void send();
          }
        }}
      />
      <div class="edit-actions">
        <button type="button" class="button" onClick={onEnd}>
          Cancel
        </button>
        <button type="submit" class="button primary" disabled={text.trim() === '' || model.run() !== null}>
          Send again
        </button>
      </div>
    </form>
  );
}

export function UserMessage(props: MessageProps) {
  const { model, message } = props;
  const [isEditing, setEditing] = useState(false);
  const button = useRef<HTMLDivElement>(null);
  const endEdit = () => {
    setEditing(false);
    requestAnimationFrame(() => button.current?.querySelector('button')?.focus());
  };
  return (
    <article class={`message user ${isEditing ? 'editing' : ''}`} aria-label="You">
      {isEditing ? (
        <EditMessage model={model} message={message} onEnd={endEdit} />
      ) : (
        <>
          <div class="bubble" dir="auto">
            {message.text}
          </div>
          <div class="actions" ref={button}>
            <IconButton icon="edit" label="Edit" disabled={model.run() !== null} onClick={() => setEditing(true)} />
            <CopyButton text={message.text} />
            <Versions {...props} />
          </div>
        </>
      )}
    </article>
  );
}

// Folded away; says for how long the model has thought.
function Thinking({ message, run }: { message: Message; run: AnswerRun | null }) {
  const isThinking = run?.phase === 'thinking';
  const [, tick] = useReducer((count: number, _: void) => count + 1, 0);
  useEffect(() => {
    if (!isThinking) return;
    const timer = setInterval(() => tick(), 500);
    return () => clearInterval(timer);
  }, [isThinking]);
  if (message.thinking === '') return null;
  const time = seconds(Math.max(1, Math.round(run ? run.thinkingSeconds() : message.thinkingSeconds)));
  const whole = time.replace('.0', '');
  return (
    <details class={`thinking ${isThinking ? 'active' : ''}`}>
      <summary>{isThinking ? `Thinking… ${whole}` : `Thought for ${whole}`}</summary>
      <div class="thinking-text" dir="auto">
        {message.thinking}
      </div>
    </details>
  );
}

function Waiting({ run }: { run: AnswerRun }) {
  const { done, total } = run.progress;
  if (run.phase !== 'reading' || total === 0) {
    return (
      <p class="waiting">
        <span class="dots" aria-hidden="true" /> Waiting for the first word
      </p>
    );
  }
  return (
    <p class="waiting">
      <span>
        Reading the prompt: {whole(done)} of {plural(total, 'token')}
      </span>
      <progress value={done} max={total} aria-label="Reading the prompt" />
    </p>
  );
}

function statsText(stats: AnswerStats): string {
  const parts = [plural(stats.answerTokens, 'token')];
  if (stats.tokensPerSecond > 0) parts.push(`${rate(stats.tokensPerSecond)} tok/s`);
  parts.push(`first after ${seconds(stats.firstTokenSeconds)}`);
  const cached = stats.cachedTokens > 0 ? `, ${whole(stats.cachedTokens)} of it known` : '';
  parts.push(`prompt ${whole(stats.promptTokens)}${cached}`);
  return parts.join(' · ');
}

// What became of an answer that is not simply there.
function endText(message: Message): string {
  switch (message.state) {
    case 'stopped': return 'You stopped this answer.';
    case 'full': return 'The answer reached its longest length and ends here. Settings can allow more.';
    case 'cut': return 'This answer was cut off when its tab was closed or reloaded.';
    case 'failed': return message.error;
    default: return '';
  }
}

function AnswerEnd({ model, message }: { model: ChatModel; message: Message }) {
  const text = endText(message);
  if (text === '') return null;
  const isFailed = message.state === 'failed';
  return (
    <div class={`answer-end ${isFailed ? 'failed' : ''}`} role={isFailed ? 'alert' : undefined}>
      <span>{text}</span>
      {message.state !== 'full' && (
        <button type="button" class="button" disabled={model.run() !== null} onClick={() => void model.regenerate(message)}>
          <Icon name="retry" /> Try again
        </button>
      )}
    </div>
  );
}

export function AnswerMessage(props: MessageProps & { run: AnswerRun | null }) {
  const { model, message, run } = props;
  const isElsewhere = message.state === 'writing' && !run;
  const isEmpty = message.text === '' && message.thinking === '';
  return (
    <article class={`message answer ${run ? 'writing' : ''}`} aria-label="Answer" aria-busy={run !== null}>
      <Mark class="answer-mark" />
      <div class="answer-body">
        <Thinking message={message} run={run} />
        {message.text !== '' && <MarkdownView text={message.text} />}
        {run && isEmpty && <Waiting run={run} />}
        {isElsewhere && <p class="waiting">Another tab is writing this answer.</p>}
        <AnswerEnd model={model} message={message} />
        {!run && !isElsewhere && (
          <div class="actions">
            {message.text !== '' && <CopyButton text={message.text} />}
            <IconButton
              icon="retry"
              label="Answer again"
              disabled={model.run() !== null}
              onClick={() => void model.regenerate(message)}
            />
            <Versions {...props} />
            {message.stats && <span class="stats">{statsText(message.stats)}</span>}
          </div>
        )}
      </div>
    </article>
  );
}
