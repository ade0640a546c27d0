// The page's start.
import './styles/tokens.css';
import './styles/shell.css';
import './styles/chat.css';
import './styles/markdown.css';
import './styles/live.css';
import { render } from 'preact';
import { ChatModel } from './chat/chat_model';
import { openStore } from './chat/conversation_store';
import { readSettings } from './chat/settings';
import { App } from './shell/app';
import { routeOf } from './shell/route';

async function start(): Promise<void> {
  const model = new ChatModel(await openStore(), readSettings);
  await model.start();
  const route = routeOf(location.hash);
  if (route.page === 'chat') await model.show(route.id);
  addEventListener('pagehide', () => model.setLeaving(true));
  addEventListener('pageshow', () => model.setLeaving(false));
  addEventListener('beforeunload', (event) => {
    if (model.hasUnkept()) event.preventDefault();
  });
  const root = document.getElementById('app')!;
  root.replaceChildren();
  render(<App chat={model} />, root);
}

void start();
