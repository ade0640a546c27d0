// The key that the server may want, kept for this tab, or for the browser where that is asked for.
const kName = 'hillstar-api-key';
let inMemory = '';

function storages(): Storage[] {
  try {
    return [sessionStorage, localStorage];
  } catch {
    return []; // the browser keeps nothing: the key lives as long as the page
  }
}

export function apiKey(): string {
  for (const storage of storages()) {
    const key = storage.getItem(kName);
    if (key) return key;
  }
  return inMemory;
}

export function isKeyRemembered(): boolean {
  const local = storages()[1];
  return local !== undefined && local.getItem(kName) !== null;
}

export function setApiKey(key: string, remember: boolean): void {
  forgetApiKey();
  inMemory = key;
  const storage = storages()[remember ? 1 : 0];
  try {
    storage?.setItem(kName, key);
  } catch {
    // A full storage: the key lives as long as the page.
  }
}

export function forgetApiKey(): void {
  inMemory = '';
  for (const storage of storages()) storage.removeItem(kName);
}
