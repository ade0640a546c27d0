// The frame around both pages: the bar with the pages' links, the server's name, the theme, and the
// question for a key.
import { useCallback, useEffect, useState } from 'preact/hooks';
import { type Health, readHealth, ServerError } from '../api/server';
import { apiKey } from '../api/api_key';
import type { ChatModel } from '../chat/chat_model';
import { ChatPage } from '../chat/chat_page';
import { LivePage } from '../live/live_page';
import { Icon, IconButton, type IconName } from './icons';
import { KeyDialog } from './key_dialog';
import { Mark } from './mark';
import { chatAddress, replaceAddress, useRoute } from './route';
import { currentTheme, setTheme, type Theme } from './theme';

const kThemes: { theme: Theme; icon: IconName; name: string }[] = [
  { theme: 'system', icon: 'system', name: 'the system’s' },
  { theme: 'light', icon: 'light', name: 'light' },
  { theme: 'dark', icon: 'dark', name: 'dark' },
];

function ThemeButton() {
  const [theme, setShown] = useState(currentTheme);
  const at = kThemes.findIndex((each) => each.theme === theme);
  const { icon, name } = kThemes[at]!;
  const next = kThemes[(at + 1) % kThemes.length]!;
  const change = () => {
    setTheme(next.theme);
    setShown(next.theme);
  };
  return (
    <IconButton icon={icon} label={`Theme: ${name}. Change to ${next.name}`} onClick={change} />
  );
}

type HealthState = { health: Health | null; problem: string };

// Asks again while there is no answer.
function useHealth(): HealthState {
  const [state, setState] = useState<HealthState>({ health: null, problem: '' });
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const ask = async () => {
      try {
        setState({ health: await readHealth(abort.signal), problem: '' });
      } catch (error) {
        if (abort.signal.aborted) return;
        const problem = error instanceof ServerError ? error.message : String(error);
        setState((last) => ({ health: last.health, problem }));
        timer = window.setTimeout(ask, 3000);
      }
    };
    void ask();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, []);
  return state;
}

function ServerName({ health, problem }: HealthState) {
  if (!health) {
    return <p class="server-name">{problem === '' ? 'Connecting…' : 'No answer from the server'}</p>;
  }
  return (
    <p class="server-name" title={`${health.version}, ${health.device}`}>
      <strong>{health.model}</strong> <span class="server-device">{health.device}</span>
    </p>
  );
}

export function App({ chat }: { chat: ChatModel }) {
  const route = useRoute();
  const server = useHealth();
  const { health } = server;
  const [isKeyWanted, setKeyWanted] = useState(false);
  const wantKey = useCallback(() => setKeyWanted(true), []);
  useEffect(() => {
    chat.onKeyWanted = wantKey;
    chat.onMoved = (id) => {
      if (!location.hash.startsWith('#/live')) replaceAddress(chatAddress(id));
    };
  }, [chat, wantKey]);
  useEffect(() => {
    chat.modelName = health?.model ?? '';
    if (health?.needsKey && apiKey() === '') setKeyWanted(true);
  }, [chat, health]);
  useEffect(() => {
    document.title = route.page === 'live' ? 'Live · Hillstar' : 'Chat · Hillstar';
  }, [route.page]);
  const current = (page: string) => (route.page === page ? 'page' : undefined);
  return (
    <div class="app">
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault(); // what is behind the # says which page is shown
          document.getElementById('main')?.focus();
        }}
      >
        Skip to content
      </a>
      <header class="top">
        <a class="brand" href="#/chat" aria-label="Hillstar, start">
          <Mark />
          <span class="brand-name">Hillstar</span>
        </a>
        <nav class="pages" aria-label="Pages">
          <a href={chatAddress(chat.open.messages.length > 0 ? chat.open.id : '')} aria-current={current('chat')}>
            <Icon name="chat" /> Chat
          </a>
          <a href="#/live" aria-current={current('live')}>
            <Icon name="live" /> Live
          </a>
        </nav>
        <ServerName {...server} />
        <ThemeButton />
      </header>
      {route.page === 'live' ? (
        <LivePage onKeyWanted={wantKey} isKeyWanted={isKeyWanted} />
      ) : (
        <ChatPage model={chat} id={route.id} health={health} />
      )}
      {isKeyWanted && (
        <KeyDialog
          onClose={() => setKeyWanted(false)}
          onKey={() => {
            setKeyWanted(false);
            void chat.retryAfterKey();
          }}
        />
      )}
    </div>
  );
}
