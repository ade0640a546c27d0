// How the time of the steps divides among their stages.
import { percent, seconds } from '../shell/format';
import type { StageShare } from './live_history';

const kTones = 8;

interface StageBarProps {
  stages: StageShare[];
  isRecent: boolean;
  stepSeconds: number | null;
}

export function StageBar({ stages, isRecent, stepSeconds }: StageBarProps) {
  const total = stages.reduce((sum, stage) => sum + stage.seconds, 0);
  if (stages.length === 0) return <p class="card-empty">This server does not tell the times of its stages.</p>;
  if (total === 0) return <p class="card-empty">Nothing has been computed yet.</p>;
  let begin = 0;
  const parts = stages.map((stage, i) => {
    const share = stage.seconds / total;
    const part = { ...stage, share, begin, tone: `tone-${i % kTones}` };
    begin += share;
    return part;
  });
  return (
    <>
      <svg class="stage-bar" viewBox="0 0 1000 28" preserveAspectRatio="none" aria-hidden="true">
        {parts.map(({ name, share, begin: from, tone }) => (
          <rect key={name} class={tone} x={from * 1000} width={Math.max(0, share * 1000 - 2)} height="28" />
        ))}
      </svg>
      <ul class="stage-names">
        {parts.map(({ name, share, tone, seconds: own }) => (
          <li key={name}>
            <span class={`swatch ${tone}`} aria-hidden="true" />
            <span class="stage-name">{name}</span>
            <span class="stage-share">{percent(share)}</span>
            <span class="stage-time">{stepSeconds === null ? seconds(own) : seconds(share * stepSeconds)}</span>
          </li>
        ))}
      </ul>
      <p class="card-note">
        {isRecent ? 'In the last ten seconds' : 'Since the start'}
        {stepSeconds === null ? '' : '; times are of a mean step'}
      </p>
    </>
  );
}
