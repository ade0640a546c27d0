// Asks for the key that the server wants.
import { useState } from 'preact/hooks';
import { isKeyRemembered, setApiKey } from '../api/api_key';
import { Dialog } from './dialog';

export function KeyDialog({ onClose, onKey }: { onClose: () => void; onKey: () => void }) {
  const [key, setKey] = useState('');
  const [remember, setRemember] = useState(isKeyRemembered);
  const submit = (event: Event) => {
    event.preventDefault();
    if (key.trim() === '') return;
    setApiKey(key.trim(), remember);
    onKey();
  };
  return (
    <Dialog title="API key" onClose={onClose} class="key-dialog">
      <form onSubmit={submit} class="form">
        <p>This server wants a key: one of those that it was started with.</p>
        <label class="field">
          <span>Key</span>
          <input
            type="password"
            autocomplete="off"
            spellcheck={false}
            value={key}
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </label>
        <label class="check">
          <input
            type="checkbox"
            checked={remember}
            onChange={(event) => setRemember(event.currentTarget.checked)}
          />
          <span>Remember it in this browser; otherwise it is forgotten with this tab</span>
        </label>
        <div class="form-actions">
          <button type="submit" class="button primary">
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}
