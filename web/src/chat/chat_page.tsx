// The chat: the conversations at the side, the open one with its composer.
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Health } from '../api/server';
import { downloadText } from '../shell/clipboard';
import { Icon, IconButton } from '../shell/icons';
import { useModel } from '../shell/observable';
import { chatAddress, replaceAddress } from '../shell/route';
import type { ChatModel } from './chat_model';
import { Composer } from './composer';
import { ConversationList } from './conversation_list';
import { ConversationView } from './conversation_view';
import { SettingsDialog } from './settings_dialog';

interface ChatPageProps {
  model: ChatModel;
  id: string; // of the conversation in the address
  health: Health | null;
}

// Esc stops the answer, unless it closes or cancels something else.
function useStopWithEscape(model: ChatModel): void {
  useEffect(() => {
    const stop = (event: KeyboardEvent) => {
      if (event.key !== 'Escape' || event.defaultPrevented || event.isComposing) return;
      if (document.querySelector('dialog[open]')) return;
      model.stop();
    };
    addEventListener('keydown', stop);
    return () => removeEventListener('keydown', stop);
  }, [model]);
}

function Banners({ model }: { model: ChatModel }) {
  const { removed } = model;
  const undo = useRef<HTMLButtonElement>(null);
  useEffect(() => undo.current?.focus(), [removed]); // the button that deleted is gone
  return (
    <div class="banners" role="status">
      {model.trouble !== '' && <p class="banner warning">{model.trouble}</p>}
      {model.notice !== '' && (
        <p class="banner">
          <span>{model.notice}</span>
          <IconButton icon="close" label="Dismiss" onClick={() => model.dismiss()} />
        </p>
      )}
      {removed && (
        <p class="banner">
          <span>“{removed.conversation.title || 'Untitled'}” was deleted.</span>
          <button ref={undo} type="button" class="button" onClick={() => model.undoRemove()}>
            Undo
          </button>
          <IconButton icon="close" label="Dismiss" onClick={() => model.dismiss()} />
        </p>
      )}
    </div>
  );
}

export function ChatPage({ model, id, health }: ChatPageProps) {
  useModel(model);
  useStopWithEscape(model);
  const [isListOpen, setListOpen] = useState(false);
  const [isSettingsOpen, setSettingsOpen] = useState(false);
  const toggle = useRef<HTMLButtonElement>(null);
  const { open } = model;
  useEffect(() => {
    void model.show(id);
    setListOpen(false);
  }, [model, id]);
  // A conversation gets its address with its first message.
  useEffect(() => {
    if (open.messages.length > 0 && id === '') replaceAddress(chatAddress(open.id));
  }, [open, open.messages.length]);
  const title = open.title || 'New conversation';
  const closeList = (event: KeyboardEvent) => {
    if (event.key !== 'Escape' || event.defaultPrevented || !isListOpen) return;
    event.preventDefault();
    setListOpen(false);
    toggle.current?.focus();
  };
  return (
    <div class={`chat ${isListOpen ? 'list-open' : ''}`} onKeyDown={closeList}>
      <ConversationList model={model} onClose={() => setListOpen(false)} />
      <div class="backdrop" onClick={() => setListOpen(false)} />
      <main id="main" class="conversation" tabIndex={-1}>
        <div class="conversation-head">
          <button
            ref={toggle}
            type="button"
            class="icon-button list-toggle"
            aria-label="Conversations"
            aria-expanded={isListOpen}
            onClick={() => setListOpen(!isListOpen)}
          >
            <Icon name="bars" />
          </button>
          <h1 title={title}>{title}</h1>
          <IconButton
            icon="download"
            label="Export this conversation"
            disabled={open.messages.length === 0}
            onClick={() => downloadText(`hillstar-${open.id}.json`, model.exportOpen())}
          />
          <IconButton icon="settings" label="Settings" onClick={() => setSettingsOpen(true)} />
        </div>
        <Banners model={model} />
        <ConversationView model={model} health={health} />
        <Composer key={open.id} id={open.id} model={model} />
      </main>
      {isSettingsOpen && (
        <SettingsDialog health={health} onClose={() => setSettingsOpen(false)} />
      )}
    </div>
  );
}
