// How brightly each expert is lit. An expert's heat grows with its uses and fades by half every two
// seconds or so; what a snapshot adds is spread over the second until the next one, so that the map
// moves evenly.
import type { ExpertUses } from '../api/live';

const kFadeSeconds = 3; // to 1/e
const kDarkSeconds = 4; // without any use, to 1/e
const kMaxPendingSeconds = 2;

export interface ExpertReading {
  layer: number;
  expert: number;
  share: number; // of the layer's uses
  uses: number; // since the server's start
  isRecent: boolean; // the share is of the last seconds
}

export class ExpertHeat {
  readonly numLayers: number;
  readonly numExperts: number;
  readonly layers: number[];
  private totals: Float64Array; // uses since the server's start
  private readonly heat: Float32Array;
  private readonly pending: Float32Array; // a second, until pendingSeconds are over
  private readonly lit: Float32Array;
  private pendingSeconds = 0;
  private light = 0; // 1 while experts are used

  constructor(uses: ExpertUses) {
    this.layers = uses.layers;
    this.numLayers = uses.layers.length;
    this.numExperts = uses.numExperts;
    this.totals = Float64Array.from(uses.uses.flat());
    this.heat = new Float32Array(this.totals.length);
    this.pending = new Float32Array(this.totals.length);
    this.lit = new Float32Array(this.totals.length);
  }

  fits(uses: ExpertUses): boolean {
    if (uses.numExperts !== this.numExperts || uses.layers.length !== this.numLayers) return false;
    return uses.layers.every((layer, i) => layer === this.layers[i]);
  }

  // `passedSeconds` since the last one.
  add(uses: ExpertUses, passedSeconds: number): void {
    this.advance(this.pendingSeconds); // what was not shown yet
    const totals = Float64Array.from(uses.uses.flat());
    const passed = Math.max(passedSeconds, 0.2);
    for (let i = 0; i < totals.length; ++i) {
      this.pending[i] = Math.max(0, totals[i]! - this.totals[i]!) / passed;
    }
    this.totals = totals;
    this.pendingSeconds = Math.min(passed, kMaxPendingSeconds); // of a page that was hidden, the end
  }

  advance(seconds: number): void {
    const fade = Math.exp(-seconds / kFadeSeconds);
    const adding = Math.min(seconds, this.pendingSeconds);
    let isUsed = false;
    for (let i = 0; i < this.heat.length; ++i) {
      const added = this.pending[i]! * adding;
      if (added > 0) isUsed = true;
      this.heat[i] = this.heat[i]! * fade + added;
    }
    this.pendingSeconds -= adding;
    this.light = isUsed ? 1 : this.light * Math.exp(-seconds / kDarkSeconds);
  }

  // Whether time changes the picture.
  isMoving(): boolean {
    return this.pendingSeconds > 0 || this.light > 0.01;
  }

  // From 0 to 1, for [layer][expert], until the next call. The root of the share of the most used one's,
  // so that experts of few uses can be told from unused ones.
  brightness(isCumulative: boolean): Float32Array {
    const values = isCumulative ? this.totals : this.heat;
    let max = 0;
    for (let i = 0; i < values.length; ++i) max = Math.max(max, values[i]!);
    const light = isCumulative ? 1 : this.light;
    const scale = max > 0 ? 1 / max : 0;
    for (let i = 0; i < values.length; ++i) this.lit[i] = light * Math.sqrt(values[i]! * scale);
    return this.lit;
  }

  read(row: number, expert: number, isCumulative: boolean): ExpertReading {
    const isRecent = !isCumulative && this.light > 0.01;
    const values = isRecent ? this.heat : this.totals;
    const begin = row * this.numExperts;
    let sum = 0;
    for (let e = 0; e < this.numExperts; ++e) sum += values[begin + e]!;
    return {
      layer: this.layers[row]!,
      expert,
      share: sum > 0 ? values[begin + expert]! / sum : 0,
      uses: this.totals[begin + expert]!,
      isRecent,
    };
  }
}

export interface LayerSummary {
  layer: number;
  uses: number;
  unused: number; // experts
  busiest: { expert: number; share: number }[];
}

// Since the server's start, for the table.
export function summarise(experts: ExpertUses, numBusiest = 4): LayerSummary[] {
  return experts.layers.map((layer, row) => {
    const uses = experts.uses[row]!;
    const total = uses.reduce((sum, value) => sum + value, 0);
    const order = uses.map((value, expert) => ({ expert, share: total > 0 ? value / total : 0 }));
    order.sort((a, b) => b.share - a.share || a.expert - b.expert);
    return {
      layer,
      uses: total,
      unused: uses.filter((value) => value === 0).length,
      busiest: order.slice(0, numBusiest).filter(({ share }) => share > 0),
    };
  });
}
