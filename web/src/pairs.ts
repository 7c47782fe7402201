// Two heads beside each other: what of one stands where in the other.

import type { HeadRef } from "./painter";
import type { Place } from "./state";

// As much of a grid as matters here.
export interface Extent {
  queries: number;
  keys: number;
}

// The cell at the same relative position: the same one where both are as long.
export function counterpart(q: number, k: number, from: Extent, to: Extent): [number, number] {
  const at = (i: number, length: number, other: number) =>
    Math.min(Math.floor(((i + 0.5) / length) * other), other - 1);
  return [at(q, from.queries, to.queries), at(k, from.keys, to.keys)];
}

// The place that shows the same part, though their lengths may differ.
export function samePlace(place: Place, from: Extent, to: Extent): Place {
  const closer = Math.round(Math.log2(Math.max(from.keys, 1) / Math.max(to.keys, 1)));
  return {
    row: (place.row / from.queries) * to.queries,
    col: (place.col / from.keys) * to.keys,
    zoom: from.keys === to.keys ? place.zoom : place.zoom + closer,
  };
}

// Only of the same tokens a difference means something.
export function sameTokens(a: HeadRef, b: HeadRef): boolean {
  const [x, y] = [a.run.layer(a.layer), b.run.layer(b.layer)];
  if (x.queries !== y.queries || x.keys !== y.keys) return false;
  return a.run === b.run || a.run.tokens.texts.every((text, i) => text === b.run.tokens.texts[i]);
}
