// The wall: all heads on one screen, by layer or by a measure; filtered, several chosen and compared.

import { onChange } from "./changes";
import { thumbTable } from "./colors";
import type { Context } from "./context";
import { el } from "./dom";
import { drawThumb } from "./heads";
import { said, written } from "./measures";
import { type OpenRun, THUMB } from "./run";
import { fitWall } from "./wallfit";

const MOST = 12; // chosen heads that are shown large beside each other

interface Place {
  layer: number;
  head: number;
}

export class Wall {
  readonly node: HTMLElement;
  private measure = el("select", { attrs: { "aria-label": "measure" } });
  private low = slider("at least");
  private high = slider("at most");
  private order = el(
    "select",
    { attrs: { "aria-label": "order" } },
    el("option", { attrs: { value: "layer" } }, "by layer"),
    el("option", { attrs: { value: "down" } }, "highest first"),
    el("option", { attrs: { value: "up" } }, "lowest first"),
  );
  private count = el("span", { class: "wall-count", attrs: { role: "status" } });
  private clear = el("button", { class: "button quiet", attrs: { type: "button" } }, "Clear");
  private compare = el("button", { class: "button", attrs: { type: "button" } }, "Compare");
  private board = el("div", {
    class: "wall-board",
    attrs: { role: "listbox", "aria-multiselectable": "true", "aria-label": "all heads", tabindex: 0 },
  });
  private large = el("section", { class: "wall-large", attrs: { hidden: true, "aria-label": "chosen heads" } });
  private chosen = new Set<string>();
  private listed: Place[] = [];
  private cursor = 0;
  private visible = false;
  private of: OpenRun | null = null;

  constructor(private context: Context) {
    this.node = el(
      "div",
      { class: "wall" },
      el(
        "div",
        { class: "wall-bar" },
        this.measure,
        el("label", {}, "from ", this.low),
        el("label", {}, "to ", this.high),
        this.order,
        this.count,
        el("span", { class: "spring" }),
        this.clear,
        this.compare,
      ),
      this.large,
      this.board,
    );
    this.measure.addEventListener("change", () => {
      this.range();
      this.draw();
    });
    for (const one of [this.low, this.high]) one.addEventListener("input", () => this.filter());
    this.order.addEventListener("change", () => this.draw());
    this.clear.addEventListener("click", () => {
      this.chosen.clear();
      this.large.hidden = true;
      this.draw();
    });
    this.compare.addEventListener("click", () => this.beside());
    this.board.addEventListener("click", (event) => this.act(event));
    this.board.addEventListener("keydown", (event) => this.key(event));
    for (const name of ["focus", "blur"] as const) this.board.addEventListener(name, () => this.mark());
    onChange(context.run, () => this.draw());
    onChange(context.portraits, () => this.offer());
    onChange(context.dark, () => this.draw());
    context.store.on(["map", "scale", "lo", "hi", "of", "aside"], () => this.draw());
    context.store.on(["layer", "head"], () => this.mark());
    new ResizeObserver(() => this.size()).observe(this.board);
  }

  show(visible: boolean): void {
    this.visible = visible;
    if (!visible) return;
    this.offer();
    if (document.activeElement === document.body) this.board.focus({ preventScroll: true });
  }

  private offer(): void {
    const run = this.context.run.value;
    if (!run || !this.visible) return;
    const now = this.measure.value;
    this.measure.replaceChildren(
      ...run.measures.map((one) => el("option", { title: said(one), attrs: { value: one.name } }, one.label)),
    );
    const read = run.reading && this.of?.asked !== run.asked ? run.info.of : now;
    if (run.measures.some(({ name }) => name === read)) this.measure.value = read;
    if (this.of?.asked !== run.asked || now !== this.measure.value) this.range();
    this.draw();
  }

  private value(run: OpenRun, { layer, head }: Place): number | null {
    return run.measure(layer, head, this.measure.value);
  }

  // The sliders go over what there is.
  private range(): void {
    const run = this.context.run.value;
    if (!run) return;
    this.of = run;
    const values = this.all(run)
      .map((place) => this.value(run, place))
      .filter((x) => x !== null);
    const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
    const step = Number(((high - low) / 200 || 0.01).toPrecision(1));
    for (const one of [this.low, this.high]) {
      one.min = String(Math.floor(low / step) * step);
      one.max = String(Math.ceil(high / step) * step);
      one.step = String(step);
    }
    this.low.value = this.low.min;
    this.high.value = this.high.max;
  }

  private all(run: OpenRun): Place[] {
    return run.info.layers.flatMap((layer) => layer.numbers.map((_, head) => ({ layer: layer.index, head })));
  }

  private draw(): void {
    const run = this.context.run.value;
    if (!this.visible || !run) return;
    const byLayer = this.order.value === "layer";
    this.listed = this.all(run);
    if (!byLayer) {
      const sign = this.order.value === "down" ? -1 : 1;
      const value = (place: Place) => this.value(run, place) ?? -sign * Infinity;
      this.listed.sort((a, b) => sign * (value(a) - value(b)) || a.layer - b.layer || a.head - b.head);
    }
    // Arrows begin at the head that is open.
    const { layer, head } = this.context.state;
    if (document.activeElement !== this.board)
      this.cursor = Math.max(
        0,
        this.listed.findIndex((place) => place.layer === layer && place.head === head),
      );
    const table = thumbTable(this.context.scale());
    const cells = this.listed.map((place, i) => this.cell(run, place, i, table));
    if (byLayer)
      this.board.replaceChildren(
        ...run.info.layers.map((layer) =>
          el(
            "div",
            { class: "wall-layer", attrs: { role: "presentation" } },
            el("span", { class: "layer-name", title: layer.name }, `${layer.number}${layer.cross ? "×" : ""}`),
            ...cells.filter((_, i) => this.listed[i].layer === layer.index),
          ),
        ),
      );
    else this.board.replaceChildren(...cells);
    this.board.classList.toggle("by-layer", byLayer);
    this.size();
    this.filter();
    this.mark();
  }

  private cell(run: OpenRun, place: Place, i: number, table: Uint32Array): HTMLElement {
    const { layer, head } = place;
    const canvas = el("canvas", { class: "thumb", attrs: { width: THUMB, height: THUMB, "aria-hidden": "true" } });
    drawThumb(canvas, run, layer, head, table, this.context.state.aside);
    const value = this.value(run, place);
    const measure = run.measures.find(({ name }) => name === this.measure.value);
    const name = `${run.name(layer, head)}${value === null || !measure ? "" : `, ${measure.label} ${written(measure, value)}`}`;
    return el(
      "div",
      {
        class: "wall-head",
        title: name,
        attrs: { role: "option", "data-i": i, id: `wall-${layer}-${head}`, "aria-label": name },
      },
      canvas,
      el("span", { class: "wall-name", attrs: { "aria-hidden": "true" } }, run.short(layer, head).replace(" ", "")),
    );
  }

  // As large as all of them fit.
  private size(): void {
    const run = this.context.run.value;
    if (!this.visible || !run || !this.board.clientWidth) return;
    const heads = Math.max(...run.info.layers.map((layer) => layer.heads));
    const fit = fitWall({
      width: this.board.clientWidth,
      height: this.board.clientHeight,
      layers: run.info.layers.length,
      heads,
      byLayer: this.order.value === "layer",
    });
    this.board.style.setProperty("--side", `${fit.side}px`);
    this.board.style.setProperty("--columns", String(fit.columns));
    this.board.classList.toggle("named", fit.side >= 40);
  }

  private filter(): void {
    const run = this.context.run.value;
    if (!run) return;
    const [low, high] = [Number(this.low.value), Number(this.high.value)];
    const open = low <= Number(this.low.min) && high >= Number(this.high.max);
    let count = 0;
    for (const cell of this.board.querySelectorAll<HTMLElement>(".wall-head")) {
      const value = this.value(run, this.listed[Number(cell.dataset.i)]);
      const inside = open || (value !== null && value >= low && value <= high);
      cell.classList.toggle("out", !inside);
      if (inside) count++;
    }
    const measure = run.measures.find(({ name }) => name === this.measure.value);
    const bounds = open || !measure ? "" : `, ${measure.label} ${written(measure, low)} to ${written(measure, high)}`;
    this.count.textContent = `${count.toLocaleString("en")} of ${this.listed.length.toLocaleString("en")} heads${bounds}`;
  }

  private mark(): void {
    const { layer, head } = this.context.state;
    const focused = document.activeElement === this.board;
    for (const cell of this.board.querySelectorAll<HTMLElement>(".wall-head")) {
      const i = Number(cell.dataset.i);
      const place = this.listed[i];
      cell.classList.toggle("open", place.layer === layer && place.head === head);
      cell.setAttribute("aria-selected", String(this.chosen.has(key(place))));
      cell.classList.toggle("cursor", focused && i === this.cursor);
      if (i === this.cursor) this.board.setAttribute("aria-activedescendant", cell.id);
    }
    const { size } = this.chosen;
    this.compare.disabled = size < 2;
    this.compare.textContent = size < 2 ? "Compare (choose two)" : `Compare ${size}`;
    this.clear.hidden = size === 0;
  }

  private act(event: MouseEvent): void {
    const cell = (event.target as HTMLElement).closest<HTMLElement>(".wall-head");
    if (!cell) return;
    this.cursor = Number(cell.dataset.i);
    if (event.ctrlKey || event.metaKey || event.shiftKey) this.choose();
    else this.open();
  }

  private choose(): void {
    const name = key(this.listed[this.cursor]);
    if (!this.chosen.delete(name)) this.chosen.add(name);
    this.mark();
  }

  private open(): void {
    const { layer, head } = this.listed[this.cursor];
    this.context.store.push({ layer, head, view: "map" });
  }

  // Two go to Compare; more are shown large, here.
  private beside(): void {
    const run = this.context.run.value;
    const places = this.listed.filter((place) => this.chosen.has(key(place)));
    if (!run || places.length < 2) return;
    if (places.length === 2) {
      const [a, b] = places;
      this.context.store.push({ ...a, other: { run: run.id, ...b }, view: "compare" });
      return;
    }
    const table = thumbTable(this.context.scale());
    this.large.hidden = false;
    this.large.replaceChildren(
      ...places.slice(0, MOST).map(({ layer, head }) => {
        const canvas = el("canvas", { class: "thumb", attrs: { width: THUMB, height: THUMB, "aria-hidden": "true" } });
        drawThumb(canvas, run, layer, head, table, this.context.state.aside);
        const lines = run.measures.slice(0, 4).map((one) => {
          const value = run.measure(layer, head, one.name);
          return value === null ? "" : el("span", {}, `${one.label} ${written(one, value)}`);
        });
        const open = () => this.context.store.push({ layer, head, view: "map" });
        return el(
          "button",
          { class: "wall-one", attrs: { type: "button" }, on: { click: open } },
          canvas,
          el("strong", {}, run.name(layer, head)),
          ...lines,
        );
      }),
    );
    this.large.scrollIntoView({ block: "nearest" });
    this.size();
  }

  private key(event: KeyboardEvent): void {
    const cells = [...this.board.querySelectorAll<HTMLElement>(".wall-head")];
    const box = cells[this.cursor]?.getBoundingClientRect();
    if (event.key === " ") this.choose();
    else if (event.key === "Enter") this.open();
    else if (event.key === "ArrowRight" || event.key === "ArrowLeft")
      this.cursor = Math.min(Math.max(this.cursor + (event.key === "ArrowRight" ? 1 : -1), 0), cells.length - 1);
    else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && box) {
      // The nearest one in the next row of the screen.
      const by = event.key === "ArrowDown" ? 1 : -1;
      let [best, near] = [this.cursor, Infinity];
      cells.forEach((cell, i) => {
        const other = cell.getBoundingClientRect();
        const down = by * (other.top - box.top);
        const far = down * 4 + Math.abs(other.left - box.left);
        if (down > box.height / 2 && far < near) [best, near] = [i, far];
      });
      this.cursor = best;
    } else return;
    this.mark();
    cells[this.cursor]?.scrollIntoView({ block: "nearest" });
    event.preventDefault();
    event.stopPropagation();
  }
}

function slider(name: string): HTMLInputElement {
  return el("input", { attrs: { type: "range", "aria-label": name } });
}

function key({ layer, head }: Place): string {
  return `${layer}/${head}`;
}
