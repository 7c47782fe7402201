// Two columns of tokens and lines between them, as wide and as dark as the weight. Short texts whole, long ones in part.

import { left, setAside } from "./aside";
import { onChange } from "./changes";
import { css, paper, show } from "./colors";
import type { Context } from "./context";
import { debounced, el, problem, retryButton, shortened, svg } from "./dom";
import { readingWords } from "./readings";
import type { OpenRun } from "./run";
import { topOf } from "./shading";
import { shift } from "./shift";
import { sentence } from "./source";

const WHOLE = 256;
const AROUND = 128;
const LINE = 22;
const TOP = 8;
const LEAST = 0.02;
const WIDE = 260;
const NARROW = 110;

export interface Line {
  q: number;
  k: number;
  weight: number;
  shade?: number; // how strong it is drawn: of what the first token leaves, where that is set aside
}

export class Links {
  readonly node: HTMLElement;
  private lines: SVGSVGElement = svg("svg", { class: "links-lines", "aria-hidden": "true" });
  private left = el("ol", { class: "links-column left", attrs: { "aria-label": "queries" } });
  private right = el("ol", { class: "links-column right", attrs: { "aria-label": "keys" } });
  private scroller: HTMLElement;
  private due = false; // whether what is pinned has to come into view
  private at: number | null = null; // where it was scrolled to, to show what is pinned
  private far = el("div", { class: "links-far" });
  private about = el("p", { class: "links-about" });
  // Where what is pinned lies, if that is farther than fits: a query, a key.
  private edges = [true, false].map((isQuery) => this.edge(isQuery));
  private found: Line[] = [];
  private first = 0;
  private stop = 0;
  private keyStop = 0;
  private asked = 0;
  private visible = false;
  private later = debounced(30, () => void this.load());

  constructor(private context: Context) {
    const frame = el("div", { class: "links-frame" }, this.left, this.lines, this.right);
    const heading = el(
      "div",
      { class: "links-frame links-heading", attrs: { "aria-hidden": "true" } },
      el("span", {}, "queries"),
      el("span", {}, "look at"),
      el("span", {}, "keys"),
    );
    this.scroller = el("div", { class: "links-scroll", attrs: { tabindex: 0, "aria-label": "links" } }, heading, frame);
    const body = el("div", { class: "links-body" }, this.scroller, ...this.edges);
    this.node = el("div", { class: "links" }, this.about, this.far, body);
    this.scroller.addEventListener("scroll", () => this.point(), { passive: true });
    for (const [column, isQuery] of [
      [this.left, true],
      [this.right, false],
    ] as const) {
      column.addEventListener("pointerover", (event) => {
        const i = place(event);
        if (event.pointerType !== "touch")
          this.context.point(
            i === null
              ? null
              : isQuery
                ? { q: i, k: null, cells: null, from: "links" }
                : { q: null, k: i, cells: null, from: "links" },
          );
      });
      column.addEventListener("pointerleave", () => this.context.point(null));
      column.addEventListener("click", (event) => {
        const i = place(event);
        if (i === null) return;
        if (isQuery && !event.altKey) this.context.pin(i, null, event.shiftKey);
        else this.context.pinKey(i);
      });
    }
    onChange(context.run, (run, before) => {
      this.due ||= run?.id !== before?.id;
      this.later();
    });
    onChange(context.tokens, () => this.later());
    onChange(context.again, () => this.later());
    context.store.on(["layer", "head", "run", "aside"], () => this.later());
    onChange(context.portraits, () => this.later());
    context.store.on(["q"], () => {
      this.due = true;
      this.later();
    });
    context.store.on(["k"], (state, before) => {
      this.mark();
      if (state.q === before.q) this.reveal(true);
    });
    new ResizeObserver(() => {
      if (this.kept) this.reveal();
      this.point();
    }).observe(this.scroller);
    onChange(context.hover, () => this.mark());
    onChange(context.dark, () => this.mark());
  }

  show(visible: boolean): void {
    this.visible = this.due = visible;
    if (visible) void this.load();
  }

  // The same as a drawing of its own: it has no sheet, so that every colour stands in it.
  drawing(): SVGSVGElement {
    const run = this.context.run.value!;
    const dark = this.context.dark.value;
    const [width, height] = [WIDE + 320, (Math.max(this.stop - this.first, this.keyStop - this.first) + 3) * LINE];
    const size = { viewBox: `0 0 ${width} ${height}`, width, height };
    const lines = svg("g", { transform: `translate(160 ${1.5 * LINE})` });
    for (const shown of this.lines.children as HTMLCollectionOf<SVGPathElement>) {
      const line = this.path(this.found[Number(shown.dataset.i)], WIDE);
      const { stroke, strokeOpacity } = getComputedStyle(shown);
      line.removeAttribute("style");
      line.setAttribute("stroke-opacity", strokeOpacity); // what is set aside stays so
      line.setAttribute("stroke", stroke);
      lines.append(line);
    }
    const ink = { "font-family": "sans-serif", "font-size": 13, fill: dark ? "#eee" : "#222" };
    const keys = run.keyTokens(this.context.state.layer);
    const text = (i: number, x: number, anchor: string, label: string) =>
      svg("text", { x, y: (i - this.first + 2.18) * LINE, "text-anchor": anchor, ...ink }, label);
    return svg(
      "svg",
      { xmlns: "http://www.w3.org/2000/svg", ...size },
      svg("rect", { width, height, fill: css(paper(dark)) }),
      lines,
      svg("text", { x: 150, y: LINE, "text-anchor": "end", ...ink, "font-weight": "bold" }, "queries"),
      svg("text", { x: WIDE + 170, y: LINE, "text-anchor": "start", ...ink, "font-weight": "bold" }, "keys"),
      ...range(this.first, this.stop).map((i) => text(i, 150, "end", run.tokens.label(i))),
      ...range(this.first, this.keyStop).map((i) => text(i, WIDE + 170, "start", keys.label(i))),
      svg("text", { x: 12, y: height - LINE / 2, ...ink, "font-size": 11 }, this.caption(run)),
    );
  }

  private caption(run: OpenRun): string {
    const { layer, head } = this.context.state;
    const read = run.reading ? `, ${readingWords(run)}` : "";
    return `${run.info.model ?? ""} ${run.name(layer, head)}${read}: ${shortened(run.info.title, 60)}`;
  }

  private async load(): Promise<void> {
    const run = this.context.run.value;
    const { layer, head, q } = this.context.state;
    if (!run || !this.visible || layer >= run.info.layers.length) return;
    const info = run.layer(layer);
    const whole = info.queries <= WHOLE && info.keys <= WHOLE;
    const middle = q.length ? q[q.length - 1] : 0;
    this.first = whole ? 0 : Math.max(0, Math.min(middle - AROUND / 2, info.queries - AROUND));
    this.stop = whole ? info.queries : Math.min(this.first + AROUND, info.queries);
    this.keyStop = whole ? info.keys : Math.min(this.first + AROUND, info.keys);
    const least = run.reading ? show(LEAST * run.reading.most) : LEAST;
    const sign = run.reading?.signed ? ": orange raises it, blue lowers it" : "";
    const signed = run.reading ? `, ${readingWords(run)}${sign}` : "";
    this.about.textContent = whole
      ? `the ${TOP} strongest keys of every query, from ${least} up${signed}`
      : `tokens ${this.first.toLocaleString("en")} to ${(this.stop - 1).toLocaleString("en")} of ${info.queries.toLocaleString("en")}, around the pinned query; farther keys as chips`;
    const sink = this.context.state.aside ? setAside(run, layer, head) : 0;
    if (sink)
      this.about.append(`; the first token, ${Math.round(100 * sink)}\u00a0%, is set aside: lines show the rest`);
    const now = ++this.asked;
    const floor = run.source.floor?.(layer, head, run.asked) ?? info.floor;
    if (!floor || floor[0] || floor[1]) {
      this.about.textContent = this.context.source.live
        ? "q and k were not kept: watch with keep_qk=True to see links of a long text."
        : "This report does not hold the links of this head: open the run in sightline serve.";
      this.found = [];
      this.stop = this.keyStop = this.first;
      this.columns();
      this.draw();
      return;
    }
    this.columns();
    if (this.due) {
      this.reveal();
      this.due ||= !whole; // chips above them may yet move them
    }
    try {
      // Rows of one tile, or of those that hold this part of the map.
      const lines: Line[] = [];
      const tile = async (y: number, x: number) => {
        const ref = { run: run.asked, rev: run.rev, layer, head, lq: 0, lk: 0, y, x, pool: "mean" as const };
        const { values } = this.context.loader.get(ref) ?? (await run.source.tile(ref, new AbortController().signal));
        return values;
      };
      for (let y = Math.floor(this.first / 256); y * 256 < this.stop; y++)
        for (let x = Math.floor(this.first / 256); x * 256 < this.keyStop; x++) {
          const values = await tile(y, x);
          const firsts = sink && x ? await tile(y, 0) : values;
          if (now !== this.asked) return;
          if (!values) continue;
          for (let i = Math.max(this.first, y * 256); i < Math.min(this.stop, (y + 1) * 256); i++) {
            const row = values.subarray((i - y * 256) * 256, (i - y * 256 + 1) * 256);
            const rest = sink ? left(firsts?.[(i - y * 256) * 256] ?? 0) : 1;
            for (const j of topOf(row, TOP + 1)) {
              const [k, shade] = [x * 256 + j, Math.abs(row[j]) / (run.reading?.most ?? rest)];
              if (shade >= LEAST && k >= this.first && k < this.keyStop && !(sink && k === 0))
                lines.push({ q: i, k, weight: row[j], shade });
            }
          }
        }
      this.found = strongest(lines);
      this.draw();
      await this.drawFar(whole, now);
      if (now === this.asked && this.kept) this.reveal();
    } catch (error) {
      if (now !== this.asked) return;
      // Neither lines nor chips of what was shown before.
      this.found = [];
      this.far.replaceChildren();
      this.draw();
      this.about.replaceChildren(problem(sentence(error)));
      if (this.context.curable(error))
        this.about.append(
          " ",
          retryButton(() => this.context.retry()),
        );
    }
  }

  private columns(): void {
    const run = this.context.run.value!;
    const keys = run.keyTokens(this.context.state.layer);
    const item = (i: number, tokens: typeof keys) => el("li", { attrs: { "data-t": i } }, tokens.element(i, 18));
    this.scroller.classList.toggle("none", this.stop <= this.first); // no headings over nothing
    this.left.replaceChildren(...range(this.first, this.stop).map((i) => item(i, run.tokens)));
    this.right.replaceChildren(...range(this.first, this.keyStop).map((i) => item(i, keys)));
    this.mark();
  }

  // Whether what is pinned is to be brought into view: it was not yet, or nobody has scrolled since.
  private get kept(): boolean {
    return this.due || this.at === this.scroller.scrollTop;
  }

  // The pinned query, or the key; both where there is room.
  private reveal(key = false): void {
    if (!this.visible || !this.scroller.clientHeight) return;
    const { q, k } = this.context.state;
    const box = (column: HTMLElement, i: number | null | undefined) =>
      column.querySelector(`[data-t="${i}"]`)?.getBoundingClientRect() ?? null;
    const pins = [box(this.left, q.at(-1)), box(this.right, k)].filter((pin) => pin !== null);
    if (key) pins.reverse();
    if (pins.length) this.scroller.scrollTop += shift(this.scroller.getBoundingClientRect(), pins[0], pins[1]);
    this.due = false;
    this.at = key ? null : this.scroller.scrollTop;
    this.point();
  }

  private edge(isQuery: boolean): HTMLButtonElement {
    const click = () => this.reveal(!isQuery);
    return el("button", {
      class: `chip-button links-edge ${isQuery ? "left" : "right"}`,
      attrs: { type: "button", hidden: true },
      on: { click },
    });
  }

  // At the edge beyond which a pinned query or key lies, its name.
  private point(): void {
    const run = this.context.run.value;
    const { q, k, layer } = this.context.state;
    if (!run || !this.visible || layer >= run.info.layers.length) return;
    const frame = this.scroller.getBoundingClientRect();
    this.edges.forEach((edge, i) => {
      const token = i ? k : (q.at(-1) ?? null);
      const row = token === null ? null : (i ? this.right : this.left).querySelector(`[data-t="${token}"]`);
      const box = row?.getBoundingClientRect();
      const above = box !== undefined && box.bottom < frame.top + LINE;
      const below = box !== undefined && box.top > frame.bottom;
      edge.hidden = !above && !below;
      if (edge.hidden) return;
      edge.classList.toggle("above", above);
      edge.replaceChildren(above ? "↑ " : "↓ ", ...(i ? run.keyTokens(layer) : run.tokens).placed(token!));
    });
  }

  private draw(): void {
    const height = Math.max(this.stop - this.first, this.keyStop - this.first) * LINE;
    const wide = this.node.clientWidth < 600 ? NARROW : WIDE;
    this.lines.setAttribute("width", String(wide));
    this.lines.setAttribute("height", String(height));
    this.lines.replaceChildren(...this.found.map((line, i) => this.path(line, wide, i)));
    this.mark();
  }

  private path({ q, k, weight, shade = weight }: Line, wide: number, i: number | null = null): SVGPathElement {
    const [a, b] = [(q - this.first + 0.5) * LINE, (k - this.first + 0.5) * LINE];
    const path = svg("path", {
      d: `M0 ${a}C${wide / 2} ${a} ${wide / 2} ${b} ${wide} ${b}`,
      fill: "none",
      "stroke-width": (0.6 + 3.4 * shade).toFixed(2),
      "stroke-opacity": Math.min(1, shade).toFixed(3),
      ...(i === null ? {} : { "data-i": i, "data-q": q, "data-k": k }),
    });
    path.style.setProperty("--shade", Math.min(1, shade).toFixed(3));
    path.append(svg("title", {}, show(weight)));
    if (this.context.run.value?.reading?.signed) path.classList.add(weight < 0 ? "lowers" : "raises");
    return path;
  }

  // Keys of the pinned query that are not on the screen.
  private async drawFar(whole: boolean, now: number): Promise<void> {
    this.far.replaceChildren();
    const run = this.context.run.value!;
    const { layer, head, q } = this.context.state;
    if (whole || !q.length) return;
    const row = await run.row(layer, head, q);
    if (now !== this.asked) return;
    const keys = run.keyTokens(layer);
    const chips = topOf(row, 24)
      .filter((k) => row[k] >= LEAST && (k < this.first || k >= this.keyStop))
      .map((k) =>
        el(
          "button",
          {
            class: "chip-button far",
            attrs: { type: "button" },
            on: {
              click: () => this.context.pinKey(k),
              pointerenter: () => this.context.point({ q: null, k, cells: null, from: "links" }),
              pointerleave: () => this.context.point(null),
            },
          },
          keys.element(k),
          el("span", { class: "position" }, ` @ ${k.toLocaleString("en")}`),
          el("b", {}, ` ${show(row[k])}`),
        ),
      );
    this.far.replaceChildren(...chips);
  }

  private mark(): void {
    const { q, k } = this.context.state;
    const hover = this.context.hover.value;
    const queries =
      hover?.q !== null && hover?.q !== undefined ? [hover.q] : hover?.k !== null && hover?.k !== undefined ? [] : q;
    const key = hover?.k ?? (hover?.q !== null && hover?.q !== undefined ? null : queries.length ? null : k);
    for (const item of this.left.children as HTMLCollectionOf<HTMLElement>) {
      item.classList.toggle("on", queries.includes(Number(item.dataset.t)));
      item.classList.toggle("pinned", q.includes(Number(item.dataset.t)));
    }
    for (const item of this.right.children as HTMLCollectionOf<HTMLElement>) {
      item.classList.toggle("on", key === Number(item.dataset.t));
      item.classList.toggle("pinned", k === Number(item.dataset.t));
    }
    const any = queries.length > 0 || key !== null;
    this.lines.classList.toggle("isolated", any);
    for (const line of this.lines.children as HTMLCollectionOf<SVGPathElement>) {
      const on = queries.length ? queries.includes(Number(line.dataset.q)) : key === Number(line.dataset.k);
      line.classList.toggle("on", any && on);
    }
  }
}

// Per query at most eight, whichever tiles they came from.
export function strongest(lines: Line[]): Line[] {
  const by = new Map<number, Line[]>();
  for (const line of lines) by.set(line.q, [...(by.get(line.q) ?? []), line]);
  return [...by.values()].flatMap((list) => list.sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight)).slice(0, TOP));
}

function place(event: Event): number | null {
  const item = (event.target as HTMLElement).closest<HTMLElement>("[data-t]");
  return item ? Number(item.dataset.t) : null;
}

function range(first: number, stop: number): number[] {
  return Array.from({ length: Math.max(0, stop - first) }, (_, i) => first + i);
}
