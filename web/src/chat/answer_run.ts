// One answer on its way from the server into a conversation's message.
import { type ChatRequest, streamChat, type Usage } from '../api/chat_completion';
import { ServerError } from '../api/server';
import type { Conversation, Message } from './conversation';

export type RunPhase = 'waiting' | 'reading' | 'thinking' | 'writing';

export class AnswerRun {
  phase: RunPhase = 'waiting';
  progress = { done: 0, total: 0 }; // of the prompt
  error: ServerError | null = null;
  private readonly abort = new AbortController();
  private readonly startedMs = performance.now();
  private firstMs = 0; // when the first token came
  private lastMs = 0;
  private thinkingMs = 0; // when the thinking began
  private usage: Usage | null = null;

  // `changed` is called after every change of the message.
  constructor(
    readonly conversation: Conversation,
    readonly message: Message,
    private readonly request: ChatRequest,
    private readonly model: string,
    private readonly changed: () => void,
  ) {}

  stop(): void {
    this.abort.abort();
  }

  // Seconds that the model has thought so far.
  thinkingSeconds(): number {
    if (this.phase !== 'thinking') return this.message.thinkingSeconds;
    return (performance.now() - this.thinkingMs) / 1000;
  }

  // Ends with the answer; never throws.
  async run(): Promise<void> {
    const { message } = this;
    let state: Message['state'] = 'done';
    try {
      for await (const event of streamChat(this.request, this.abort.signal)) {
        if (event.kind === 'finish') state = event.reason === 'length' ? 'full' : 'done';
        else if (event.kind === 'usage') this.usage = event.usage;
        else if (event.kind === 'progress') this.takeProgress(event.done, event.total);
        else this.takeText(event.kind, event.text);
        this.changed();
      }
    } catch (error) {
      if (this.abort.signal.aborted) {
        state = 'stopped';
      } else {
        state = 'failed';
        this.error = error instanceof ServerError ? error : new ServerError('failed', String(error));
        message.error = this.error.message;
      }
    }
    message.thinkingSeconds = this.thinkingSeconds();
    message.stats = this.stats();
    message.state = state;
    this.phase = 'writing';
    this.changed();
  }

  private takeProgress(done: number, total: number): void {
    this.phase = 'reading';
    this.progress = { done, total };
  }

  private takeText(kind: 'thinking' | 'text', text: string): void {
    const now = performance.now();
    if (this.firstMs === 0) this.firstMs = now;
    this.lastMs = now;
    if (kind === 'thinking') {
      if (this.phase !== 'thinking') this.thinkingMs = now;
      this.phase = 'thinking';
      this.message.thinking += text;
    } else {
      this.message.thinkingSeconds = this.thinkingSeconds();
      this.phase = 'writing';
      this.message.text += text;
    }
  }

  private stats() {
    if (!this.usage) return null;
    const { promptTokens, cachedTokens, answerTokens } = this.usage;
    const writingSeconds = (this.lastMs - this.firstMs) / 1000;
    const isLongEnough = answerTokens > 8 && writingSeconds > 0.05;
    return {
      model: this.model,
      promptTokens,
      cachedTokens,
      answerTokens,
      firstTokenSeconds: this.firstMs ? (this.firstMs - this.startedMs) / 1000 : 0,
      totalSeconds: (performance.now() - this.startedMs) / 1000,
      tokensPerSecond: isLongEnough ? (answerTokens - 1) / writingSeconds : 0,
    };
  }
}
