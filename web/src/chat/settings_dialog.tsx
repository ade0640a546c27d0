// The settings of answers. Each field that is left empty is the server's to decide.
import { useId, useState } from 'preact/hooks';
import type { Health } from '../api/server';
import { forgetApiKey, apiKey } from '../api/api_key';
import { Dialog } from '../shell/dialog';
import { checkedSettings, keepSettings, kDefaultSettings, readSettings, type Settings } from './settings';

interface NumberFieldProps {
  label: string;
  hint: string;
  value: number | null;
  min: number;
  max?: number;
  step: number;
  onChange: (value: number | null) => void;
}

function NumberField({ label, hint, value, min, max, step, onChange }: NumberFieldProps) {
  const hintId = useId();
  return (
    <label class="field">
      <span>{label}</span>
      <input
        type="number"
        inputMode="decimal"
        placeholder="the server’s"
        aria-describedby={hintId}
        defaultValue={value ?? ''}
        min={min}
        max={max}
        step={step}
        onInput={(event) => {
          const { value: text, valueAsNumber } = event.currentTarget;
          onChange(text === '' || Number.isNaN(valueAsNumber) ? null : valueAsNumber);
        }}
      />
      <small id={hintId}>{hint}</small>
    </label>
  );
}

interface ChoiceProps {
  label: string;
  value: string;
  choices: [string, string][]; // value and name
  disabled?: boolean;
  onChange: (value: string) => void;
}

function Choice({ label, value, choices, disabled, onChange }: ChoiceProps) {
  return (
    <label class="field">
      <span>{label}</span>
      <select value={value} disabled={disabled} onChange={(event) => onChange(event.currentTarget.value)}>
        {choices.map(([each, name]) => (
          <option key={each} value={each}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

function DrawingFields({ settings, set }: { settings: Settings; set: (change: object) => void }) {
  return (
    <div class="field-row">
      <NumberField
        label="Temperature"
        hint="0 takes the likeliest word, 2 is wild"
        value={settings.temperature}
        min={0}
        max={2}
        step={0.05}
        onChange={(temperature) => set({ temperature })}
      />
      <NumberField
        label="Top p"
        hint="only the likeliest that make up this share"
        value={settings.topP}
        min={0}
        max={1}
        step={0.01}
        onChange={(topP) => set({ topP })}
      />
      <NumberField
        label="Longest answer"
        hint="in tokens, thoughts included"
        value={settings.maxTokens}
        min={1}
        step={1}
        onChange={(maxTokens) => set({ maxTokens })}
      />
    </div>
  );
}

export function SettingsDialog({ health, onClose }: { health: Health | null; onClose: () => void }) {
  const [settings, setSettings] = useState(readSettings);
  const [version, setVersion] = useState(0); // draws the fields anew
  const [isKept, setKept] = useState(true);
  const [hasKey, setHasKey] = useState(() => apiKey() !== '');
  const set = (change: object) => {
    const next = checkedSettings({ ...settings, ...change });
    setSettings(next);
    setKept(keepSettings(next));
  };
  const serverThinking = health ? `As the server is set up (${health.thinking})` : 'As the server is set up';
  return (
    <Dialog title="Settings" onClose={onClose} class="settings">
      <div class="form" key={version}>
        <p class="form-note">They apply to the next answer of every conversation, and are kept in this browser.</p>
        <label class="field">
          <span>System prompt</span>
          <textarea
            rows={4}
            dir="auto"
            placeholder="Who the model is to be, and how it is to answer"
            defaultValue={settings.system}
            onInput={(event) => set({ system: event.currentTarget.value })}
          />
        </label>
        <DrawingFields settings={settings} set={set} />
        <div class="field-row">
          <Choice
            label="Thinking"
            value={settings.thinking}
            choices={[
              ['server', serverThinking],
              ['on', 'On'],
              ['off', 'Off'],
            ]}
            onChange={(thinking) => set({ thinking })}
          />
          <Choice
            label="Effort"
            value={settings.effort}
            disabled={settings.thinking !== 'on'}
            choices={[
              ['server', 'The server’s'],
              ['high', 'High'],
              ['max', 'Greatest'],
            ]}
            onChange={(effort) => set({ effort })}
          />
        </div>
        {!isKept && <p class="banner warning">The browser could not keep this change.</p>}
        <div class="form-actions">
          <button
            type="button"
            class="button"
            onClick={() => {
              set(kDefaultSettings);
              setVersion(version + 1);
            }}
          >
            Leave all to the server
          </button>
          {hasKey && (
            <button
              type="button"
              class="button"
              onClick={() => {
                forgetApiKey();
                setHasKey(false);
              }}
            >
              Forget the API key
            </button>
          )}
        </div>
      </div>
    </Dialog>
  );
}
