// The page's pictures, drawn as lines in the colour of the text around them. All are decoration: the
// buttons that hold them have names of their own.
const kPaths = {
  bars: 'M3 5h14M3 10h14M3 15h14',
  chat: 'M4 4h12a1.5 1.5 0 0 1 1.5 1.5v7A1.5 1.5 0 0 1 16 14H9l-4 3v-3H4a1.5 1.5 0 0 1-1.5-1.5v-7A1.5 1.5 0 0 1 4 4z',
  check: 'M4 10.5l4 4 8-9',
  close: 'M5 5l10 10M15 5L5 15',
  copy: 'M7 7V4.5A1.5 1.5 0 0 1 8.5 3h7A1.5 1.5 0 0 1 17 4.5v7a1.5 1.5 0 0 1-1.5 1.5H13M4.5 7h7A1.5 1.5 0 0 1 13 8.5v7a1.5 1.5 0 0 1-1.5 1.5h-7A1.5 1.5 0 0 1 3 15.5v-7A1.5 1.5 0 0 1 4.5 7z',
  dark: 'M16.5 12.2A7 7 0 0 1 7.8 3.5a7 7 0 1 0 8.7 8.7z',
  down: 'M10 4v12M5 11l5 5 5-5',
  download: 'M10 3v9M6 8.5l4 4 4-4M3.5 16.5h13',
  edit: 'M3.5 16.5l.8-3.6 9-9a1.6 1.6 0 0 1 2.3 0l.5.5a1.6 1.6 0 0 1 0 2.3l-9 9-3.6.8zM12 5.3l2.8 2.8',
  left: 'M12 5l-5 5 5 5',
  light: 'M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M4.3 15.7l1.1-1.1M14.6 5.4l1.1-1.1',
  live: 'M2.5 10.5h3l2.2-6 4 11.5 2.3-5.5h3.5',
  plus: 'M10 4v12M4 10h12',
  retry: 'M16 10a6 6 0 1 1-1.9-4.4L16 7.3M16 3.5v3.8h-3.8',
  right: 'M8 5l5 5-5 5',
  send: 'M10 16V4M5 9l5-5 5 5',
  settings: 'M3 6h8M15 6h2M3 14h2M9 14h8M13 4.2v3.6M7 12.2v3.6',
  stop: 'M6.5 6.5h7v7h-7z',
  system: 'M3 4.5h14v9H3zM7.5 16.5h5M10 13.5v3',
  trash: 'M3.5 5.5h13M8 5.5V4h4v1.5M5.5 5.5l.7 11h7.6l.7-11M8.5 8.5v5M11.5 8.5v5',
  upload: 'M10 12.5V3M6 7l4-4 4 4M3.5 16.5h13',
} as const;

export type IconName = keyof typeof kPaths;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class={`icon icon-${name}`} viewBox="0 0 20 20" aria-hidden="true" focusable="false">
      <path d={kPaths[name]} />
    </svg>
  );
}

interface IconButtonProps {
  icon: IconName;
  label: string;
  onClick: () => void;
  disabled?: boolean;
  class?: string;
}

export function IconButton({ icon, label, onClick, disabled, class: name }: IconButtonProps) {
  return (
    <button
      type="button"
      class={`icon-button ${name ?? ''}`}
      aria-label={label}
      title={label}
      disabled={disabled}
      onClick={onClick}
    >
      <Icon name={icon} />
    </button>
  );
}
