// Characters that lie in several tokens, byte by byte or joined by a sign between them: the first of these tokens shows
// the character, as it was typed, and the others are parts of it. No element in here.

export const BYTES = 2;

export interface Piece {
  shown: string; // what begins in this token: nothing, where it is only a part
  of: string; // the character that it is a part of
}

// What makes one sign of two: joiners, variants, colours of skin.
const JOINS = /^[\u200d\ufe0f\u{1f3fb}-\u{1f3ff}]/u;
const JOINED = /\u200d$/;

// The pieces among the tokens from `from` to `to`; a token that is whole has none, nor have bytes that are no character.
export function pieces(texts: string[], kinds: number[], from: number, to: number): Map<number, Piece> {
  const found = new Map<number, Piece>();
  const holds = (i: number) => i < to && (kinds[i] & BYTES || joins(texts, i));
  for (let start = from; start < to; ) {
    let stop = start;
    while (holds(stop)) stop++;
    if (stop > start) read(texts, kinds, start, stop, found);
    start = stop + 1;
  }
  return found;
}

function joins(texts: string[], i: number): boolean {
  return (
    JOINS.test(texts[i]) || JOINS.test(texts[i + 1] ?? "") || JOINED.test(texts[i]) || JOINED.test(texts[i - 1] ?? "")
  );
}

function read(texts: string[], kinds: number[], start: number, stop: number, found: Map<number, Piece>): void {
  const bytes: number[] = [];
  const owner: number[] = []; // the token of each byte
  for (let i = start; i < stop; i++)
    for (const byte of kinds[i] & BYTES ? hex(texts[i]) : new TextEncoder().encode(texts[i])) {
      bytes.push(byte);
      owner.push(i);
    }
  const broken = new Set<number>();
  let text = "";
  const at: [number, number][] = []; // the first and the last token of each code unit
  for (let i = 0; i < bytes.length; ) {
    const size = bytes[i] < 0x80 ? 1 : bytes[i] < 0xe0 ? 2 : bytes[i] < 0xf0 ? 3 : 4;
    const sign = decoded(bytes.slice(i, i + size));
    const end = sign === null ? i + 1 : i + size;
    if (sign === null) broken.add(owner[i]);
    for (const unit of sign ?? "\ufffd") for (let n = 0; n < unit.length; n++) at.push([owner[i], owner[end - 1]]);
    text += sign ?? "\ufffd";
    i = end;
  }
  const put = (i: number, shown: string, of: string | null) => {
    const before = found.get(i);
    found.set(i, { shown: (before?.shown ?? "") + shown, of: before?.of || (of ?? "") });
  };
  for (const { segment, index } of new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(text)) {
    const [first, last] = [at[index][0], at[index + segment.length - 1][1]];
    put(first, segment, last > first ? segment : null);
    for (let i = first + 1; i <= last; i++) put(i, "", segment);
  }
  for (let i = start; i < stop; i++) if (broken.has(i) || !found.get(i)?.of) found.delete(i);
}

function hex(text: string): number[] {
  return text.split(" ").map((byte) => parseInt(byte, 16));
}

function decoded(bytes: number[]): string | null {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}
