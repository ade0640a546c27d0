// All routed experts as a grid, a row a layer, lit by routing. Mouse and arrow keys read one expert;
// the table below says the same in words.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { ExpertUses } from '../api/live';
import { compact, percent, plural } from '../shell/format';
import { ExpertHeat, summarise } from './expert_heat';
import { gorgetIndex, kGorget } from './gorget';

const kMinCellPixels = 3;
const kMaxCellHeight = 26;
const kMaxMapHeight = 560;
const kLabelWidth = 34; // of the layers' numbers

interface Layout {
  cellWidth: number;
  cellHeight: number;
  width: number;
  height: number;
}

export function layoutOf(numLayers: number, numExperts: number, width: number): Layout {
  const cellWidth = Math.max(kMinCellPixels, (width - kLabelWidth) / numExperts);
  const fair = Math.min(kMaxCellHeight, cellWidth * 1.6, kMaxMapHeight / numLayers);
  const cellHeight = Math.max(kMinCellPixels + 1, Math.floor(fair));
  return { cellWidth, cellHeight, width: kLabelWidth + cellWidth * numExperts, height: cellHeight * numLayers };
}

// Draws every cell as one pixel of a small picture and enlarges that.
class MapPainter {
  private readonly small = document.createElement('canvas');
  private readonly image: ImageData;
  private readonly pixels: Uint32Array;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly heat: ExpertHeat,
  ) {
    this.small.width = heat.numExperts;
    this.small.height = heat.numLayers;
    this.image = new ImageData(heat.numExperts, heat.numLayers);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  draw(layout: Layout, isCumulative: boolean, focus: { row: number; expert: number } | null): void {
    const context = this.canvas.getContext('2d');
    const small = this.small.getContext('2d');
    if (!context || !small) return;
    const brightness = this.heat.brightness(isCumulative);
    for (let i = 0; i < brightness.length; ++i) this.pixels[i] = kGorget[gorgetIndex(brightness[i]!)]!;
    small.putImageData(this.image, 0, 0);
    const ratio = devicePixelRatio || 1;
    const [width, height] = [Math.round(layout.width * ratio), Math.round(layout.height * ratio)];
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
      this.canvas.style.width = `${layout.width}px`;
      this.canvas.style.height = `${layout.height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, layout.width, layout.height);
    context.imageSmoothingEnabled = false;
    const mapWidth = layout.width - kLabelWidth;
    context.drawImage(this.small, kLabelWidth, 0, mapWidth, layout.height);
    this.drawGaps(context, layout);
    this.drawLabels(context, layout);
    if (focus) this.drawFocus(context, layout, focus);
  }

  private drawGaps(context: CanvasRenderingContext2D, { cellWidth, cellHeight, width, height }: Layout) {
    context.fillStyle = '#0d141c';
    if (cellWidth >= 6) {
      const gap = cellWidth >= 14 ? 2 : 1;
      for (let e = 0; e <= this.heat.numExperts; ++e) {
        context.fillRect(kLabelWidth + e * cellWidth - gap / 2, 0, gap, height);
      }
    }
    if (cellHeight >= 5) {
      const gap = cellHeight >= 14 ? 2 : 1;
      for (let row = 0; row <= this.heat.numLayers; ++row) {
        context.fillRect(kLabelWidth, row * cellHeight - gap / 2, width, gap);
      }
    }
  }

  private drawLabels(context: CanvasRenderingContext2D, { cellHeight }: Layout): void {
    context.fillStyle = '#9fb3bd';
    context.font = '11px system-ui, sans-serif';
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    const every = Math.max(1, Math.ceil(13 / cellHeight));
    for (let row = 0; row < this.heat.numLayers; row += every) {
      context.fillText(String(this.heat.layers[row]), kLabelWidth - 8, Math.max(6, (row + 0.5) * cellHeight));
    }
  }

  private drawFocus(context: CanvasRenderingContext2D, layout: Layout, focus: { row: number; expert: number }) {
    const { cellWidth, cellHeight } = layout;
    const [x, y] = [kLabelWidth + focus.expert * cellWidth, focus.row * cellHeight];
    context.lineWidth = 3;
    context.strokeStyle = '#0d141c';
    context.strokeRect(x - 1.5, y - 1.5, cellWidth + 3, cellHeight + 3);
    context.lineWidth = 1.5;
    context.strokeStyle = '#ffffff';
    context.strokeRect(x - 1, y - 1, cellWidth + 2, cellHeight + 2);
  }
}

function moved(key: string, { row, expert }: { row: number; expert: number }, heat: ExpertHeat) {
  const [lastRow, lastExpert] = [heat.numLayers - 1, heat.numExperts - 1];
  switch (key) {
    case 'ArrowLeft': return { row, expert: Math.max(0, expert - 1) };
    case 'ArrowRight': return { row, expert: Math.min(lastExpert, expert + 1) };
    case 'ArrowUp': return { row: Math.max(0, row - 1), expert };
    case 'ArrowDown': return { row: Math.min(lastRow, row + 1), expert };
    case 'Home': return { row, expert: 0 };
    case 'End': return { row, expert: lastExpert };
    case 'PageUp': return { row: 0, expert };
    case 'PageDown': return { row: lastRow, expert };
    default: return null;
  }
}

function readingText(heat: ExpertHeat, row: number, expert: number, isCumulative: boolean): string {
  const reading = heat.read(row, expert, isCumulative);
  const mean = reading.share * heat.numExperts;
  const span = reading.isRecent ? 'in the last seconds' : 'since the start';
  return (
    `Layer ${reading.layer}, expert ${expert}: ${percent(reading.share)} of the layer’s routing ` +
    `${span}, ${mean.toFixed(mean < 10 ? 1 : 0)} × the mean; ${plural(reading.uses, 'use')} in all`
  );
}

function ExpertTable({ experts }: { experts: ExpertUses }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class="expert-table" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>As a table, since the start</summary>
      {isOpen && (
        <div class="table" tabIndex={0} role="group" aria-label="Table of the layers">
          <table>
            <thead>
              <tr>
                <th scope="col">Layer</th>
                <th scope="col">Uses</th>
                <th scope="col">Unused experts</th>
                <th scope="col">Busiest experts and their shares</th>
              </tr>
            </thead>
            <tbody>
              {summarise(experts).map(({ layer, uses, unused, busiest }) => (
                <tr key={layer}>
                  <th scope="row">{layer}</th>
                  <td>{compact(uses)}</td>
                  <td>{unused}</td>
                  <td>{busiest.map(({ expert, share }) => `${expert} (${percent(share)})`).join(', ') || 'none'}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  );
}

// Keeps heat and picture going. Where less motion is wanted the picture changes with each snapshot only.
function useMap(experts: ExpertUses, time: number, isCumulative: boolean) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const heat = useMemo(() => new ExpertHeat(experts), [experts.numExperts, experts.layers.join()]);
  const focus = useRef<{ row: number; expert: number } | null>(null);
  const state = useRef({ time, isCumulative, wake: () => {} });
  state.current.isCumulative = isCumulative;
  const layout = () =>
    layoutOf(heat.numLayers, heat.numExperts, Math.max(280, (box.current?.clientWidth ?? 600) - 2));

  useEffect(() => {
    if (!canvas.current) return;
    const painter = new MapPainter(canvas.current, heat);
    const isCalm = matchMedia('(prefers-reduced-motion: reduce)').matches;
    let frame = 0;
    let last = 0;
    const draw = (now: number) => {
      if (last > 0) heat.advance(Math.min(1, (now - last) / 1000));
      painter.draw(layout(), state.current.isCumulative, focus.current);
      const goesOn = heat.isMoving() && !isCalm;
      last = goesOn ? now : 0;
      frame = goesOn ? requestAnimationFrame(draw) : 0;
    };
    state.current.wake = () => {
      if (isCalm && heat.isMoving()) heat.advance(1);
      if (frame === 0) frame = requestAnimationFrame(draw);
    };
    state.current.wake();
    const observer = new ResizeObserver(() => state.current.wake());
    if (box.current) observer.observe(box.current);
    return () => {
      cancelAnimationFrame(frame);
      observer.disconnect();
    };
  }, [heat]);
  useEffect(() => {
    const passed = time - state.current.time;
    state.current.time = time;
    if (passed > 0 && heat.fits(experts)) heat.add(experts, passed);
    state.current.wake();
  }, [time, isCumulative]);
  return { box, canvas, heat, focus, layout, wake: () => state.current.wake() };
}

export function ExpertMap({ experts, time }: { experts: ExpertUses; time: number }) {
  const [isCumulative, setCumulative] = useState(false);
  const [at, setAt] = useState<{ row: number; expert: number } | null>(null);
  const { box, canvas, heat, focus, layout, wake } = useMap(experts, time, isCumulative);
  const read = (place: { row: number; expert: number } | null) => {
    focus.current = place;
    setAt(place);
    wake();
  };
  const readPointer = (event: PointerEvent) => {
    const { cellWidth, cellHeight } = layout();
    const area = canvas.current!.getBoundingClientRect();
    const expert = Math.floor((event.clientX - area.left - kLabelWidth) / cellWidth);
    const row = Math.floor((event.clientY - area.top) / cellHeight);
    const isInside = expert >= 0 && expert < heat.numExperts && row >= 0 && row < heat.numLayers;
    read(isInside ? { row, expert } : null);
  };
  const readKey = (event: KeyboardEvent) => {
    const place = moved(event.key, at ?? { row: 0, expert: 0 }, heat);
    if (!place) return;
    event.preventDefault();
    read(place);
    const { cellWidth } = layout();
    const x = kLabelWidth + place.expert * cellWidth;
    const frame = box.current!;
    if (x < frame.scrollLeft + kLabelWidth || x > frame.scrollLeft + frame.clientWidth - 20) {
      frame.scrollLeft = x - frame.clientWidth / 2;
    }
  };
  const size = `${plural(heat.numLayers, 'layer')} of ${plural(heat.numExperts, 'expert')}`;
  const inside = at && at.row < heat.numLayers && at.expert < heat.numExperts ? at : null;
  return (
    <section class="card experts" aria-labelledby="experts-title">
      <div class="card-head">
        <h2 id="experts-title">Experts</h2>
        <span class="card-note">{size}, lit by routing</span>
        <div class="switch" role="group" aria-label="What the map shows">
          <button type="button" aria-pressed={!isCumulative} onClick={() => setCumulative(false)}>
            Now
          </button>
          <button type="button" aria-pressed={isCumulative} onClick={() => setCumulative(true)}>
            Since start
          </button>
        </div>
      </div>
      <div
        class="map"
        ref={box}
        tabIndex={0}
        role="application"
        aria-roledescription="map"
        aria-label={`Uses of ${size}. Arrow keys read one expert; the table below has the layers in words.`}
        onKeyDown={readKey}
        onFocus={() => read(at ?? { row: 0, expert: 0 })}
        onBlur={() => read(null)}
        onPointerMove={readPointer}
        onPointerDown={readPointer}
        onPointerLeave={() => document.activeElement !== box.current && read(null)}
      >
        <canvas ref={canvas} />
      </div>
      <div class="map-foot">
        <p class="map-reading" role="status">
          {inside
            ? readingText(heat, inside.row, inside.expert, isCumulative)
            : 'Point at an expert, or use the arrow keys, to read it.'}
        </p>
        <p class="map-scale" aria-hidden="true">
          unused <span class="map-colours" /> most used
        </p>
      </div>
      <ExpertTable experts={experts} />
    </section>
  );
}
