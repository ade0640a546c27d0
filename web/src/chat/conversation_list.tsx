// The conversations of this browser: open, rename, delete, export, import.
import { useEffect, useRef, useState } from 'preact/hooks';
import { downloadText } from '../shell/clipboard';
import { when } from '../shell/format';
import { Icon, IconButton } from '../shell/icons';
import { chatAddress } from '../shell/route';
import type { ChatModel, ListEntry } from './chat_model';

interface RenameProps {
  title: string;
  onEnd: (title: string) => void; // '' leaves it as it is
}

function Rename({ title, onEnd }: RenameProps) {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.select(), []);
  return (
    <form
      class="rename"
      onSubmit={(event) => {
        event.preventDefault();
        onEnd(input.current?.value ?? '');
      }}
    >
      <input
        ref={input}
        aria-label="Title"
        defaultValue={title}
        maxLength={200}
        onBlur={(event) => onEnd(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== 'Escape') return;
          event.preventDefault();
          onEnd('');
        }}
      />
    </form>
  );
}

function note(entry: ListEntry): string {
  if (entry.isAnswering) return 'answering…';
  return entry.isDraft ? 'unsent draft' : when(entry.updatedMs, Date.now());
}

function Entry({ model, entry }: { model: ChatModel; entry: ListEntry }) {
  const [isRenaming, setRenaming] = useState(false);
  const { id, title } = entry;
  const isOpen = id === model.open.id;
  if (isRenaming) {
    const end = (value: string) => {
      setRenaming(false);
      if (value !== '' && value !== title) void model.rename(id, value);
    };
    return (
      <li class="entry">
        <Rename title={title} onEnd={end} />
      </li>
    );
  }
  return (
    <li class={`entry ${isOpen ? 'open' : ''}`}>
      <a href={chatAddress(id)} aria-current={isOpen ? 'true' : undefined} title={title}>
        <span class="entry-title">{title}</span>
        <span class="entry-note">{note(entry)}</span>
      </a>
      <span class="entry-actions">
        <IconButton icon="edit" label={`Rename “${title}”`} onClick={() => setRenaming(true)} />
        <IconButton icon="trash" label={`Delete “${title}”`} onClick={() => void model.remove(id)} />
      </span>
    </li>
  );
}

// Opens the browser's choice of a file.
function ImportButton({ model }: { model: ChatModel }) {
  const input = useRef<HTMLInputElement>(null);
  const read = async () => {
    const files = Array.from(input.current?.files ?? []);
    if (input.current) input.current.value = '';
    for (const file of files) {
      try {
        const count = await model.importFile(await file.text());
        model.tell(`${count === 1 ? 'One conversation was' : `${count} conversations were`} imported.`);
      } catch (error) {
        model.tell(error instanceof Error ? error.message : String(error));
      }
    }
  };
  return (
    <>
      <button type="button" class="button quiet" onClick={() => input.current?.click()}>
        <Icon name="upload" /> Import
      </button>
      <input
        ref={input}
        class="off-screen"
        type="file"
        accept=".json,application/json"
        multiple
        tabIndex={-1}
        aria-hidden="true"
        onChange={() => void read()}
      />
    </>
  );
}

export function ConversationList({ model, onClose }: { model: ChatModel; onClose: () => void }) {
  const entries = model.list();
  const exportAll = async () => downloadText('hillstar-conversations.json', await model.exportAll());
  return (
    <aside class="side" aria-label="Conversations">
      <div class="side-head">
        <a class="button new" href="#/chat">
          <Icon name="plus" /> New conversation
        </a>
        <IconButton icon="close" label="Close the list" class="side-close" onClick={onClose} />
      </div>
      {entries.length === 0 ? (
        <p class="side-empty">Conversations are kept in this browser and nowhere else.</p>
      ) : (
        <ul class="entries">
          {entries.map((entry) => (
            <Entry key={entry.id} model={model} entry={entry} />
          ))}
        </ul>
      )}
      <div class="side-foot">
        <ImportButton model={model} />
        <button type="button" class="button quiet" disabled={entries.length === 0} onClick={() => void exportAll()}>
          <Icon name="download" /> Export all
        </button>
        <a class="side-licences" href="licences.txt" target="_blank" rel="noopener">
          Licences
        </a>
      </div>
    </aside>
  );
}
