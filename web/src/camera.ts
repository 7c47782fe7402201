// Where a map stands in its pane, and how it goes elsewhere: Leaflet moves it, the grid is what everyone else reads.

import L from "leaflet";
import { clamp } from "./dom";
import { Grid, MAX_ZOOM } from "./grid";
import type { Place } from "./state";

export interface Point {
  x: number;
  y: number;
}

export interface CameraEvents {
  changed(): void; // it stands elsewhere, or is to be drawn again
  moved(place: Place | null, step: boolean): void; // the user went there; null is the whole map
  sized?(): void;
}

const CRS = L.Util.extend({}, L.CRS.Simple, { transformation: new L.Transformation(1, 0, 1, 0) }) as L.CRS;

export class Camera {
  readonly map: L.Map;
  grid = new Grid(1, 1);
  private placing = false;
  private wholeShown = true;
  private pending: Place | null | undefined;
  private rebox = new ResizeObserver(() => this.resized());

  constructor(
    readonly node: HTMLElement,
    private surface: HTMLElement,
    private events: CameraEvents,
  ) {
    this.map = L.map(node, {
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
      dragging: !matchMedia("(pointer: coarse)").matches,
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
    this.rebox.observe(surface);
  }

  destroy(): void {
    this.rebox.disconnect();
    this.map.remove();
  }

  get place(): Place {
    const centre = this.map.getCenter();
    return { row: centre.lat / 2 ** this.grid.sq, col: centre.lng / 2 ** this.grid.sk, zoom: this.map.getZoom() };
  }

  get isWhole(): boolean {
    return this.wholeShown;
  }

  get dragged(): boolean {
    return (this.map.dragging as L.Handler & { moving(): boolean }).moving();
  }

  // A map of another size: at the same place of it, if it was not seen whole.
  fitTo(queries: number, keys: number): void {
    if (queries === this.grid.queries && keys === this.grid.keys) return;
    const old = this.grid;
    const kept = this.wholeShown ? null : this.place;
    this.grid = new Grid(queries, keys);
    this.grid.width = old.width;
    this.grid.height = old.height;
    this.go(kept);
  }

  // Go to a place without telling anyone: the address or another map said so. Null is the whole map.
  go(place: Place | null): void {
    const { grid } = this;
    if (!grid.width || !grid.height) return;
    this.wholeShown = place === null;
    const fit = grid.fit(grid.width, grid.height);
    const zoom = place === null ? fit : clamp(place.zoom, fit, MAX_ZOOM);
    const point =
      place === null
        ? L.latLng(grid.height / 2 / 2 ** zoom, grid.width / 2 / 2 ** zoom)
        : L.latLng(place.row * 2 ** grid.sq, place.col * 2 ** grid.sk);
    this.freely(() => {
      this.map.setMinZoom(Math.min(fit, MAX_ZOOM));
      this.map.setMaxBounds(null as unknown as L.LatLngBoundsExpression);
      this.map.setView(point, zoom, { animate: false });
    });
  }

  // Where to be once there is a size.
  start(place: Place | null): void {
    if (this.grid.width) this.go(place);
    else this.pending = place;
    this.wholeShown = place === null;
  }

  whole(byUser: boolean): void {
    this.go(null);
    if (byUser) this.events.moved(null, true);
  }

  // One level in or out, around a point of the view.
  zoomBy(steps: number, around: Point | null = null): void {
    const now = this.map.getZoom();
    const fit = this.grid.fit(this.grid.width, this.grid.height);
    // From between two levels to the next but half: a step is always seen.
    const next = steps > 0 ? Math.floor(now + 0.5) + steps : Math.ceil(now - 0.5) + steps;
    const zoom = next < fit + 0.25 ? fit : Math.min(next, MAX_ZOOM);
    if (zoom === now) return;
    if (zoom === fit) return this.whole(true);
    const { width, height, right, bottom } = this.grid;
    const point = around ?? { x: Math.min(width, right) / 2, y: Math.min(height, bottom) / 2 };
    this.wholeShown = false;
    this.freely(() => {
      this.map.setMaxBounds(null as unknown as L.LatLngBoundsExpression);
      this.map.setZoomAround(L.point(point.x, point.y), zoom, { animate: false });
    });
    // Exactly where the address can say: who opens it sees the same pixels.
    const { row, col } = this.place;
    this.visit({ row: Math.round(row * 100) / 100, col: Math.round(col * 100) / 100, zoom }, true);
  }

  // Into a rectangle of the view, as far as it fits.
  zoomInto(a: Point, b: Point): void {
    const { grid } = this;
    const more = Math.min(grid.width / Math.abs(b.x - a.x), grid.height / Math.abs(b.y - a.y));
    const zoom = clamp(Math.max(Math.floor(grid.zoom + Math.log2(more)), Math.floor(grid.zoom) + 1), -20, MAX_ZOOM);
    const row = (grid.row((a.y + b.y) / 2 - 0.5) + grid.row((a.y + b.y) / 2 + 0.5) + 1) / 2;
    const col = (grid.column((a.x + b.x) / 2 - 0.5) + grid.column((a.x + b.x) / 2 + 0.5) + 1) / 2;
    this.visit({ row, col, zoom }, true);
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
    this.visit({ row: q + 0.5, col: k + 0.5, zoom }, true);
  }

  centre(row: number, col: number): void {
    this.visit({ row, col, zoom: this.map.getZoom() }, false);
  }

  private visit(place: Place, step: boolean): void {
    this.go(place);
    this.wholeShown = false;
    this.events.moved(this.place, step);
  }

  // What Leaflet tells of while it is moved by us is no move of the user's.
  private freely(move: () => void): void {
    this.placing = true;
    move();
    this.bound();
    this.placing = false;
    this.measure();
    this.events.changed();
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
  }

  private moved(): void {
    if (this.placing) return;
    this.measure();
    this.events.changed();
  }

  private settled(): void {
    if (this.placing) return;
    const zoom = this.map.getZoom();
    const fit = this.grid.fit(this.grid.width, this.grid.height);
    // A pinch may end between levels: bins are shown at whole pixels only.
    const level = clamp(zoom >= 2 ? zoom : Math.round(zoom), fit, MAX_ZOOM);
    const snapped = zoom <= fit + 0.2 ? fit : level;
    if (Math.abs(snapped - zoom) > 1e-6) {
      if (snapped === fit) return this.whole(true);
      this.go({ ...this.place, zoom: snapped });
      this.wholeShown = false;
    }
    this.measure();
    this.events.changed();
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
}
