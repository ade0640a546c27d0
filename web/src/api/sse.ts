// Server-sent events, parsed from bytes that arrive cut anywhere. Unlike the browser's EventSource it
// works on the answer of a POST and also gives comments, which carry the progress of a prompt.
// Source: html.spec.whatwg.org/multipage/server-sent-events.html.

export type SseItem =
  | { kind: 'event'; event: string; data: string }
  | { kind: 'comment'; text: string };

export class SseParser {
  private readonly decoder = new TextDecoder();
  private rest = '';
  private endedInCr = false;
  private event = '';
  private data: string[] = [];

  // What the bytes complete, in order.
  push(bytes: Uint8Array): SseItem[] {
    let text = this.decoder.decode(bytes, { stream: true });
    if (text === '') return [];
    // A line may end in \r, \n or both; the two halves of "\r\n" may come apart.
    if (this.endedInCr && text.startsWith('\n')) text = text.slice(1);
    this.endedInCr = text === '' ? false : text.endsWith('\r');
    const lines = (this.rest + text).split(/\r\n|\r|\n/);
    this.rest = lines.pop() ?? '';
    const items: SseItem[] = [];
    for (const line of lines) this.takeLine(line, items);
    return items;
  }

  private takeLine(line: string, items: SseItem[]): void {
    if (line === '') {
      if (this.data.length > 0) {
        items.push({ kind: 'event', event: this.event || 'message', data: this.data.join('\n') });
      }
      this.event = '';
      this.data = [];
      return;
    }
    const colon = line.indexOf(':');
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? '' : line.slice(colon + 1);
    if (value.startsWith(' ')) value = value.slice(1);
    if (colon === 0) items.push({ kind: 'comment', text: value });
    if (name === 'data') this.data.push(value);
    if (name === 'event') this.event = value;
  }
}
