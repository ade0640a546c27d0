// What the user has set for answers, kept for this browser. What is not set is left to the server.
import type { ChatRequest } from '../api/chat_completion';

export interface Settings {
  system: string;
  temperature: number | null;
  topP: number | null;
  maxTokens: number | null;
  thinking: 'server' | 'on' | 'off';
  effort: 'server' | 'high' | 'max';
}

export const kDefaultSettings: Settings = {
  system: '',
  temperature: null,
  topP: null,
  maxTokens: null,
  thinking: 'server',
  effort: 'server',
};

const kName = 'hillstar-settings';

function numberWithin(value: unknown, min: number, max: number): number | null {
  return typeof value === 'number' && value >= min && value <= max ? value : null;
}

// What the fields take; a number outside is no setting.
export function checkedSettings(value: unknown): Settings {
  const given = (typeof value === 'object' && value !== null ? value : {}) as Record<string, unknown>;
  const maxTokens = numberWithin(given.maxTokens, 1, Number.MAX_SAFE_INTEGER);
  return {
    system: typeof given.system === 'string' ? given.system : '',
    temperature: numberWithin(given.temperature, 0, 2),
    topP: numberWithin(given.topP, 0, 1),
    maxTokens: maxTokens === null ? null : Math.floor(maxTokens),
    thinking: given.thinking === 'on' || given.thinking === 'off' ? given.thinking : 'server',
    effort: given.effort === 'high' || given.effort === 'max' ? given.effort : 'server',
  };
}

export function readSettings(): Settings {
  try {
    return checkedSettings(JSON.parse(localStorage.getItem(kName) ?? '{}'));
  } catch {
    return kDefaultSettings;
  }
}

// Whether the browser keeps them.
export function keepSettings(settings: Settings): boolean {
  try {
    localStorage.setItem(kName, JSON.stringify(settings));
    return true;
  } catch {
    return false;
  }
}

export function requestOf(settings: Settings): Omit<ChatRequest, 'messages'> {
  const request: Omit<ChatRequest, 'messages'> = {};
  if (settings.temperature !== null) request.temperature = settings.temperature;
  if (settings.topP !== null) request.top_p = settings.topP;
  if (settings.maxTokens !== null) request.max_tokens = settings.maxTokens;
  if (settings.thinking !== 'server') {
    request.chat_template_kwargs = { enable_thinking: settings.thinking === 'on' };
  }
  // An effort turns the thinking on, so it is told only where that is wanted.
  if (settings.thinking === 'on' && settings.effort !== 'server') {
    request.reasoning_effort = settings.effort;
  }
  return request;
}
