// The Heads rail: every head as a thumbnail, ranked; the portrait of the one that is open, and those like it.

import { setAside, withoutFirst } from "./aside";
import { onChange } from "./changes";
import { css, rampColor, thumbTable, thumbWeight } from "./colors";
import type { Context } from "./context";
import { el } from "./dom";
import { extra, filled, said, written } from "./measures";
import { type OpenRun, THUMB } from "./run";
import { shift } from "./shift";
import type { Measure } from "./source";
import { summary } from "./summary";

// "interest", "layer", or the name of a measure.
type Order = string;

const CHIPS: { order: Order; name: string; title: string }[] = [
  {
    order: "interest",
    name: "Interesting",
    title: "focus, not on the first token nor nearby; first, the link that stands out",
  },
  { order: "focus", name: "Focused", title: "how few keys it looks at, of those it sees: low entropy" },
  { order: "previous", name: "Previous", title: "how much goes to the token before" },
  { order: "first", name: "Sink", title: "how much goes to the first token" },
  { order: "induction", name: "Induction", title: "how much goes to what followed this token the last time" },
  { order: "layer", name: "By layer", title: "all heads in a grid, layer by layer" },
];

const LARGE = 40;

export class Heads {
  readonly node: HTMLElement;
  private chips = el("div", { class: "chips", attrs: { role: "radiogroup", "aria-label": "rank heads by" } });
  private about = el("p", { class: "fine" });
  private grid = el("div", { class: "heads-grid", attrs: { role: "listbox", "aria-label": "heads", tabindex: 0 } });
  private portrait = el("section", { class: "portrait", attrs: { "aria-label": "portrait of the open head" } });
  private preview = el("div", { class: "preview", attrs: { hidden: true, "aria-hidden": "true" } });
  private order: Order = "interest";
  private listed: [number, number][] = [];
  private cursor = 0;
  private unseen = false; // the open head is yet to be brought into view
  private ranked = ""; // the run of which it was
  private explained = new Set<string>(); // measures whose meaning is shown

  constructor(private context: Context) {
    this.node = el(
      "section",
      { class: "heads", attrs: { "aria-label": "Heads", id: "heads" } },
      el("h2", { class: "visually-hidden" }, "Heads"),
      this.chips,
      this.about,
      this.grid,
      this.portrait,
      this.preview,
    );
    for (const { order, name, title } of CHIPS) this.chips.append(this.chip(order, name, title));
    this.grid.addEventListener("click", (event) => this.act(event));
    this.grid.addEventListener("pointerover", (event) => this.showPreview(event));
    this.grid.addEventListener("pointerleave", () => (this.preview.hidden = true));
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.grid.addEventListener("focus", () => this.mark());
    onChange(context.run, (run) => {
      this.unseen ||= run !== null && ranking(run) !== this.ranked;
      this.offer();
      this.draw();
    });
    onChange(context.portraits, () => {
      this.offer();
      this.draw();
    });
    onChange(context.dark, () => this.draw());
    context.store.on(["map", "scale", "lo", "hi", "aside"], () => this.draw());
    context.store.on(["layer", "head"], () => {
      this.mark();
      if (!this.grid.matches(":hover")) this.reveal(); // nothing moves away from the pointer
      this.drawPortrait();
    });
    // A rail that is unfolded, or shown at last, is another list.
    let wide = 0;
    new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width !== wide) this.reveal();
      wide = contentRect.width;
    }).observe(this.grid);
    onChange(context.link, () => this.drawPortrait());
    onChange(context.tokens, () => this.drawPortrait());
    this.rank("interest");
  }

  private chip(order: Order, name: string, title: string): HTMLElement {
    const chip = el(
      "button",
      { class: "chip-button", title, attrs: { type: "button", role: "radio", "data-order": order } },
      name,
    );
    chip.addEventListener("click", () => this.rank(order));
    return chip;
  }

  // Chips for statistics that this run has beside the usual ones.
  private offer(): void {
    const more = extra(this.context.run.value?.measures ?? []);
    const chips = [...this.chips.children].slice(0, CHIPS.length);
    chips.push(...more.map((one) => this.chip(one.name, one.label[0].toUpperCase() + one.label.slice(1), said(one))));
    this.chips.replaceChildren(...chips);
    const gone = !chips.some((chip) => (chip as HTMLElement).dataset.order === this.order);
    this.check(gone ? "interest" : this.order);
  }

  rank(order: Order): void {
    this.unseen = order === "layer"; // a ranking is read from its top; there one looks for a place
    this.check(order);
    this.draw();
  }

  private check(order: Order): void {
    this.order = order;
    for (const chip of this.chips.children) {
      const on = (chip as HTMLElement).dataset.order === order;
      chip.setAttribute("aria-checked", String(on));
      (chip as HTMLElement).tabIndex = on ? 0 : -1;
      if (on) this.about.textContent = (chip as HTMLElement).title;
    }
  }

  focus(): void {
    this.grid.focus();
  }

  private score(run: OpenRun, layer: number, head: number): number | null {
    if (this.order === "layer") return null;
    const value = run.measure(layer, head, this.order);
    // Of a reading with a sign the size counts, whichever way it goes.
    return value !== null && this.order === "influence" ? Math.abs(value) : value;
  }

  private draw(): void {
    const run = this.context.run.value;
    if (!run) return;
    const all = run.info.layers.flatMap((layer) =>
      layer.numbers.map((_, head) => [layer.index, head] as [number, number]),
    );
    if (this.order === "layer") this.listed = all;
    else {
      const scores = new Map(all.map(([l, h]) => [`${l}/${h}`, this.score(run, l, h) ?? -Infinity]));
      // The head that opens first stands first: its link stands out most of the interesting ones.
      const first = this.order === "interest" ? run.portraits?.first : undefined;
      if (first) scores.set(`${first[0]}/${first[1]}`, Infinity);
      this.listed = [...all].sort((a, b) => scores.get(`${b[0]}/${b[1]}`)! - scores.get(`${a[0]}/${a[1]}`)! || 0);
    }
    const byLayer = this.order === "layer";
    const heads = Math.max(...run.info.layers.map((layer) => layer.heads));
    const room = (this.grid.clientWidth || 260) - 34;
    const small = byLayer && room / heads < LARGE;
    this.grid.classList.toggle("by-layer", byLayer);
    this.grid.classList.toggle("small", small);
    if (byLayer) this.about.textContent = `all heads in a grid, layer by layer${small ? "; the colour is focus" : ""}`;
    const table = thumbTable(this.context.scale());
    const rows: HTMLElement[] = [];
    const cells = this.listed.map(([layer, head], i) => this.cell(run, layer, head, i, table, small));
    if (byLayer) {
      for (const layer of run.info.layers) {
        const row = el(
          "div",
          { class: "layer-row", attrs: { role: "presentation" } },
          el("span", { class: "layer-name", title: layer.name }, `${layer.number}${layer.cross ? "×" : ""}`),
        );
        row.append(...cells.filter((_, i) => this.listed[i][0] === layer.index));
        rows.push(row);
      }
    } else rows.push(...cells);
    this.grid.replaceChildren(...rows);
    this.mark();
    this.drawPortrait();
    if (!this.unseen) return;
    this.reveal();
    this.unseen = !run.portraits && this.order !== "layer"; // they are ranked anew when that is known
    if (!this.unseen) this.ranked = ranking(run);
  }

  // The open head, in what scrolls: the grid, or on a phone all of the rail.
  private reveal(): void {
    const open = this.grid.querySelector("[aria-selected=true]");
    if (!open || !this.grid.clientHeight) return;
    const frame = this.grid.scrollHeight > this.grid.clientHeight ? this.grid : this.node;
    frame.scrollTop += shift(frame.getBoundingClientRect(), open.getBoundingClientRect());
  }

  private cell(run: OpenRun, layer: number, head: number, i: number, table: Uint32Array, small: boolean): HTMLElement {
    const score = this.score(run, layer, head);
    const label = `${run.name(layer, head)}${score === null ? "" : `, ${this.order === "interest" ? "interest" : this.order} ${score.toFixed(2)}`}`;
    const cell = el("div", {
      class: "head",
      attrs: { role: "option", "data-i": i, "aria-label": label, id: `head-${layer}-${head}` },
    });
    if (small) {
      const focus = run.measure(layer, head, "focus");
      const swatch = el("span", { class: "swatch" });
      swatch.style.background =
        focus === null ? "transparent" : css(rampColor(this.context.scale(), 0.15 + 0.8 * focus));
      cell.append(swatch);
    } else {
      const canvas = el("canvas", { class: "thumb", attrs: { width: THUMB, height: THUMB } });
      drawThumb(canvas, run, layer, head, table, this.context.state.aside);
      cell.append(
        canvas,
        el(
          "span",
          { class: "caption" },
          run.short(layer, head),
          score === null ? null : el("b", {}, this.figure(run, run.measure(layer, head, this.order) ?? score)),
        ),
      );
    }
    return cell;
  }

  // The score below a thumbnail: shares in short, other measures as the portrait has them.
  private figure(run: OpenRun, score: number): string {
    const measure = extra(run.measures).find(({ name }) => name === this.order);
    return measure ? written(measure, score) : score.toFixed(2).replace(/^0/, "");
  }

  private mark(): void {
    const { layer, head } = this.context.state;
    for (const cell of this.grid.querySelectorAll<HTMLElement>(".head")) {
      const [l, h] = this.listed[Number(cell.dataset.i)];
      const open = l === layer && h === head;
      cell.setAttribute("aria-selected", String(open));
      cell.classList.toggle("cursor", Number(cell.dataset.i) === this.cursor && document.activeElement === this.grid);
      if (Number(cell.dataset.i) === this.cursor) this.grid.setAttribute("aria-activedescendant", cell.id);
    }
  }

  private drawPortrait(): void {
    const run = this.context.run.value;
    const { layer, head } = this.context.state;
    if (!run || layer >= run.info.layers.length) return;
    const bars = run.measures
      .map((measure) => {
        const value = run.measure(layer, head, measure.name);
        if (value === null) return null;
        const bar = el("span", { class: "bar" });
        bar.style.width = `${100 * filled(measure, value)}%`;
        return el(
          "li",
          {},
          el("span", {}, measure.label, this.what(measure)),
          el("span", { class: "track" }, bar),
          el("b", {}, written(measure, value)),
          this.explained.has(measure.name) ? el("p", { class: "what-said" }, said(measure)) : null,
        );
      })
      .filter((x) => x !== null);
    const similar = (run.portraits?.similar[layer]?.[head] ?? []).map(([l, h, alike]) => {
      const canvas = el("canvas", { class: "thumb", attrs: { width: THUMB, height: THUMB } });
      drawThumb(canvas, run, l, h, thumbTable(this.context.scale()), this.context.state.aside);
      return el(
        "button",
        {
          class: "similar",
          title: `${run.name(l, h)}: ${Math.round(alike * 100)} % alike`,
          attrs: { type: "button" },
          on: { click: (event: MouseEvent) => this.choose(l, h, event) },
        },
        canvas,
        el("span", {}, run.short(l, h)),
      );
    });
    this.portrait.replaceChildren(
      el("h3", {}, run.name(layer, head)),
      el("p", { class: "summary" }, summary(run, layer, head, this.context.link.value)),
      el("ul", { class: "measures" }, ...bars),
      similar.length ? el("h4", {}, "Similar heads") : "",
      el("div", { class: "similars" }, ...similar),
    );
  }

  // What a measure means is a sentence in place, for keys and touch too.
  private what(measure: Measure): HTMLElement {
    const open = this.explained.has(measure.name);
    const title = `what is ${measure.label}?`;
    const button = el(
      "button",
      { class: "what", title, attrs: { type: "button", "aria-label": title, "aria-expanded": String(open) } },
      "?",
    );
    button.addEventListener("click", () => {
      if (open) this.explained.delete(measure.name);
      else this.explained.add(measure.name);
      this.drawPortrait();
      this.portrait.querySelector<HTMLElement>(`[aria-label="${title}"]`)?.focus();
    });
    return button;
  }

  private showPreview(event: PointerEvent): void {
    const cell = (event.target as HTMLElement).closest<HTMLElement>(".head");
    const run = this.context.run.value;
    if (!cell || !run || event.pointerType === "touch") {
      this.preview.hidden = true;
      return;
    }
    const [layer, head] = this.listed[Number(cell.dataset.i)];
    const canvas = el("canvas", { class: "thumb large", attrs: { width: THUMB, height: THUMB } });
    drawThumb(canvas, run, layer, head, thumbTable(this.context.scale()), this.context.state.aside);
    this.preview.replaceChildren(
      canvas,
      el("strong", {}, run.name(layer, head)),
      el("span", {}, summary(run, layer, head, null)),
    );
    this.preview.hidden = false;
    const box = cell.getBoundingClientRect();
    const around = this.node.getBoundingClientRect();
    this.preview.style.top = `${Math.min(Math.max(box.top - 40, 60), window.innerHeight - 330)}px`;
    this.preview.style.left = `${around.right + 8}px`;
  }

  private act(event: MouseEvent): void {
    const cell = (event.target as HTMLElement).closest<HTMLElement>(".head");
    if (!cell) return;
    this.cursor = Number(cell.dataset.i);
    const [layer, head] = this.listed[this.cursor];
    this.choose(layer, head, event);
  }

  private choose(layer: number, head: number, event: MouseEvent | KeyboardEvent): void {
    this.preview.hidden = true;
    if (event.ctrlKey || event.metaKey) this.context.compareWith(layer, head);
    else this.context.openHead(layer, head);
    this.node.dispatchEvent(new CustomEvent("chosen", { bubbles: true }));
  }

  private key(event: KeyboardEvent): void {
    const first = this.grid.querySelector<HTMLElement>(".head");
    const across = first ? Math.max(1, Math.round((this.grid.clientWidth - 8) / (first.offsetWidth + 6))) : 1;
    const heads = this.context.run.value?.layer(0).heads ?? 1;
    const down = this.order === "layer" ? heads : across;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: down, ArrowUp: -down }[event.key];
    if (step) {
      this.cursor = Math.min(Math.max(this.cursor + step, 0), this.listed.length - 1);
      this.mark();
      this.grid.querySelector(`[data-i="${this.cursor}"]`)?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter" && this.listed[this.cursor]) this.choose(...this.listed[this.cursor], event);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

// What heads are ranked by: another reading of a run is another ranking.
function ranking(run: OpenRun): string {
  return `${run.id} ${run.info.of}`;
}

export function drawThumb(
  canvas: HTMLCanvasElement,
  run: OpenRun,
  layer: number,
  head: number,
  table: Uint32Array,
  aside = false, // whether the first token is, where it takes much
): void {
  const [rows, columns] = run.thumbSize(layer);
  const whole = run.thumb(layer, head);
  const first = aside ? setAside(run, layer, head) : 0;
  const single = columns === run.thumbOf(layer).keys;
  const thumb = whole && first ? withoutFirst(whole, [rows, columns], THUMB, first, single, thumbWeight) : whole;
  canvas.width = columns;
  canvas.height = rows;
  // The hatch of what is masked ends with the map, where that is no square.
  const longer = Math.max(rows, columns);
  canvas.style.backgroundSize = `${(100 * columns) / longer}% ${(100 * rows) / longer}%`;
  if (!thumb) return;
  const image = new ImageData(columns, rows);
  // Of a run that grows some layers are not summarised yet: that is not to look as if all of them were masked.
  const known = !run.info.growing || thumb.some((code) => code > 0);
  canvas.classList.toggle("unknown", !known);
  if (!known) return;
  const pixels = new Uint32Array(image.data.buffer);
  for (let y = 0; y < rows; y++)
    for (let x = 0; x < columns; x++) pixels[y * columns + x] = table[thumb[y * THUMB + x]];
  canvas.getContext("2d")!.putImageData(image, 0, 0);
}
