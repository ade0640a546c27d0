// A model that views watch. Changes are told a few times a second at most, however fast tokens come.
import { useEffect, useReducer } from 'preact/hooks';

const kMinPauseMs = 50;
const kHiddenPauseMs = 200; // a hidden page draws nothing, and is told all the same

export class Observable {
  private readonly listeners = new Set<() => void>();
  private isScheduled = false;
  private toldMs = 0;

  watch(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  protected changed(): void {
    if (this.isScheduled) return;
    this.isScheduled = true;
    const tell = () => {
      if (!this.isScheduled) return;
      this.isScheduled = false;
      this.toldMs = performance.now();
      for (const listener of this.listeners) listener();
    };
    const pauseMs = this.toldMs + kMinPauseMs - performance.now();
    if (pauseMs > 0) {
      setTimeout(tell, pauseMs);
    } else {
      requestAnimationFrame(tell);
      setTimeout(tell, kHiddenPauseMs);
    }
  }
}

// Draws the component again whenever the model changes.
export function useModel(model: Observable): void {
  const [, redraw] = useReducer((count: number, _: void) => count + 1, 0);
  useEffect(() => model.watch(() => redraw()), [model]);
}
