// How large the heads of a wall can be so that all are on one screen. No element in here.

export interface Board {
  width: number;
  height: number;
  layers: number;
  heads: number; // of the layer that has most
  byLayer: boolean;
}

const GAP = 3; // around each head
export const LABEL = 30; // the number of a layer
const SPACE = 10; // between two layers side by side
const LEAST = 24; // a target for a finger or a pointer
const MOST = 96;

// The side of a head in pixels, and how many layers stand side by side.
export function fitWall({ width, height, layers, heads, byLayer }: Board): { side: number; columns: number } {
  for (let side = MOST; side >= LEAST; side--) {
    const one = side + 2 * GAP;
    const tall = one + (side >= 40 ? 14 : 0);
    if (!byLayer) {
      const across = Math.floor(width / one);
      if (across > 0 && Math.ceil((layers * heads) / across) * tall <= height) return { side, columns: 1 };
      continue;
    }
    const columns = Math.min(layers, Math.floor((width + SPACE) / (LABEL + heads * one + SPACE)));
    if (columns > 0 && Math.ceil(layers / columns) * tall <= height) return { side, columns };
  }
  const least = LEAST + 2 * GAP;
  const columns = Math.max(1, Math.floor((width + SPACE) / (LABEL + heads * least + SPACE)));
  if (!byLayer || Math.ceil(layers / columns) * least <= 2 * height) return { side: LEAST, columns };
  // Of what is scrolled for long anyway, as on a phone, a row is as wide as the screen.
  const room = (width + SPACE) / columns - SPACE - LABEL;
  return { side: Math.max(LEAST, Math.floor(room / heads) - 2 * GAP), columns };
}
