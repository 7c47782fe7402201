// Words and phrases in a text, over as many tokens as they take. No element in here.

import { BYTES, GLUED, SPECIAL, type Tokens } from "./tokens";

// The first and the last token of a place where something was found.
export type Hit = [number, number];

const WORD = /[\p{L}\p{N}\p{M}]/u;

// Neither case (unless it is asked for), nor how a letter is put together, nor spaces beside signs make a difference:
// tokenizers change all three.
class Folded {
  text = "";
  readonly first: number[] = []; // the token of each code unit, or the first of those that share it
  readonly last: number[] = [];
  private space = false;
  private word = false;

  constructor(private asTyped: boolean) {}

  add(text: string, first: number, last = first): void {
    const plain = text.normalize("NFD");
    for (const sign of this.asTyped ? plain : plain.toLowerCase()) {
      if (/\s/.test(sign)) {
        this.space = true;
        continue;
      }
      const word = WORD.test(sign);
      if (this.space && this.word && word) this.put(" ", first, first);
      this.put(sign, first, last);
      this.space = false;
      this.word = word;
    }
  }

  private put(sign: string, first: number, last: number): void {
    this.text += sign;
    for (let i = 0; i < sign.length; i++) {
      this.first.push(first);
      this.last.push(last);
    }
  }
}

// The text of a run, ready to be searched.
export class Searched {
  private folded: Folded;

  constructor(
    tokens: Tokens,
    private asTyped = false,
  ) {
    this.folded = new Folded(asTyped);
    for (let i = 0; i < tokens.length; ) {
      const kind = tokens.kind(i);
      if (i && (kind & SPECIAL || !(kind & GLUED))) this.folded.add(" ", i);
      if (kind & BYTES) i = this.bytes(tokens, i);
      else this.folded.add(tokens.text(i), i++);
    }
  }

  // Every place, in order; places do not overlap.
  find(wanted: string): Hit[] {
    const sought = new Folded(this.asTyped);
    sought.add(wanted, 0);
    const { text, first, last } = this.folded;
    const hits: Hit[] = [];
    if (!sought.text) return hits;
    for (let at = text.indexOf(sought.text); at >= 0; at = text.indexOf(sought.text, at + sought.text.length)) {
      const hit: Hit = [first[at], last[at + sought.text.length - 1]];
      const before = hits.at(-1);
      if (before && before[1] >= hit[0] && before[0] <= hit[0] && before[1] >= hit[1]) continue; // twice in one token
      hits.push(hit);
    }
    return hits;
  }

  // Letters whose bytes are spread over several tokens belong to all of these.
  private bytes(tokens: Tokens, start: number): number {
    const bytes: number[] = [];
    const owner: number[] = [];
    let stop = start;
    for (; stop < tokens.length && tokens.kind(stop) & BYTES; stop++)
      for (const byte of tokens.text(stop).split(" ")) {
        bytes.push(parseInt(byte, 16));
        owner.push(stop);
      }
    for (let i = 0; i < bytes.length; ) {
      const size = bytes[i] < 0x80 ? 1 : bytes[i] < 0xe0 ? 2 : bytes[i] < 0xf0 ? 3 : 4;
      const end = Math.min(i + size, bytes.length);
      this.folded.add(new TextDecoder().decode(new Uint8Array(bytes.slice(i, end))), owner[i], owner[end - 1]);
      i = end;
    }
    return stop;
  }
}

// The hit after what is pinned, or before it; round and round. None: -1.
export function step(hits: Hit[], pinned: number[], by: 1 | -1): number {
  if (!hits.length) return -1;
  const on = hits.findIndex(([first, last]) => first === pinned[0] && last === pinned.at(-1));
  if (on >= 0) return (on + by + hits.length) % hits.length;
  if (by > 0) {
    const next = hits.findIndex(([first]) => first > (pinned.at(-1) ?? -1));
    return Math.max(next, 0);
  }
  const before = hits.filter(([, last]) => last < (pinned[0] ?? Infinity)).length;
  return (before || hits.length) - 1;
}
