// What the engine is doing now: asked of the server once a second while the page can be seen.
import { useEffect, useRef, useState } from 'preact/hooks';
import { type LiveSnapshot, readLive } from '../api/live';
import { ServerError } from '../api/server';
import { compact, duration, percent, rate, seconds, whole } from '../shell/format';
import { ExpertMap } from './expert_map';
import { LiveHistory } from './live_history';
import { RateChart } from './rate_chart';
import { StageBar } from './stage_bar';

const kPollMs = 1000;
const kRateWindowSeconds = 10;

interface LivePageProps {
  onKeyWanted: () => void;
  isKeyWanted: boolean; // the user is being asked for it
}

function useLive({ onKeyWanted, isKeyWanted }: LivePageProps) {
  const history = useRef(new LiveHistory());
  const [problem, setProblem] = useState('');
  const [, setTime] = useState(0);
  useEffect(() => {
    if (isKeyWanted) return;
    const abort = new AbortController();
    let timer = 0;
    const poll = async () => {
      clearTimeout(timer);
      timer = 0;
      if (document.hidden) return;
      let nextMs = kPollMs;
      try {
        const snapshot = await readLive(abort.signal);
        history.current.add(snapshot);
        setTime(snapshot.time);
        setProblem('');
      } catch (error) {
        if (abort.signal.aborted) return;
        if (error instanceof ServerError && error.kind === 'key') onKeyWanted();
        setProblem(error instanceof Error ? error.message : String(error));
        nextMs = 3 * kPollMs;
      }
      timer = window.setTimeout(poll, nextMs);
    };
    const onVisible = () => {
      if (!document.hidden && timer === 0) void poll();
    };
    void poll();
    addEventListener('visibilitychange', onVisible);
    return () => {
      abort.abort();
      clearTimeout(timer);
      removeEventListener('visibilitychange', onVisible);
    };
  }, [isKeyWanted]);
  return { history: history.current, problem };
}

function RateCard({ history, kind }: { history: LiveHistory; kind: 'answer' | 'prompt' }) {
  const { latest, samples } = history;
  const valueOf = kind === 'answer' ? (s: (typeof samples)[0]) => s.answerRate : (s: (typeof samples)[0]) => s.promptRate;
  const last = samples[samples.length - 1];
  const name = kind === 'answer' ? 'Answers' : 'Prompts';
  const { tokens } = latest!;
  return (
    <section class="card rate" aria-label={name}>
      <h2>{name}</h2>
      <p class="figure">
        <strong>{last ? rate(valueOf(last)) : '–'}</strong> <span>tok/s</span>
      </p>
      <RateChart name={name} samples={samples} now={latest!.time} valueOf={valueOf} tone={kind} />
      <p class="card-note">
        {kind === 'answer'
          ? `${compact(tokens.answer)} tokens since the start`
          : `${compact(tokens.prompt)} tokens computed, ${compact(tokens.cached)} taken over`}
      </p>
    </section>
  );
}

function SequencesCard({ snapshot }: { snapshot: LiveSnapshot }) {
  const { sequences, requests } = snapshot;
  return (
    <section class="card" aria-label="Sequences">
      <h2>
        Sequences{' '}
        {sequences.limit > 0 && <span class="card-note">at most {whole(sequences.limit)} at once</span>}
      </h2>
      <dl class="counts">
        {(['running', 'waiting', 'paused'] as const).map((name) => (
          <div key={name} class="count">
            <dt>{name}</dt>
            <dd>{whole(sequences[name])}</dd>
          </div>
        ))}
      </dl>
      <p class="card-note">
        Requests: {whole(requests.done)} done, {whole(requests.failed)} failed,{' '}
        {whole(requests.cancelled)} cancelled
      </p>
    </section>
  );
}

function PagesCard({ snapshot }: { snapshot: LiveSnapshot }) {
  const { total, used, prefix } = snapshot.pages;
  const share = total > 0 ? used / total : 0;
  return (
    <section class="card" aria-label="KV pages">
      <h2>
        KV pages <span class="card-note">{percent(share)} in use</span>
      </h2>
      <progress class="meter" value={used} max={Math.max(1, total)} aria-label="Pages in use" />
      <p class="card-note">
        {whole(used)} of {whole(total)}; {whole(prefix)} kept for prompts that begin alike
      </p>
    </section>
  );
}

function StepsCard({ history }: { history: LiveHistory }) {
  const stepSeconds = history.stepSeconds(kRateWindowSeconds);
  const { stages, isRecent } = history.stages(kRateWindowSeconds);
  const steps = history.latest?.steps ?? 0;
  return (
    <section class="card stages" aria-label="Time by stage">
      <div class="card-head">
        <h2>Time by stage</h2>
        <span class="card-note">
          {rate(history.stepRate(kRateWindowSeconds))} steps a second
          {stepSeconds === null ? '' : `, ${seconds(stepSeconds)} each`}; {compact(steps)} in all
        </span>
      </div>
      <StageBar stages={stages} isRecent={isRecent} stepSeconds={isRecent ? stepSeconds : null} />
    </section>
  );
}

export function LivePage(props: LivePageProps) {
  const { history, problem } = useLive(props);
  const { latest } = history;
  return (
    <main id="main" class="live" tabIndex={-1}>
      <div class="live-content">
        <div class="live-head">
          <h1>Live</h1>
          {latest && (
            <p class="card-note">
              {latest.model} on {latest.device}, up for {duration(latest.uptimeSeconds)}
            </p>
          )}
        </div>
        <div role="status">
          {problem !== '' && <p class="banner warning">{problem} The page goes on asking.</p>}
        </div>
        {!latest && problem === '' && <p class="card-empty">Waiting for the server’s numbers…</p>}
        {latest && (
          <div class={`cards ${problem === '' ? '' : 'stale'}`}>
            <RateCard history={history} kind="answer" />
            <RateCard history={history} kind="prompt" />
            <div class="card-pair">
              <SequencesCard snapshot={latest} />
              <PagesCard snapshot={latest} />
            </div>
            {latest.experts ? (
              <ExpertMap experts={latest.experts} time={latest.uptimeSeconds} />
            ) : (
              <section class="card experts" aria-label="Experts">
                <h2>Experts</h2>
                <p class="card-empty">This server does not tell which experts it uses.</p>
              </section>
            )}
            <StepsCard history={history} />
          </div>
        )}
      </div>
    </main>
  );
}
