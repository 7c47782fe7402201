// The tokens of a text as one reads them, in blocks: of a long text only those near the view are drawn.

import type { Context } from "./context";
import { el } from "./dom";
import { shift } from "./shift";
import { BYTES, GLUED, isolated, NEW_LINE, SPECIAL } from "./tokens";

const BLOCK = 512;
// A token that only goes on with the character before it; letters that are written joined stay so.
const PART = "·";
const JOINED_PART = "\u200d·\u200d";

export class TextBody {
  readonly node = el("div", {
    class: "text-body",
    attrs: { tabindex: 0, role: "group", "aria-label": "the text; arrow keys move the chosen token" },
  });
  readonly scroller = el("div", { class: "text-scroll" }, this.node);
  private blocks: HTMLElement[] = [];
  // What is to be in view until someone scrolls: blocks are drawn late, and then are higher or lower than was guessed.
  private held: { token: number; also: number | null } | null = null;
  private seen = new IntersectionObserver((entries) => this.appear(entries), {
    root: this.scroller,
    rootMargin: "600px 0px",
  });

  constructor(
    private context: Context,
    private strength: (token: number) => number,
    private found: (token: number) => boolean,
    private against: (token: number) => boolean = () => false,
  ) {
    for (const scrolled of ["wheel", "touchmove", "pointerdown", "keydown"])
      this.scroller.addEventListener(scrolled, () => this.release(), { passive: true });
    new ResizeObserver(() => this.keep()).observe(this.scroller);
  }

  rebuild(): void {
    const run = this.context.run.value;
    this.seen.disconnect();
    this.blocks = [];
    if (!run) return this.node.replaceChildren();
    const count = Math.ceil(run.tokens.length / BLOCK);
    for (let i = 0; i < count; i++) {
      const block = el("div", { class: "block", attrs: { "data-block": i } });
      // A guess until it is drawn: forty tokens of text take about six lines of this width.
      block.style.minHeight =
        count > 1 ? `${Math.round((Math.min(BLOCK, run.tokens.length - i * BLOCK) / 8) * 26)}px` : "";
      this.blocks.push(block);
    }
    // Those in view when a growing text gets longer are drawn at once: it must not blink.
    const drawn = [...this.node.children].map((block) => block.childElementCount > 0);
    for (const [i, block] of this.blocks.entries()) if (drawn[i] || i === 0) this.drawBlock(block);
    this.node.replaceChildren(...this.blocks);
    for (const block of this.blocks) this.seen.observe(block);
    this.keep();
  }

  // Tokens have arrived: what is drawn is drawn again with them.
  fill(): void {
    for (const block of this.drawn) this.drawBlock(block);
    this.keep();
  }

  paint(): void {
    for (const block of this.drawn) this.paintBlock(block);
  }

  mark(): void {
    for (const block of this.drawn) this.markBlock(block);
  }

  // Bring a token into view, and another one with it if both fit; there it stays until someone scrolls.
  reveal(token: number, also: number | null = null): void {
    this.held = { token, also };
    this.keep();
  }

  release(): void {
    this.held = null;
  }

  private keep(): void {
    const block = this.held && this.blocks[Math.floor(this.held.token / BLOCK)];
    if (!block || !this.scroller.clientHeight) return;
    if (!block.childElementCount) this.drawBlock(block);
    const { token, also } = this.held!;
    const span = this.find(token);
    const beside = also === null ? null : this.find(also);
    if (span)
      this.scroller.scrollTop += shift(
        this.scroller.getBoundingClientRect(),
        span.getBoundingClientRect(),
        beside?.getBoundingClientRect(),
      );
  }

  // The token above or below another one.
  lineStep(i: number, by: number): number {
    const span = this.find(i);
    if (!span) return i + by;
    const from = span.getBoundingClientRect();
    let best = i + by;
    let near = Infinity;
    for (let j = i + by; j >= 0 && Math.abs(j - i) < 80; j += by) {
      const other = this.find(j)?.getBoundingClientRect();
      if (!other) break;
      const lines = Math.abs(other.top - from.top);
      if (lines < from.height / 2) continue;
      if (lines > from.height * 2.2) break;
      const gap = Math.abs(other.left - from.left);
      if (gap < near) {
        near = gap;
        best = j;
      }
    }
    return best;
  }

  private get drawn(): HTMLElement[] {
    return this.blocks.filter((block) => block.childElementCount > 0);
  }

  private find(i: number): HTMLElement | null {
    return this.node.querySelector<HTMLElement>(`[data-t="${i}"]`);
  }

  private appear(entries: IntersectionObserverEntry[]): void {
    for (const entry of entries) {
      const block = entry.target as HTMLElement;
      if (entry.isIntersecting) {
        if (!block.childElementCount) this.drawBlock(block);
      } else if (this.blocks.length > 4 && block.childElementCount) {
        block.style.minHeight = `${block.offsetHeight}px`;
        block.replaceChildren();
      }
    }
    this.keep();
  }

  private drawBlock(block: HTMLElement): void {
    const run = this.context.run.value;
    if (!run) return;
    const first = Number(block.dataset.block) * BLOCK;
    const stop = Math.min(first + BLOCK, run.tokens.length);
    const parts: (Node | string)[] = [];
    const { image } = run.info;
    const patches = image && image.first !== null ? [image.first, image.first + image.rows * image.columns] : [0, 0];
    for (let i = first; i < stop; i++) {
      if (i >= patches[0] && i < patches[1]) {
        // They stand on the picture itself; in the text one word is enough.
        if (i === patches[0]) parts.push(" ", el("span", { class: "t chip", attrs: { "data-t": i } }, "the picture"));
        continue;
      }
      const kind = run.tokens.kind(i);
      const piece = run.tokens.piece(i);
      const text = piece ? piece.shown || (isolated(piece.of) === piece.of ? PART : JOINED_PART) : run.tokens.text(i);
      if (kind & NEW_LINE) parts.push(el("br"));
      else if (i && !(kind & GLUED)) parts.push(" ");
      const plain =
        kind & SPECIAL ? "t chip" : piece ? (piece.shown ? "t" : "t part") : kind & BYTES ? "t chip hex" : "t";
      const prompt = run.info.prompt ?? Infinity; // what follows was written by the model
      const name = i < prompt ? plain : `${plain} by-model${i === prompt ? " first-written" : ""}`;
      // A space before a word is not of its frame, which would else begin at the end of the line above.
      const spaced = /^ \S/.test(text) && !(kind & SPECIAL);
      if (spaced) parts.push(" ");
      const shown =
        kind & SPECIAL
          ? text
          : text
              .slice(spaced ? 1 : 0)
              .replace(/\n/g, "⏎\n")
              .replace(/\t/g, "⇥\t");
      const title = piece ? `a part of ${piece.of.trim()}: ${run.tokens.text(i)}` : undefined;
      parts.push(el("span", { class: name, title, attrs: { "data-t": i } }, shown || run.tokens.label(i)));
    }
    block.replaceChildren(...parts);
    block.style.minHeight = "";
    this.paintBlock(block);
    this.markBlock(block);
  }

  private paintBlock(block: HTMLElement): void {
    for (const [i, span] of tokensOf(block)) {
      const strength = this.strength(i);
      span.style.setProperty("--s", strength ? strength.toFixed(3) : "0");
      span.classList.toggle("against", strength > 0 && this.against(i));
    }
  }

  private markBlock(block: HTMLElement): void {
    const { q, k: pinned, layer } = this.context.state;
    const hover = this.context.hover.value;
    // The keys of a memory have places of their own, which are not those of this text.
    const memory = this.context.run.value?.info.layers[layer]?.cross;
    const [k, pointed] = memory ? [null, null] : [pinned, hover?.k];
    for (const [i, span] of tokensOf(block)) {
      span.classList.toggle("query", q.includes(i));
      span.classList.toggle("key", k === i);
      span.classList.toggle("hover-query", hover?.q === i);
      span.classList.toggle("hover-key", pointed === i);
      span.classList.toggle("hit", this.found(i));
    }
  }
}

function* tokensOf(block: HTMLElement): Generator<[number, HTMLElement]> {
  for (const span of block.children as HTMLCollectionOf<HTMLElement>)
    if (span.dataset.t !== undefined) yield [Number(span.dataset.t), span];
}
