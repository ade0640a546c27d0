// The colours of the expert map: from the night through the blue and green of a hillstar's throat to
// a glow. Lightness grows all the way, so that it reads without colours too.
const kStops: [number, number, number][] = [
  [19, 28, 40],
  [32, 46, 104],
  [26, 100, 140],
  [24, 158, 128],
  [120, 206, 96],
  [236, 250, 160],
];

const kSteps = 256;

// RGBA as the bytes of an image lie.
export const kGorget: Uint32Array = (() => {
  const colours = new Uint32Array(kSteps);
  for (let i = 0; i < kSteps; ++i) {
    const at = (i / (kSteps - 1)) * (kStops.length - 1);
    const below = Math.min(Math.floor(at), kStops.length - 2);
    const mix = at - below;
    const [r, g, b] = [0, 1, 2].map((c) =>
      Math.round(kStops[below]![c]! * (1 - mix) + kStops[below + 1]![c]! * mix),
    ) as [number, number, number];
    colours[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return colours;
})();

export function gorgetIndex(brightness: number): number {
  return Math.max(0, Math.min(kSteps - 1, Math.round(brightness * (kSteps - 1))));
}
