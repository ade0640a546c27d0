// A model that views watch. Changes of one moment are told once, before the next picture is drawn.
import { useEffect, useReducer } from 'preact/hooks';

export class Observable {
  private readonly listeners = new Set<() => void>();
  private isScheduled = false;

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
      for (const listener of this.listeners) listener();
    };
    requestAnimationFrame(tell);
    setTimeout(tell, 200); // a hidden page draws nothing
  }
}

// Draws the component again whenever the model changes.
export function useModel(model: Observable): void {
  const [, redraw] = useReducer((count: number, _: void) => count + 1, 0);
  useEffect(() => model.watch(() => redraw()), [model]);
}
