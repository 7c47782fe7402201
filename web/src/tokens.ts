// Tokens as text on the page: spaces made visible, special ones as chips, bytes with the character they are a part of.
// Never as HTML.

import { BYTES, type Piece, pieces } from "./characters";
import { el } from "./dom";
import type { Source, TokenPage } from "./source";

export { BYTES };
export const SPECIAL = 1;
export const GLUED = 4;
export const NEW_LINE = 8;
const PAGE = 16384;
const LONGEST = 14;

const SIGNS: Record<string, string> = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽" };

// Whitespace made visible. A single leading space is what most tokens of some models have: it is left out of labels.
export function visible(text: string): string {
  const inner = text.length > 1 && text[0] === " " && text[1] !== " " ? text.slice(1) : text;
  return inner.replace(/[ \n\t\r\u00a0]/g, (sign) => SIGNS[sign]) || "∅";
}

export function short(text: string, most = LONGEST): string {
  const signs = [...visible(text)];
  return signs.length > most ? `${signs.slice(0, most - 1).join("")}…` : signs.join("");
}

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

// Inside a sentence: words from right to left must not pull what follows them to their other side.
export function isolated(text: string): string {
  return RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text;
}

// All tokens of a run, fetched page by page, those of one axis.
export class Tokens {
  readonly texts: string[];
  readonly kinds: number[];
  private parts = new Map<number, Piece>(); // of characters that lie in several tokens
  named = true; // whether there are texts at all
  private pages = new Map<number, Promise<void>>();

  constructor(
    readonly length: number,
    private fetchPage: (from: number, to: number) => Promise<TokenPage>,
  ) {
    this.texts = new Array<string>(length).fill("");
    this.kinds = new Array<number>(length).fill(0);
  }

  static of(source: Source, run: string, rev: number, length: number, memory: boolean): Tokens {
    return new Tokens(length, (from, to) => source.tokens(run, rev, from, to, memory));
  }

  // All of them; the first page comes first.
  async load(arrived: () => void): Promise<void> {
    for (let from = 0; from < this.length; from += PAGE) {
      await this.page(from);
      if (!from) this.named = this.texts.some((text) => text !== "");
      arrived();
    }
  }

  text(i: number): string {
    return this.texts[i] ?? "";
  }

  kind(i: number): number {
    return this.kinds[i] ?? 0;
  }

  // What of the text this token shows, and the character that it is only a part of.
  piece(i: number): Piece | null {
    return this.parts.get(i) ?? null;
  }

  label(i: number, most = LONGEST): string {
    if (this.text(i) === "" && i < this.length) return `#${i}`; // not there yet, or without a name
    if (!(this.kind(i) & BYTES)) return short(this.text(i), most);
    const of = this.piece(i)?.of.trim();
    return of ? `${of} ${this.text(i)}` : this.text(i);
  }

  // A label inside a sentence.
  name(i: number): string {
    return isolated(this.label(i));
  }

  // A token to put into a page, isolated so that right-to-left text keeps to itself.
  element(i: number, most = LONGEST): HTMLElement {
    const kind = this.kind(i);
    const name = kind & SPECIAL ? "token chip" : kind & BYTES ? "token chip hex" : "token";
    return el("bdi", { class: name }, this.label(i, most));
  }

  // A token and where it stands: the same word may be there twice.
  placed(i: number): HTMLElement[] {
    const place = el("span", { class: "position" }, ` (${i.toLocaleString("en")})`);
    return this.text(i) === "" ? [this.element(i, 24)] : [this.element(i, 24), place];
  }

  private page(from: number): Promise<void> {
    let page = this.pages.get(from);
    if (!page) {
      page = this.fetchPage(from, Math.min(from + PAGE, this.length)).then((found) => {
        for (let i = 0; i < found.texts.length; i++) {
          this.texts[found.from + i] = found.texts[i];
          this.kinds[found.from + i] = found.kinds[i];
        }
        const stop = found.from + found.texts.length;
        for (const [i, piece] of pieces(this.texts, this.kinds, found.from, stop)) this.parts.set(i, piece);
      });
      page.catch(() => this.pages.delete(from));
      this.pages.set(from, page);
    }
    return page;
  }
}
