// How strongly every token is shaded, by what, and in words. No element in here.

import { left } from "./aside";
import type { Shade } from "./state";

const LEAST = 0.06;

// What the shades are of; what is chosen may be something else by now.
export interface Chosen {
  shade: Shade;
  layer: number;
  q: number[];
  k: number | null;
}

export class Shading {
  readonly most: number = 0;
  readonly skipsFirst: boolean = false;
  private total = 0;

  constructor(
    readonly values: Float32Array | null,
    readonly of: Chosen,
    readonly aside = false, // whether the first token is, by the rule of all views
  ) {
    if (!values) return;
    for (const value of values) if (Math.abs(value) > 0) this.total += Math.abs(value);
    // Else texts of causal models look blank: nearly all goes to their first token.
    this.skipsFirst = aside && of.shade !== "looked" && left(this.firstShare) < 1 && values.length > 2;
    for (let i = this.skipsFirst ? 1 : 0; i < values.length; i++)
      if (Math.abs(values[i]) > this.most) this.most = Math.abs(values[i]);
  }

  get firstShare(): number {
    return this.values && this.total > 0 ? this.values[0] / this.total : 0;
  }

  // What a value is of all that the first token leaves; null where that is not set aside.
  ofRest(i: number): number | null {
    return this.skipsFirst ? this.values![i] / (this.total * left(this.firstShare)) : null;
  }

  // The places of the largest ones that are shown.
  top(n: number): number[] {
    if (!this.values) return [];
    return this.skipsFirst ? topOf(this.values.subarray(1), n).map((i) => i + 1) : topOf(this.values, n);
  }

  // From 0 to 1; what would be hardly seen is 0.
  strength(i: number): number {
    const { values } = this;
    if (!values || i >= values.length || !this.most || (i === 0 && this.skipsFirst)) return 0;
    const size = Math.abs(values[i]);
    const strength = size > 0 ? Math.min(1, (size / this.most) ** 0.6) : 0;
    return strength < LEAST ? 0 : strength;
  }

  // Whether it lowers what is asked about, where a reading has a sign.
  against(i: number): boolean {
    return (this.values?.[i] ?? 0) < 0;
  }

  // What is seen, in a sentence; or what to do to see something.
  // The keys of a memory are no tokens of the text.
  words(query: (i: number) => string, key: (i: number) => string, memory = false): string {
    const { shade, q, k } = this.of;
    const queries = q.map(query).join(" + ");
    const chosen = k ?? (memory ? null : (q.at(-1) ?? null));
    const aside = this.skipsFirst ? `; first token ${Math.round(100 * this.firstShare)}\u00a0%, set aside` : "";
    const elsewhere = memory && this.values && (shade === "looks" || shade === "received");
    const words: Record<Shade, string> = {
      looks: q.length ? `what “${queries}” looks at` : "Point at a token, or click one, to see what it looks at.",
      looked:
        chosen !== null
          ? `who looks at “${key(chosen)}”`
          : memory
            ? "Pin a cell to see who looks at its key."
            : "Point at a token to see who looks at it.",
      received: memory ? "how much each key received" : "how much each token received",
      rollout: q.length
        ? `what fed “${queries}”, through all layers: heuristic, not proof of cause`
        : "Pin a token, then press R.",
    };
    return words[shade] + (elsewhere ? ": keys that are not of this text" : "") + aside;
  }
}

// The places of the largest, largest first; of equal ones the lower.
export function topOf(values: Float32Array, n: number): number[] {
  const best: number[] = [];
  for (let i = 0; i < values.length; i++) {
    const value = Math.abs(values[i]);
    if (!(value > 0) || (best.length === n && value <= Math.abs(values[best[n - 1]]))) continue;
    let at = best.length;
    while (at > 0 && Math.abs(values[best[at - 1]]) < value) at--;
    best.splice(at, 0, i);
    if (best.length > n) best.pop();
  }
  return best;
}
