// Numbers and times for people.
const kWhole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

export function whole(value: number): string {
  return kWhole.format(Math.round(value));
}

// Three digits or so: 1,234, 56.7, 8.9, 0.12.
export function rate(value: number): string {
  if (value >= 100 || Number.isInteger(value)) return whole(value);
  return value.toFixed(value >= 1 ? 1 : 2);
}

export function compact(value: number): string {
  if (value < 10_000) return whole(value);
  const [divisor, unit] = value < 1e6 ? [1e3, 'k'] : value < 1e9 ? [1e6, 'M'] : [1e9, 'G'];
  return `${rate(value / divisor)} ${unit}`;
}

export function seconds(value: number): string {
  if (value < 0.00095) return `${Math.round(value * 1e6)} µs`;
  if (value < 0.0095) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  return duration(value);
}

// 2 d 3 h, 4 h 5 min, 6 min 7 s, 8 s
export function duration(value: number): string {
  const total = Math.floor(value);
  const parts: [number, string][] = [
    [Math.floor(total / 86_400), 'd'],
    [Math.floor(total / 3600) % 24, 'h'],
    [Math.floor(total / 60) % 60, 'min'],
    [total % 60, 's'],
  ];
  const first = parts.findIndex(([count]) => count > 0);
  if (first < 0) return '0 s';
  return parts
    .slice(first, first + 2)
    .map(([count, unit]) => `${count} ${unit}`)
    .join(' ');
}

export function percent(share: number): string {
  const value = share * 100;
  return `${value >= 10 || value === 0 ? Math.round(value) : value.toFixed(1)} %`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

// Today: the time; else the day.
export function when(timeMs: number, nowMs: number): string {
  const time = new Date(timeMs);
  const isToday = time.toDateString() === new Date(nowMs).toDateString();
  return isToday
    ? time.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' })
    : time.toLocaleDateString([], { day: 'numeric', month: 'short' });
}
