// Two heads beside each other: what of one stands where in the other.

import type { HeadRef } from "./painter";
import type { Place } from "./state";
import { GLUED, SPECIAL, type Tokens } from "./tokens";

// As much of a grid as matters here.
export interface Extent {
  queries: number;
  keys: number;
}

type Way = (i: number) => number | null;

// Where a cell of one head stands in the map of the other; null where the other has nothing of it.
export class Pairing {
  readonly none: boolean; // whether nothing of one stands anywhere in the other
  private ways: { q: Way; k: Way }[];

  constructor(heads: [HeadRef, HeadRef]) {
    const axes = heads.map(({ run, layer }) => ({ info: run.layer(layer), q: run.tokens, k: run.keyTokens(layer) }));
    this.ways = [axes, [axes[1], axes[0]]].map(([from, to]) => ({
      q: way(from.q, to.q, from.info.queries, to.info.queries),
      k: way(from.k, to.k, from.info.keys, to.info.keys),
    }));
    this.none = Array.from({ length: axes[0].info.queries }, (_, i) => this.query(0, i)).every((i) => i === null);
  }

  // From the first map to the second, or from the second to the first.
  query(from: number, q: number): number | null {
    return this.ways[from].q(q);
  }

  key(from: number, k: number): number | null {
    return this.ways[from].k(k);
  }

  // Which tokens of one are not in the other: those that were changed.
  changed(from: number, length: number, axis: "q" | "k"): Set<number> {
    return new Set(Array.from({ length }, (_, i) => i).filter((i) => this.ways[from][axis](i) === null));
  }
}

// By the letters of the text. Without a text there are positions alone, which mean the same where there are as many.
function way(from: Tokens, to: Tokens, length: number, other: number): Way {
  if (from === to || (!from.named && !to.named && length === other)) return (i) => (i < other ? i : null);
  if (from.length !== length || to.length !== other) return () => null;
  const found = aligned(from, to);
  return (i) => found[i] ?? null;
}

// For every token the one of another text that holds its middle letter; null where its letters are not in both. What both
// begin and end with is in both, and of what lies between the words that both have in the same order: a word that was
// changed, or a text that was written on, leaves the rest where it was.
export function aligned(from: Tokens, to: Tokens): (number | null)[] {
  const [a, b] = [letters(from), letters(to)];
  const shorter = Math.min(a.text.length, b.text.length);
  let head = 0;
  while (head < shorter && a.text[head] === b.text[head]) head++;
  let tail = 0;
  while (tail < shorter - head && a.text.at(-1 - tail) === b.text.at(-1 - tail)) tail++;
  const moved = b.text.length - a.text.length;
  const inHead = ([, stop]: Span, size: number) => stop <= head && size > 0;
  const inTail = ([start]: Span, size: number) => start >= size - tail && size > 0;
  const pairs = sameWords(between(a, head, tail), between(b, head, tail));
  const inWord = ([start, stop]: Span, side: 0 | 1) =>
    pairs.find((pair) => start < stop && pair[side][0] <= start && stop <= pair[side][1]);
  const holds = new Map<number, number>(); // which token of the other holds a letter
  const silent = new Map<number, number[]>(); // and which stand before it without any, as special ones do
  b.spans.forEach((span, i) => {
    const [start, stop] = span;
    if (start === stop) silent.set(start, [...(silent.get(start) ?? []), i]);
    for (let letter = start; letter < stop; letter++) holds.set(letter, i);
  });
  const met = new Map<number, number>();
  return a.spans.map((span) => {
    const word = inWord(span, 0);
    const inner = word ? word[1][0] - word[0][0] : null;
    const shift = inHead(span, a.text.length) ? 0 : inTail(span, a.text.length) ? moved : inner;
    if (shift === null) return null;
    const [start, stop] = [span[0] + shift, span[1] + shift];
    const whole = (i: number | undefined) => {
      if (i === undefined) return null;
      const span = b.spans[i];
      return inHead(span, b.text.length) || inTail(span, b.text.length) || inWord(span, 1) ? i : null;
    };
    if (start < stop) return whole(holds.get((start + stop - 1) >> 1));
    const before = silent.get(start);
    const nth = met.get(start) ?? 0;
    met.set(start, nth + 1);
    return before ? before[Math.min(nth, before.length - 1)] : whole(holds.get(start) ?? holds.get(start - 1));
  });
}

type Span = [number, number];

// Two texts of more words than this between what they begin and end with are aligned by that alone.
const MOST_WORDS = 1000;

interface Word {
  span: Span;
  text: string;
}

// The words that are not wholly in what two texts begin and end with.
function between({ text, words }: Letters, head: number, tail: number): Word[] {
  return words
    .filter(([start, stop]) => stop > head && start < text.length - tail)
    .map((span) => ({ span, text: text.slice(...span) }));
}

// The longest list of words that both have in the same order.
export function sameWords(a: Word[], b: Word[]): [Span, Span][] {
  if (a.length > MOST_WORDS || b.length > MOST_WORDS) return [];
  const longest = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      longest[i][j] =
        a[i].text === b[j].text ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  const found: [Span, Span][] = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i].text === b[j].text) found.push([a[i++].span, b[j++].span]);
    else if (longest[i + 1][j] >= longest[i][j + 1]) i++;
    else j++;
  }
  return found;
}

interface Letters {
  text: string;
  spans: Span[]; // of each token
  words: Span[]; // of each word or sign
}

// The letters of a text, without spaces, accents and a difference of case; and those of each token.
function letters(tokens: Tokens): Letters {
  let text = "";
  const words: Span[] = [];
  const spans = tokens.texts.map((token, i): Span => {
    const start = text.length;
    if (tokens.kind(i) & SPECIAL) return [start, start];
    const plain = token.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
    let glued = (tokens.kind(i) & GLUED) > 0;
    for (const [part] of plain.matchAll(/[\p{L}\p{N}]+|\s+|[^\s\p{L}\p{N}]+/gu)) {
      const sign = !/[\p{L}\p{N}]/u.test(part);
      if (/\s/.test(part)) {
        glued = false;
        continue;
      }
      const before = words.at(-1);
      const goes = glued && !sign && before && /[\p{L}\p{N}]$/u.test(text);
      if (goes) before[1] += part.length;
      else words.push([text.length, text.length + part.length]);
      text += part;
      glued = true;
    }
    return [start, text.length];
  });
  return { text, spans, words };
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
