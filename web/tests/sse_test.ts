import { describe, expect, it } from 'vitest';
import { type SseItem, SseParser } from '../src/api/sse';

const bytes = (text: string) => new TextEncoder().encode(text);

function parse(pieces: Uint8Array[]): SseItem[] {
  const parser = new SseParser();
  return pieces.flatMap((piece) => parser.push(piece));
}

const kStream =
  ': prompt 512/2048\n\ndata: {"a":"é€😀"}\n\nevent: ping\r\ndata: one\r\ndata:  two\r\n\r\n' +
  ':keep-alive\rid: 7\rdata\rdata: x:y\r\rretry: 10\n\ndata: [DONE]\n\n';
const kItems: SseItem[] = [
  { kind: 'comment', text: 'prompt 512/2048' },
  { kind: 'event', event: 'message', data: '{"a":"é€😀"}' },
  { kind: 'event', event: 'ping', data: 'one\n two' },
  { kind: 'comment', text: 'keep-alive' },
  { kind: 'event', event: 'message', data: '\nx:y' },
  { kind: 'event', event: 'message', data: '[DONE]' },
];

describe('SseParser', () => {
  it('reads comments, names, several lines and every kind of line end', () => {
    expect(parse([bytes(kStream)])).toEqual(kItems);
  });

  it('gives the same for every cut in two', () => {
    const whole = bytes(kStream);
    for (let at = 0; at <= whole.length; ++at) {
      expect(parse([whole.slice(0, at), whole.slice(at)]), `cut at ${at}`).toEqual(kItems);
    }
  });

  it('gives the same for every cut in three, around the awkward places', () => {
    const whole = bytes(kStream);
    for (let first = 0; first <= whole.length; ++first) {
      for (let second = first; second <= Math.min(first + 6, whole.length); ++second) {
        const pieces = [whole.slice(0, first), whole.slice(first, second), whole.slice(second)];
        expect(parse(pieces)).toEqual(kItems);
      }
    }
  });

  it('gives the same byte by byte', () => {
    expect(parse(Array.from(bytes(kStream), (byte) => new Uint8Array([byte])))).toEqual(kItems);
  });

  it('gives nothing of an event that is not complete', () => {
    expect(parse([bytes('data: half')])).toEqual([]);
    expect(parse([bytes('data: half\n')])).toEqual([]);
  });

  it('leaves a mark of the byte order out', () => {
    expect(parse([new Uint8Array([0xef, 0xbb]), new Uint8Array([0xbf]), bytes('data: x\n\n')])).toEqual([
      { kind: 'event', event: 'message', data: 'x' },
    ]);
  });
});
