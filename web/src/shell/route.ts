// Where the page is, after the # of its address: #/chat, #/chat/ID or #/live.
import { useEffect, useState } from 'preact/hooks';

export type Route = { page: 'chat'; id: string } | { page: 'live' };

export function routeOf(hash: string): Route {
  const parts = hash.replace(/^#\/?/, '').split('/');
  if (parts[0] === 'live') return { page: 'live' };
  return { page: 'chat', id: parts[0] === 'chat' ? (parts[1] ?? '') : '' };
}

export function chatAddress(id: string): string {
  return id === '' ? '#/chat' : `#/chat/${id}`;
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => routeOf(location.hash));
  useEffect(() => {
    const update = () => setRoute(routeOf(location.hash));
    addEventListener('hashchange', update);
    return () => removeEventListener('hashchange', update);
  }, []);
  return route;
}

// Without a new entry in the browser's history.
export function replaceAddress(address: string): void {
  if (location.hash === address) return;
  history.replaceState(null, '', address);
  dispatchEvent(new HashChangeEvent('hashchange'));
}
