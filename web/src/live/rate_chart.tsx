// A line of the last two minutes, with its scale.
import { rate } from '../shell/format';
import type { LiveSample } from './live_history';
import { kHeight, kWidth, niceMax, pathOf } from './rate_path';

interface RateChartProps {
  name: string;
  samples: LiveSample[];
  now: number;
  valueOf: (sample: LiveSample) => number;
  tone: string;
}

export function RateChart({ name, samples, now, valueOf, tone }: RateChartProps) {
  const points = samples.map((sample) => ({ time: sample.time, value: valueOf(sample) }));
  const peak = points.reduce((most, { value }) => Math.max(most, value), 0);
  const max = niceMax(peak);
  const { line, area } = pathOf(points, now, max);
  const label = `${name} over the last two minutes: at most ${rate(peak)} tokens a second`;
  return (
    <div class={`chart chart-${tone}`} role="img" aria-label={label}>
      <span class="chart-max">{rate(max)}</span>
      <svg viewBox={`0 0 ${kWidth} ${kHeight}`} preserveAspectRatio="none" aria-hidden="true">
        <path class="chart-grid" d={`M0 6H${kWidth}M0 ${kHeight / 2 + 2}H${kWidth}M0 ${kHeight - 2}H${kWidth}`} />
        <path class="chart-area" d={area} />
        <path class="chart-line" d={line} />
      </svg>
      <span class="chart-span">
        <span>2 min ago</span>
        <span>now</span>
      </span>
    </div>
  );
}
