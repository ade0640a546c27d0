import { describe, expect, it } from 'vitest';
import { snapshotOf } from '../src/api/live';
import { completedPart } from '../src/chat/announced_part';
import { ExpertHeat, summarise } from '../src/live/expert_heat';
import { gorgetIndex, kGorget } from '../src/live/gorget';
import { LiveHistory } from '../src/live/live_history';
import { niceMax, pathOf } from '../src/live/rate_path';
import { duration, rate, seconds } from '../src/shell/format';

const at = (time: number, change: object = {}) =>
  snapshotOf({ time: 1000 + time, uptime_seconds: time, step_seconds: 0, ...change });

describe('snapshotOf', () => {
  it('takes what an older server leaves out', () => {
    const snapshot = snapshotOf({ time: 1, model: 'pocket', tokens: { answer: 3 } });
    expect(snapshot.tokens).toEqual({ prompt: 0, cached: 0, answer: 3 });
    expect([snapshot.stepSeconds, snapshot.experts, snapshot.stages]).toEqual([null, null, []]);
  });

  it('takes nothing for experts that is no grid', () => {
    expect(snapshotOf({ experts: { layers: [], num_experts: 4, uses: [] } }).experts).toBeNull();
    expect(snapshotOf({ experts: { layers: [1], num_experts: 2, uses: [[1]] } }).experts).toEqual({
      layers: [1],
      numExperts: 2,
      uses: [[1, 0]],
    });
  });
});

describe('LiveHistory', () => {
  it('gives rates as differences', () => {
    const history = new LiveHistory();
    history.add(at(1, { tokens: { answer: 10, prompt: 100 } }));
    history.add(at(3, { tokens: { answer: 50, prompt: 100 } }));
    expect(history.samples.map(({ answerRate, promptRate }) => [answerRate, promptRate])).toEqual([[20, 0]]);
  });

  it('begins anew with a server that was started anew', () => {
    const history = new LiveHistory();
    history.add(at(100, { tokens: { answer: 1000 } }));
    history.add(at(101, { tokens: { answer: 1100 } }));
    history.add({ ...at(1, { tokens: { answer: 5 } }), time: 1110 });
    expect(history.samples).toEqual([]);
  });

  it('keeps two minutes', () => {
    const history = new LiveHistory();
    for (let i = 0; i < 300; ++i) history.add(at(i));
    expect(history.samples).toHaveLength(120);
  });

  it('gives the time of a step and of its stages within the window', () => {
    const history = new LiveHistory();
    const stages = (a: number, b: number) => [
      { name: 'a', seconds: a },
      { name: 'b', seconds: b },
    ];
    history.add(at(0, { steps: 0, step_seconds: 0, stages: stages(0, 0) }));
    history.add(at(100, { steps: 100, step_seconds: 50, stages: stages(50, 0) }));
    history.add(at(105, { steps: 110, step_seconds: 51, stages: stages(50.25, 0.75) }));
    expect(history.stepSeconds(10)).toBeCloseTo(0.1);
    expect(history.stepRate(10)).toBeCloseTo(2);
    expect(history.stages(10)).toEqual({ stages: stages(0.25, 0.75), isRecent: true });
    for (let i = 106; i < 130; ++i) {
      history.add(at(i, { steps: 110, step_seconds: 51, stages: stages(50.25, 0.75) }));
    }
    expect(history.stages(10)).toEqual({ stages: stages(50.25, 0.75), isRecent: false });
    expect(history.stepSeconds(10)).toBeNull();
  });
});

describe('ExpertHeat', () => {
  const grid = (...uses: number[][]) => ({ layers: uses.map((_, i) => i + 1), numExperts: uses[0]!.length, uses });

  it('lights what is used, and fades', () => {
    const heat = new ExpertHeat(grid([100, 100], [100, 100]));
    expect(Array.from(heat.brightness(false))).toEqual([0, 0, 0, 0]); // uses before the page are not now
    heat.add(grid([100, 116], [104, 100]), 1);
    heat.advance(1);
    const lit = heat.brightness(false);
    expect(lit[0]).toBe(0);
    expect(lit[1]).toBe(1);
    expect(lit[2]).toBeCloseTo(0.5);
    heat.advance(4);
    expect(heat.brightness(false)[1]).toBeLessThan(0.4);
    heat.advance(60);
    expect(heat.isMoving()).toBe(false);
  });

  it('spreads a snapshot over the time until the next', () => {
    const heat = new ExpertHeat(grid([0, 0]));
    heat.add(grid([100, 0]), 1);
    for (let i = 0; i < 10; ++i) heat.advance(0.1);
    expect(heat.read(0, 0, false).share).toBe(1);
    expect(heat.read(0, 0, false).isRecent).toBe(true);
  });

  it('reads shares since the start', () => {
    const heat = new ExpertHeat(grid([30, 10], [0, 0]));
    expect(heat.read(0, 0, true)).toEqual({ layer: 1, expert: 0, share: 0.75, uses: 30, isRecent: false });
    expect(heat.read(1, 1, true).share).toBe(0);
    expect(heat.brightness(true)[0]).toBe(1);
  });

  it('knows whether a snapshot is of the same model', () => {
    const heat = new ExpertHeat(grid([1, 2], [3, 4]));
    expect(heat.fits(grid([1, 2], [3, 4]))).toBe(true);
    expect(heat.fits(grid([1, 2]))).toBe(false);
    expect(heat.fits(grid([1], [2]))).toBe(false);
  });

  it('says it in words', () => {
    expect(summarise(grid([5, 0, 15]), 2)).toEqual([
      { layer: 1, uses: 20, unused: 1, busiest: [{ expert: 2, share: 0.75 }, { expert: 0, share: 0.25 }] },
    ]);
  });
});

describe('drawing', () => {
  it('has scales that people read', () => {
    expect([0, 0.3, 1, 1.5, 3, 10, 11, 1180].map(niceMax)).toEqual([1, 1, 1, 2, 5, 10, 20, 2000]);
  });

  it('breaks the line where there are no samples', () => {
    const points = [100, 101, 110, 111].map((time) => ({ time, value: 1 }));
    const { line, area } = pathOf(points, 111, 1);
    expect(line.match(/M/g)).toHaveLength(2);
    expect(area.match(/Z/g)).toHaveLength(2);
    expect(pathOf([], 0, 1)).toEqual({ line: '', area: '' });
  });

  it('has colours whose lightness grows all the way', () => {
    const lightness = Array.from(kGorget, (colour) => {
      const [r, g, b] = [colour & 255, (colour >>> 8) & 255, (colour >>> 16) & 255];
      return 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
    });
    for (let i = 1; i < lightness.length; ++i) expect(lightness[i]).toBeGreaterThanOrEqual(lightness[i - 1]! - 0.5);
    expect([gorgetIndex(-1), gorgetIndex(0.5), gorgetIndex(2)]).toEqual([0, 128, 255]);
  });
});

describe('words', () => {
  it('say numbers and times', () => {
    expect([0, 0.123, 5.67, 89.9, 1234].map(rate)).toEqual(['0', '0.12', '5.7', '89.9', '1,234']);
    expect([0.0000482, 0.0024, 0.25, 3.21, 75].map(seconds)).toEqual(['48 µs', '2.4 ms', '250 ms', '3.2 s', '1 min 15 s']);
    expect([0.4, 59, 3600, 90_061].map(duration)).toEqual(['0 s', '59 s', '1 h 0 min', '1 d 1 h']);
  });

  it('are announced by whole sentences', () => {
    expect(completedPart('One. Two. Thr', 0, false)).toBe('One. Two.');
    expect(completedPart('One. Two. Thr', 9, false)).toBe('');
    expect(completedPart('One. Two. Three', 9, true)).toBe(' Three');
    expect(completedPart('3.14 is', 0, false)).toBe('');
    expect(completedPart('a line\nand', 0, false)).toBe('a line\n');
  });
});
