// Two heads beside each other: what of one stands where in the other.

import type { HeadRef } from "./painter";
import type { Place } from "./state";
import { SPECIAL, type Tokens } from "./tokens";

// As much of a grid as matters here.
export interface Extent {
  queries: number;
  keys: number;
}

type Way = (i: number) => number;

// Where a cell of one head stands in the map of the other.
export class Pairing {
  private ways: { q: Way; k: Way }[];

  constructor(heads: [HeadRef, HeadRef]) {
    const axes = heads.map(({ run, layer }) => ({ info: run.layer(layer), q: run.tokens, k: run.keyTokens(layer) }));
    this.ways = [axes, [axes[1], axes[0]]].map(([from, to]) => ({
      q: way(from.q, to.q, from.info.queries, to.info.queries),
      k: way(from.k, to.k, from.info.keys, to.info.keys),
    }));
  }

  // From the first map to the second, or from the second to the first.
  query(from: number, q: number): number {
    return this.ways[from].q(q);
  }

  key(from: number, k: number): number {
    return this.ways[from].k(k);
  }
}

// By the letters of the text, where both are of the same; else by the relative position.
function way(from: Tokens, to: Tokens, length: number, other: number): Way {
  if (from === to && length === other) return (i) => i;
  const same = from.length === length && to.length === other ? aligned(from, to) : null;
  if (same) return (i) => same[i];
  return (i) => Math.min(Math.floor(((i + 0.5) / length) * other), other - 1);
}

// For every token the one of another text that holds its middle letter; null where the letters are not the same.
export function aligned(from: Tokens, to: Tokens): number[] | null {
  const [a, b] = [letters(from), letters(to)];
  if (a.text !== b.text || !a.text) return null;
  const holds = new Map<number, number>(); // which token of the other holds a letter
  const silent = new Map<number, number[]>(); // and which stand before it without any, as special ones do
  b.spans.forEach(([start, stop], i) => {
    if (start === stop) silent.set(start, [...(silent.get(start) ?? []), i]);
    for (let letter = start; letter < stop; letter++) holds.set(letter, i);
  });
  const met = new Map<number, number>();
  return a.spans.map(([start, stop]) => {
    if (start < stop) return holds.get((start + stop - 1) >> 1)!;
    const before = silent.get(start);
    const nth = met.get(start) ?? 0;
    met.set(start, nth + 1);
    return before ? before[Math.min(nth, before.length - 1)] : (holds.get(start) ?? holds.get(start - 1)!);
  });
}

// The letters of a text, without spaces and without a difference of case; and those of each token.
function letters(tokens: Tokens): { text: string; spans: [number, number][] } {
  let text = "";
  const spans = tokens.texts.map((token, i): [number, number] => {
    const start = text.length;
    if (!(tokens.kind(i) & SPECIAL)) text += token.replace(/\s/g, "").toLowerCase();
    return [start, text.length];
  });
  return { text, spans };
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
