// A zoomable map of one head, or of the difference of two: its parts, put together. One canvas shows it.

import { drawColumns, drawRows, type Marks } from "./axes";
import { Camera } from "./camera";
import type { Scale } from "./colors";
import { eachFrame, el, icon, retryButton } from "./dom";
import type { Cells, Grid } from "./grid";
import type { Loader } from "./loader";
import { MiniMap } from "./minimap";
import { drawOverlay } from "./overlay";
import { type HeadRef, Painter } from "./painter";
import { Pointer } from "./pointer";
import type { Pool } from "./source";
import type { Place } from "./state";
import { Strips } from "./strips";

export interface MapEvents {
  hover(cells: Cells | null, x: number, y: number, value: { value: number; estimate: boolean } | null): void;
  click(cells: Cells, event: MouseEvent | KeyboardEvent): void;
  moved(place: Place | null, step: boolean): void;
  retry(): void;
  sized?(): void;
}

export interface MapLook {
  heads: HeadRef[];
  scale: Scale;
  pool: Pool;
  diagonal: boolean;
  q: number[];
  k: number | null;
  changed?: { rows: Set<number>; columns: Set<number> }; // what the text beside this one does not have
  tiles: number; // how many of each head may be in view: all maps on the screen share what is kept
}

export class MapView {
  readonly node: HTMLElement;
  readonly surface: HTMLElement;
  readonly camera: Camera;
  private pointer: Pointer;
  private painter: Painter;
  private overlay = el("canvas", { class: "overlay", attrs: { "aria-hidden": "true" } });
  private rowBox = el("div", { class: "axis rows", attrs: { "aria-hidden": "true" } });
  private columnBox = el("div", { class: "axis columns", attrs: { "aria-hidden": "true" } });
  private badge = el("div", { class: "badge", attrs: { hidden: true } }, "refining");
  private failure = el("div", { class: "failure", attrs: { hidden: true, role: "alert" } });
  private strips = new Strips(() => this.redraw());
  private mini = new MiniMap((row, col) => this.camera.centre(row, col));
  private look: MapLook | null = null;
  private resting = false;
  private redraw = eachFrame(() => this.draw());
  private stop: () => void;

  constructor(
    private loader: Loader,
    private events: MapEvents,
    name: string,
  ) {
    const canvas = el("canvas", { class: "tiles", attrs: { "aria-hidden": "true" } });
    const leaflet = el("div", { class: "leaflet" });
    this.surface = el(
      "div",
      {
        class: "surface",
        attrs: { tabindex: 0, role: "application", "aria-label": name, "aria-roledescription": "attention map" },
      },
      canvas,
      leaflet,
      this.overlay,
      this.badge,
      this.failure,
    );
    this.painter = new Painter(canvas, loader);
    const zooms = el(
      "div",
      { class: "zooms" },
      button("plus", "zoom in (+)", () => this.zoomBy(1)),
      button("minus", "zoom out (−)", () => this.zoomBy(-1)),
      button("fit", "whole map (0)", () => this.camera.whole(true)),
    );
    this.node = el(
      "div",
      { class: "mapview" },
      el("div", { class: "corner" }, el("span", {}, "keys →"), el("span", {}, "queries ↓")),
      this.columnBox,
      this.strips.received,
      this.rowBox,
      this.strips.entropy,
      this.surface,
      zooms,
      this.mini.node,
    );
    this.camera = new Camera(leaflet, this.surface, {
      changed: () => {
        this.pointer.moved();
        this.redraw();
      },
      moved: (place, step) => events.moved(place, step),
      sized: () => events.sized?.(),
    });
    this.pointer = new Pointer(this.camera, this.surface, {
      hover: (cells, x, y) => events.hover(cells, x, y, cells && this.valueAt(cells)),
      click: (cells, event) => events.click(cells, event),
      changed: () => this.redraw(),
    });
    this.stop = loader.onArrival(() => this.redraw());
  }

  get grid(): Grid {
    return this.camera.grid;
  }

  destroy(): void {
    this.resting = true; // a frame that is still to come must want nothing
    this.stop();
    this.loader.forget(this);
    this.camera.destroy();
    this.node.remove();
  }

  show(look: MapLook): void {
    this.look = look;
    this.painter.setScale(look.scale);
    const head = look.heads[0];
    if (!head) return;
    const layer = head.run.layer(head.layer);
    this.camera.fitTo(layer.queries, layer.keys);
    const floors = look.heads.map(
      ({ run, layer, head }) => run.source.floor?.(layer, head, run.asked) ?? run.layer(layer).floor ?? [0, 0],
    );
    this.grid.most = look.tiles;
    this.grid.floor = [Math.max(...floors.map((f) => f[0])), Math.max(...floors.map((f) => f[1]))];
    this.strips.load(look.heads);
    this.redraw();
  }

  // While other maps are on the screen this one holds no tiles.
  rest(on: boolean): void {
    if (on === this.resting) return;
    this.resting = on;
    if (on) this.loader.forget(this);
    else this.redraw();
  }

  // What failed is tried again.
  again(): void {
    this.strips.again();
    this.redraw();
  }

  // Around what is pinned, if that is in view.
  zoomBy(steps: number): void {
    const { grid } = this;
    const [q, k] = [this.look?.q.at(-1), this.look?.k ?? undefined];
    const { q0, q1, k0, k1 } = grid.visible();
    const seen = q !== undefined && k !== undefined && q >= q0 && q < q1 && k >= k0 && k < k1;
    this.camera.zoomBy(steps, seen ? { x: grid.x(k) + grid.cw / 2, y: grid.y(q) + grid.ch / 2 } : null);
  }

  setPins(q: number[], k: number | null): void {
    if (this.look) this.look = { ...this.look, q, k };
    this.redraw();
  }

  // Another view points at something.
  setHover(cells: Cells | null): void {
    this.pointer.hovered = cells;
    this.redraw();
  }

  // The cell cursor of the keyboard.
  step(rows: number, columns: number): void {
    this.pointer.step(rows, columns, { q: this.look?.q[0] ?? 0, k: this.look?.k ?? 0 });
  }

  pinCursor(event: KeyboardEvent): void {
    this.pointer.pin(event);
  }

  // What is on the screen, to be exported.
  picture(): { canvas: HTMLCanvasElement; grid: Grid; look: MapLook } {
    return { canvas: this.painter.canvas, grid: this.grid, look: this.look! };
  }

  valueAt(cells: Cells): { value: number; estimate: boolean } | null {
    return this.look ? this.painter.value(this.grid, this.look.heads, this.look.pool, cells) : null;
  }

  private draw(): void {
    if (!this.look || !this.grid.width || this.resting) return;
    const { grid, look } = this;
    const { hovered } = this.pointer;
    const wanted = this.painter.draw(grid, look.heads, look.pool, this.pointer.at);
    this.loader.want(this, wanted, this.painter.shown.length);
    const head = look.heads[0];
    const marks: Marks = {
      rows: new Set(look.q),
      columns: new Set(look.k === null ? [] : [look.k]),
      hoverRow: hovered?.q0 ?? null,
      hoverColumn: hovered?.k0 ?? null,
      changed: look.changed,
    };
    drawRows(this.rowBox, grid, head.run.tokens, marks);
    drawColumns(this.columnBox, grid, head.run.keyTokens(head.layer), marks);
    this.strips.draw(grid, look.scale.dark);
    drawOverlay(this.overlay, grid, look, hovered, this.camera.isWhole);
    this.mini.draw(grid, head, look.scale, this.camera.isWhole);
    this.status();
  }

  private status(): void {
    const { failed, refining, waiting } = this.painter;
    const kind = waiting ? "waiting" : "estimate";
    const idle = !(refining || waiting) || failed !== null;
    // Asked first: to set what is already so costs the page a new style, with every frame.
    if (this.badge.hidden !== idle) this.badge.hidden = idle;
    if (this.badge.dataset.kind !== kind) this.badge.dataset.kind = kind;
    const title = refining
      ? "an estimate from a few rows; the exact picture is being computed"
      : "finer tiles are on their way";
    if (this.badge.title !== title) this.badge.title = title;
    if (failed === null && this.failure.hidden) return;
    if (failed !== null && this.failure.dataset.text !== failed) {
      this.failure.replaceChildren(
        el("span", {}, failed),
        retryButton(() => this.events.retry()),
      );
    }
    this.failure.dataset.text = failed ?? "";
    this.failure.hidden = failed === null;
  }
}

function button(name: string, title: string, click: () => void): HTMLButtonElement {
  return el(
    "button",
    { class: "icon-button", title, attrs: { type: "button", "aria-label": title }, on: { click } },
    icon(name),
  );
}
