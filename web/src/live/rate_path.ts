// The shape of a chart's line. Pure functions.
import { kHistorySeconds } from './live_history';

export const kWidth = 400;
export const kHeight = 88;
const kGapSeconds = 3.5; // the page was hidden, or the server did not answer

// The smallest of 1, 2 or 5 times a power of ten that is not below.
export function niceMax(value: number): number {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((each) => each >= value * 0.999)!;
}

interface Line {
  line: string;
  area: string;
}

export function pathOf(points: { time: number; value: number }[], now: number, max: number): Line {
  let line = '';
  let area = '';
  let lastTime = -Infinity;
  let lastX = 0;
  for (const { time, value } of points) {
    const x = kWidth * (1 - (now - time) / kHistorySeconds);
    const y = kHeight - 2 - (kHeight - 8) * Math.min(1, value / max);
    const begins = time - lastTime > kGapSeconds;
    if (begins && area !== '') area += `L${lastX.toFixed(1)} ${kHeight}Z`;
    line += `${begins ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`;
    area += begins ? `M${x.toFixed(1)} ${kHeight}L${x.toFixed(1)} ${y.toFixed(1)}` : `L${x.toFixed(1)} ${y.toFixed(1)}`;
    lastTime = time;
    lastX = x;
  }
  if (area !== '') area += `L${lastX.toFixed(1)} ${kHeight}Z`;
  return { line, area };
}
