// A zoomable map of one head, or of the difference of two: Leaflet moves it, one canvas shows it.

import L from "leaflet";
import { drawColumns, drawRows, drawStrip, type Marks, running } from "./axes";
import type { Scale } from "./colors";
import { clamp, eachFrame, el, icon } from "./dom";
import { type Cells, Grid, MAX_ZOOM, single } from "./grid";
import type { Loader } from "./loader";
import { MiniMap } from "./minimap";
import { drawOverlay } from "./overlay";
import { type HeadRef, Painter } from "./painter";
import { Later, type Pool } from "./source";
import type { Place } from "./state";

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
  tiles: number; // how many of each head may be in view: all maps on the screen share what is kept
}

const CRS = L.Util.extend({}, L.CRS.Simple, { transformation: new L.Transformation(1, 0, 1, 0) }) as L.CRS;
const NOTCH = 60;

export class MapView {
  readonly node: HTMLElement;
  readonly surface: HTMLElement;
  grid = new Grid(1, 1);
  private map: L.Map;
  private painter: Painter;
  private overlay: HTMLCanvasElement;
  private rowBox = el("div", { class: "axis rows", attrs: { "aria-hidden": "true" } });
  private columnBox = el("div", { class: "axis columns", attrs: { "aria-hidden": "true" } });
  private entropyStrip = el("canvas", {
    class: "strip entropy",
    attrs: { "aria-hidden": "true" },
    title: "entropy of each query",
  });
  private receivedStrip = el("canvas", {
    class: "strip received",
    attrs: { "aria-hidden": "true" },
    title: "received by each key",
  });
  private badge = el("div", { class: "badge", attrs: { hidden: true } }, "refining");
  private failure = el("div", { class: "failure", attrs: { hidden: true, role: "alert" } });
  private mini: MiniMap;
  private look: MapLook | null = null;
  private pointer: { x: number; y: number } | null = null;
  private hovered: Cells | null = null;
  private tapped: Cells | null = null;
  private tracks: { entropy: Float64Array; received: Float64Array; most: [number, number] } | null = null;
  private placing = false;
  private wholeShown = true;
  private resting = false;
  private wheel = 0;
  private redraw = eachFrame(() => this.draw());
  private rebox = new ResizeObserver(() => this.resized());
  private stop: () => void;

  constructor(
    private loader: Loader,
    private events: MapEvents,
    name: string,
  ) {
    const canvas = el("canvas", { class: "tiles", attrs: { "aria-hidden": "true" } });
    this.overlay = el("canvas", { class: "overlay", attrs: { "aria-hidden": "true" } });
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
    this.mini = new MiniMap((row, col) => this.centre(row, col));
    const zooms = el(
      "div",
      { class: "zooms" },
      button("plus", "zoom in (+)", () => this.zoomBy(1)),
      button("minus", "zoom out (−)", () => this.zoomBy(-1)),
      button("fit", "whole map (0)", () => this.whole(true)),
    );
    this.node = el(
      "div",
      { class: "mapview" },
      el("div", { class: "corner" }),
      this.columnBox,
      this.receivedStrip,
      this.rowBox,
      this.entropyStrip,
      this.surface,
      zooms,
      this.mini.node,
    );
    const touch = matchMedia("(pointer: coarse)").matches;
    this.map = L.map(leaflet, {
      crs: CRS,
      center: [0, 0],
      zoom: 0,
      minZoom: -20,
      maxZoom: MAX_ZOOM,
      zoomSnap: 0,
      zoomControl: false,
      attributionControl: false,
      keyboard: false,
      scrollWheelZoom: false,
      doubleClickZoom: false,
      boxZoom: false,
      // One finger scrolls the page, two move the map.
      dragging: !touch,
      touchZoom: true,
      zoomAnimation: false,
      fadeAnimation: false,
      markerZoomAnimation: false,
      trackResize: false,
      inertia: !matchMedia("(prefers-reduced-motion: reduce)").matches,
      maxBoundsViscosity: 1,
    });
    this.map.on("move", () => this.moved());
    this.map.on("moveend zoomend", () => this.settled());
    this.listen(leaflet);
    this.rebox.observe(this.surface);
    this.stop = loader.onArrival(() => this.redraw());
  }

  destroy(): void {
    this.resting = true; // a frame that is still to come must want nothing
    this.rebox.disconnect();
    this.stop();
    this.loader.forget(this);
    this.map.remove();
    this.node.remove();
  }

  show(look: MapLook): void {
    const before = this.look?.heads[0];
    this.look = look;
    this.painter.setScale(look.scale);
    const head = look.heads[0];
    if (!head) return;
    const layer = head.run.layer(head.layer);
    if (layer.queries !== this.grid.queries || layer.keys !== this.grid.keys) {
      const old = this.grid;
      const kept = this.wholeShown ? null : this.place;
      this.grid = new Grid(layer.queries, layer.keys);
      this.grid.width = old.width;
      this.grid.height = old.height;
      this.go(kept);
    }
    const floors = look.heads.map(
      ({ run, layer, head }) => run.source.floor?.(layer, head) ?? run.layer(layer).floor ?? [0, 0],
    );
    this.grid.most = look.tiles;
    this.grid.floor = [Math.max(...floors.map((f) => f[0])), Math.max(...floors.map((f) => f[1]))];
    if (!before || before.run !== head.run || before.layer !== head.layer || before.head !== head.head)
      this.loadTracks(head);
    this.redraw();
  }

  // While other maps are on the screen this one holds no tiles.
  rest(on: boolean): void {
    if (on === this.resting) return;
    this.resting = on;
    if (on) this.loader.forget(this);
    else this.redraw();
  }

  setPins(q: number[], k: number | null): void {
    if (this.look) this.look = { ...this.look, q, k };
    this.redraw();
  }

  // Another view points at something.
  setHover(cells: Cells | null): void {
    this.hovered = cells;
    this.redraw();
  }

  get place(): Place {
    const centre = this.map.getCenter();
    return { row: centre.lat / 2 ** this.grid.sq, col: centre.lng / 2 ** this.grid.sk, zoom: this.map.getZoom() };
  }

  get isWhole(): boolean {
    return this.wholeShown;
  }

  // Go to a place without telling anyone: the address or another map said so. Null is the whole map.
  go(place: Place | null): void {
    const { grid } = this;
    if (!grid.width || !grid.height) return;
    this.placing = true;
    this.wholeShown = place === null;
    const fit = grid.fit(grid.width, grid.height);
    this.map.setMinZoom(Math.min(fit, MAX_ZOOM));
    const zoom = place === null ? fit : clamp(place.zoom, fit, MAX_ZOOM);
    this.map.setMaxBounds(null as unknown as L.LatLngBoundsExpression);
    const point =
      place === null
        ? L.latLng(grid.height / 2 / 2 ** zoom, grid.width / 2 / 2 ** zoom)
        : L.latLng(place.row * 2 ** grid.sq, place.col * 2 ** grid.sk);
    this.map.setView(point, zoom, { animate: false });
    this.bound();
    this.placing = false;
    this.measure();
    this.redraw();
  }

  whole(byUser: boolean): void {
    this.go(null);
    if (byUser) this.events.moved(null, true);
  }

  // One level in or out, at the pointer if it is over the map.
  zoomBy(steps: number, around: { x: number; y: number } | null = null): void {
    const now = this.map.getZoom();
    const fit = this.grid.fit(this.grid.width, this.grid.height);
    const next = steps > 0 ? Math.floor(now + 1e-6) + steps : Math.ceil(now - 1e-6) + steps;
    const zoom = clamp(next, fit, MAX_ZOOM);
    if (zoom === now) return;
    if (zoom === fit) return this.whole(true);
    const point = around ?? { x: this.grid.width / 2, y: this.grid.height / 2 };
    this.wholeShown = false;
    this.placing = true;
    this.map.setMaxBounds(null as unknown as L.LatLngBoundsExpression);
    this.map.setZoomAround(L.point(point.x, point.y), zoom, { animate: false });
    this.bound();
    this.placing = false;
    this.measure();
    this.redraw();
    this.events.moved(this.place, true);
  }

  // Bring a cell into view, if it is not.
  reveal(q: number, k: number): void {
    const { q0, q1, k0, k1 } = this.grid.visible();
    if (q >= q0 && q < q1 && k >= k0 && k < k1) return;
    this.centre(q + 0.5, k + 0.5);
  }

  // Go down to single cells around one.
  dive(q: number, k: number): void {
    const zoom = Math.max(this.map.getZoom(), Math.min(4 - Math.max(this.grid.sq, this.grid.sk), MAX_ZOOM));
    this.go({ row: q + 0.5, col: k + 0.5, zoom });
    this.wholeShown = false;
    this.events.moved(this.place, true);
  }

  // What is on the screen, to be exported.
  picture(): { canvas: HTMLCanvasElement; grid: Grid } {
    return { canvas: this.painter.canvas, grid: this.grid };
  }

  valueAt(cells: Cells): { value: number; estimate: boolean } | null {
    return this.look ? this.painter.value(this.grid, this.look.heads, this.look.pool, cells) : null;
  }

  get complete(): boolean {
    return this.painter.waiting === 0 && !this.painter.refining;
  }

  private centre(row: number, col: number): void {
    this.go({ row, col, zoom: this.map.getZoom() });
    this.wholeShown = false;
    this.events.moved(this.place, false);
  }

  // The map cannot be pushed out of sight; one smaller than the view stays in its corner.
  private bound(): void {
    const { grid } = this;
    const scale = 2 ** this.map.getZoom();
    const bottom = Math.max(grid.queries * 2 ** grid.sq, grid.height / scale);
    const right = Math.max(grid.keys * 2 ** grid.sk, grid.width / scale);
    this.map.setMaxBounds([
      [0, 0],
      [bottom, right],
    ]);
  }

  private measure(): void {
    const origin = this.map.latLngToContainerPoint([0, 0]);
    this.grid.ox = origin.x;
    this.grid.oy = origin.y;
    this.grid.zoom = this.map.getZoom();
    // The map has moved under the pointer.
    if (this.pointer && this.hovered) this.point();
  }

  private get dragged(): boolean {
    return (this.map.dragging as L.Handler & { moving(): boolean }).moving();
  }

  private point(): void {
    const { x, y } = this.pointer!;
    // A map that is dragged comes along with the pointer: the cell it was taken by stays.
    if (!this.dragged || !this.hovered) this.hovered = this.grid.at(x, y);
    this.events.hover(this.hovered, x, y, this.hovered ? this.valueAt(this.hovered) : null);
  }

  private moved(): void {
    if (this.placing) return;
    this.measure();
    this.redraw();
  }

  private settled(): void {
    if (this.placing) return;
    const zoom = this.map.getZoom();
    const fit = this.grid.fit(this.grid.width, this.grid.height);
    // A pinch may end between levels: bins are shown at whole pixels only.
    const snapped =
      zoom <= fit + 0.2 ? fit : zoom >= 2 ? clamp(zoom, fit, MAX_ZOOM) : clamp(Math.round(zoom), fit, MAX_ZOOM);
    if (Math.abs(snapped - zoom) > 1e-6) {
      if (snapped === fit) return this.whole(true);
      const place = this.place;
      this.go({ ...place, zoom: snapped });
      this.wholeShown = false;
    }
    this.measure();
    this.redraw();
    if (!this.wholeShown || Math.abs(snapped - fit) > 1e-6) {
      this.wholeShown = false;
      this.events.moved(this.place, false);
    }
  }

  private resized(): void {
    const { clientWidth: width, clientHeight: height } = this.surface;
    if (!width || !height) return;
    const first = !this.grid.width;
    const place = this.place;
    this.grid.width = width;
    this.grid.height = height;
    // It tells of a move, to wherever the map stands before it goes to its place: that must not become the address.
    this.placing = true;
    this.map.invalidateSize({ animate: false, pan: false });
    this.placing = false;
    this.go(first && this.pending !== undefined ? this.pending : this.wholeShown ? null : place);
    this.pending = undefined;
    this.events.sized?.();
  }

  private pending: Place | null | undefined;

  // Where to be once there is a size.
  start(place: Place | null): void {
    if (this.grid.width) this.go(place);
    else this.pending = place;
    this.wholeShown = place === null;
  }

  private loadTracks(head: HeadRef): void {
    this.tracks = null;
    const again = () => {
      head.run
        .tracks(head.layer, head.head)
        .then((both) => {
          if (
            this.look?.heads[0] !== head &&
            (this.look?.heads[0]?.layer !== head.layer || this.look.heads[0].head !== head.head)
          )
            return;
          const { queries } = head.run.layer(head.layer);
          const entropy = both.subarray(0, queries);
          const received = both.subarray(queries);
          const largest = (values: Float32Array) => values.reduce((a, b) => Math.max(a, b), 0);
          this.tracks = {
            entropy: running(entropy),
            received: running(received),
            most: [largest(entropy), largest(received)],
          };
          this.redraw();
        })
        .catch((error) => {
          // Still being computed: the strips stay empty until it is there.
          if (error instanceof Later && this.look?.heads[0]?.head === head.head) window.setTimeout(again, 2000);
        });
    };
    again();
  }

  private draw(): void {
    if (!this.look || !this.grid.width || this.resting) return;
    const wanted = this.painter.draw(this.grid, this.look.heads, this.look.pool, this.pointer);
    this.loader.want(this, wanted, this.painter.shown.length);
    const head = this.look.heads[0];
    const marks: Marks = {
      rows: new Set(this.look.q),
      columns: new Set(this.look.k === null ? [] : [this.look.k]),
      hoverRow: this.hovered?.q0 ?? null,
      hoverColumn: this.hovered?.k0 ?? null,
    };
    drawRows(this.rowBox, this.grid, head.run.tokens, marks);
    drawColumns(this.columnBox, this.grid, head.run.keyTokens(head.layer), marks);
    const ink = this.look.scale.dark ? "#8b8799" : "#8a8696";
    drawStrip(this.entropyStrip, this.tracks?.entropy ?? null, this.grid, true, this.tracks?.most[0] ?? 0, ink);
    // A few keys often receive nearly all: the root keeps the others visible.
    drawStrip(this.receivedStrip, this.tracks?.received ?? null, this.grid, false, this.tracks?.most[1] ?? 0, ink);
    drawOverlay(this.overlay, this.grid, this.look, this.hovered);
    this.mini.draw(this.grid, head, this.look.scale, this.wholeShown);
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
        el("button", { class: "button", attrs: { type: "button" }, on: { click: () => this.retry() } }, "Retry"),
      );
    }
    this.failure.dataset.text = failed ?? "";
    this.failure.hidden = failed === null;
  }

  private retry(): void {
    this.loader.retry();
    this.events.retry();
    this.redraw();
  }

  private listen(leaflet: HTMLElement): void {
    const point = (event: MouseEvent) => {
      const box = leaflet.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    leaflet.addEventListener("mousemove", (event) => {
      if (this.box) return;
      this.pointer = point(event);
      if (event.buttons & 1) return; // a drag: the map will move, and tell of it
      this.point();
      this.redraw();
    });
    leaflet.addEventListener("mouseleave", () => {
      this.pointer = null;
      this.hovered = null;
      this.events.hover(null, 0, 0, null);
      this.redraw();
    });
    this.map.on("click", (event) => {
      const { x, y } = event.containerPoint;
      const cells = this.grid.at(x, y);
      // With Shift it was a rectangle, or is told by its own handler.
      const touched = (event.originalEvent as PointerEvent).pointerType === "touch";
      if (!cells || (event.originalEvent.detail > 1 && !touched) || event.originalEvent.shiftKey) return;
      // On a touch screen the first tap is the pointer, the second one on the same cell pins.
      // What is hovered does not tell: a browser moves its mouse to a tap before it clicks there.
      const before = this.tapped;
      this.tapped = touched ? cells : null;
      if (touched && (before?.q0 !== cells.q0 || before.k0 !== cells.k0)) {
        this.hovered = cells;
        this.events.hover(cells, x, y, this.valueAt(cells));
        this.redraw();
        return;
      }
      this.events.click(cells, event.originalEvent);
    });
    leaflet.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.wheel += event.deltaMode === 1 ? event.deltaY * 20 : event.deltaY;
        const steps = Math.trunc(this.wheel / NOTCH);
        if (!steps) return;
        this.wheel = 0;
        this.zoomBy(-Math.sign(steps), point(event));
      },
      { passive: false },
    );
    this.listenForBox(leaflet, point);
  }

  private box: { x: number; y: number; node: HTMLElement } | null = null;

  // Shift and drag: a rectangle to zoom into.
  private listenForBox(leaflet: HTMLElement, point: (event: MouseEvent) => { x: number; y: number }): void {
    leaflet.addEventListener(
      "pointerdown",
      (event) => {
        if (!event.shiftKey || event.button !== 0) return;
        event.stopPropagation();
        event.preventDefault();
        this.map.dragging.disable();
        const from = point(event);
        const node = el("div", { class: "box" });
        this.surface.append(node);
        this.box = { ...from, node };
        const move = (moved: PointerEvent) => {
          const to = point(moved);
          Object.assign(node.style, {
            left: `${Math.min(from.x, to.x)}px`,
            top: `${Math.min(from.y, to.y)}px`,
            width: `${Math.abs(to.x - from.x)}px`,
            height: `${Math.abs(to.y - from.y)}px`,
          });
        };
        const up = (ended: PointerEvent) => {
          window.removeEventListener("pointermove", move);
          window.removeEventListener("pointerup", up);
          node.remove();
          this.box = null;
          if (!matchMedia("(pointer: coarse)").matches) this.map.dragging.enable();
          const to = point(ended);
          if (Math.abs(to.x - from.x) > 6 && Math.abs(to.y - from.y) > 6) this.zoomInto(from, to);
          else {
            const cells = this.grid.at(from.x, from.y);
            if (cells) this.events.click(cells, ended);
          }
        };
        window.addEventListener("pointermove", move);
        window.addEventListener("pointerup", up);
      },
      true,
    );
    leaflet.addEventListener("mousedown", (event) => event.shiftKey && event.stopImmediatePropagation(), true);
  }

  private zoomInto(a: { x: number; y: number }, b: { x: number; y: number }): void {
    const { grid } = this;
    const more = Math.min(grid.width / Math.abs(b.x - a.x), grid.height / Math.abs(b.y - a.y));
    const zoom = clamp(Math.max(Math.floor(grid.zoom + Math.log2(more)), Math.floor(grid.zoom) + 1), -20, MAX_ZOOM);
    const row = (grid.row((a.y + b.y) / 2 - 0.5) + grid.row((a.y + b.y) / 2 + 0.5) + 1) / 2;
    const col = (grid.column((a.x + b.x) / 2 - 0.5) + grid.column((a.x + b.x) / 2 + 0.5) + 1) / 2;
    this.go({ row, col, zoom });
    this.wholeShown = false;
    this.events.moved(this.place, true);
  }

  // The cell cursor of the keyboard.
  step(rows: number, columns: number): void {
    const { grid } = this;
    const from = this.hovered ?? { q0: (this.look?.q[0] ?? 0) - 0, k0: this.look?.k ?? 0, q1: 0, k1: 0 };
    const start = this.hovered ? grid.bin(from.q0, from.k0) : null;
    const next = start
      ? grid.bin(
          clamp(start.q0 + rows * 2 ** grid.lq, 0, grid.queries - 1),
          clamp(start.k0 + columns * 2 ** grid.lk, 0, grid.keys - 1),
        )
      : grid.bin(clamp(from.q0, 0, grid.queries - 1), clamp(from.k0, 0, grid.keys - 1));
    this.reveal(next.q0, next.k0);
    this.hovered = next;
    const x = grid.x(next.k0) + grid.cw / 2;
    const y = grid.y(next.q0) + grid.ch / 2;
    this.pointer = { x, y };
    this.events.hover(next, x, y, this.valueAt(next));
    this.redraw();
  }

  pinCursor(event: KeyboardEvent): void {
    if (this.hovered) this.events.click(this.hovered, event);
  }
}

function button(name: string, title: string, click: () => void): HTMLButtonElement {
  return el(
    "button",
    { class: "icon-button", title, attrs: { type: "button", "aria-label": title }, on: { click } },
    icon(name),
  );
}

export { single };
