// The last minutes of snapshots, as rates. A server that was started anew begins a new history.
import type { LiveSnapshot } from '../api/live';

export const kHistorySeconds = 120;

export interface LiveSample {
  time: number; // seconds, the server's clock
  answerRate: number; // tokens a second
  promptRate: number;
  running: number;
}

export interface StageShare {
  name: string;
  seconds: number;
}

export class LiveHistory {
  latest: LiveSnapshot | null = null;
  samples: LiveSample[] = [];
  private snapshots: LiveSnapshot[] = [];

  add(snapshot: LiveSnapshot): void {
    const last = this.latest;
    const isNew = last !== null && snapshot.uptimeSeconds < last.uptimeSeconds;
    if (isNew) {
      this.samples = [];
      this.snapshots = [];
    }
    if (last && !isNew) {
      const passed = snapshot.uptimeSeconds - last.uptimeSeconds;
      if (passed <= 0) return; // the same picture again
      this.samples.push({
        time: snapshot.time,
        answerRate: Math.max(0, snapshot.tokens.answer - last.tokens.answer) / passed,
        promptRate: Math.max(0, snapshot.tokens.prompt - last.tokens.prompt) / passed,
        running: snapshot.sequences.running,
      });
    }
    this.latest = snapshot;
    this.snapshots.push(snapshot);
    const oldest = snapshot.time - kHistorySeconds;
    this.samples = this.samples.filter((sample) => sample.time > oldest);
    this.snapshots = this.snapshots.filter((each) => each.time > oldest);
  }

  // The snapshot from which a window of so many seconds reaches to now.
  private since(windowSeconds: number): LiveSnapshot | null {
    const { latest, snapshots } = this;
    if (!latest || snapshots.length < 2) return null;
    return (
      snapshots.find((each) => each !== latest && latest.time - each.time <= windowSeconds) ??
      snapshots[snapshots.length - 2]!
    );
  }

  // Seconds of a step, by the steps of the window; null: there were none.
  stepSeconds(windowSeconds: number): number | null {
    const from = this.since(windowSeconds);
    const { latest } = this;
    if (!from || !latest || from.stepSeconds === null || latest.stepSeconds === null) return null;
    const steps = latest.steps - from.steps;
    return steps > 0 ? (latest.stepSeconds - from.stepSeconds) / steps : null;
  }

  stepRate(windowSeconds: number): number {
    const from = this.since(windowSeconds);
    const { latest } = this;
    if (!from || !latest) return 0;
    return Math.max(0, latest.steps - from.steps) / (latest.uptimeSeconds - from.uptimeSeconds);
  }

  // Time by stage within the window, or since the server's start where nothing was computed in it.
  stages(windowSeconds: number): { stages: StageShare[]; isRecent: boolean } {
    const { latest } = this;
    if (!latest) return { stages: [], isRecent: false };
    const from = this.since(windowSeconds);
    const before = new Map(from?.stages.map(({ name, seconds }) => [name, seconds]));
    const recent = latest.stages.map(({ name, seconds }) => ({
      name,
      seconds: Math.max(0, seconds - (before.get(name) ?? 0)),
    }));
    const isRecent = from !== null && recent.some((stage) => stage.seconds > 0);
    return { stages: isRecent ? recent : latest.stages, isRecent };
  }
}
