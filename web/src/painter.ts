// Draws the tiles of a map onto one canvas, edge to edge: whole device pixels, so that no seam can show.

import { colorTable, css, hatchColors, paint, paper, type Scale } from "./colors";
import { blank } from "./dom";
import { type Cells, type Grid, TILE } from "./grid";
import { type Loader, tileKey, type Wanted } from "./loader";
import type { OpenRun } from "./run";
import type { Pool, TileData, TileRef } from "./source";

const PAINTED = 64; // more only where the screen shows more

export interface HeadRef {
  run: OpenRun;
  layer: number;
  head: number;
}

interface Painted {
  canvas: HTMLCanvasElement;
  version: number;
  of: Float32Array | null;
}

export class Painter {
  refining = false;
  waiting = 0;
  shown: TileRef[] = [];
  failed: string | null = null;
  private limit = PAINTED;
  private painted = new Map<string, Painted>();
  private differences = new WeakMap<Float32Array, Float32Array>();
  private table: Uint32Array = new Uint32Array(0);
  private version = 0;
  private scale: Scale | null = null;
  private hatch: CanvasPattern | null = null;
  private pixels = new ImageData(TILE, TILE); // of whichever tile is painted
  private words = new Uint32Array(this.pixels.data.buffer);

  constructor(
    readonly canvas: HTMLCanvasElement,
    private loader: Loader,
  ) {}

  setScale(scale: Scale): void {
    if (JSON.stringify(scale) === JSON.stringify(this.scale)) return;
    this.scale = scale;
    this.table = colorTable(scale);
    this.version++;
    this.hatch = null;
  }

  // Draw what is here, and tell what is wanted.
  draw(grid: Grid, heads: HeadRef[], pool: Pool, pointer: { x: number; y: number } | null): Wanted[] {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(grid.width * ratio), Math.round(grid.height * ratio)];
    const context = blank(this.canvas, width, height);
    context.imageSmoothingEnabled = false;
    const edge = (n: number) => Math.round(n * ratio);
    const [left, top] = [edge(grid.ox), edge(grid.oy)];
    context.fillStyle = this.pattern(context, ratio);
    context.fillRect(left, top, edge(grid.right) - left, edge(grid.bottom) - top);
    const wanted: Wanted[] = [];
    this.refining = false;
    this.waiting = 0;
    const shown: TileRef[] = [];
    this.shown = shown;
    this.failed = null;
    if (!heads.length || !this.scale) return wanted;
    const { lq, lk } = grid;
    const bins = [Math.ceil(grid.queries / 2 ** lq), Math.ceil(grid.keys / 2 ** lk)];
    const size = [grid.ch * 2 ** lq, grid.cw * 2 ** lk]; // pixels of one bin
    const first = [Math.floor(-grid.oy / (TILE * size[0])), Math.floor(-grid.ox / (TILE * size[1]))];
    const last = [(grid.height - grid.oy) / (TILE * size[0]), (grid.width - grid.ox) / (TILE * size[1])];
    const from = pointer ?? { x: grid.width / 2, y: grid.height / 2 };
    const begin = first.map((i) => Math.max(0, i));
    const end = last.map((i, axis) => Math.min(Math.ceil(i), Math.ceil(bins[axis] / TILE)));
    // Room for all that is in view, and for the coarser ones below it: else each frame would paint each tile again.
    this.limit = Math.max(PAINTED, Math.ceil(1.25 * (end[0] - begin[0]) * (end[1] - begin[1])));
    for (let y = begin[0]; y < end[0]; y++) {
      for (let x = begin[1]; x < end[1]; x++) {
        const rows = Math.min(TILE, bins[0] - y * TILE);
        const columns = Math.min(TILE, bins[1] - x * TILE);
        const x0 = edge(grid.ox + x * TILE * size[1]);
        const y0 = edge(grid.oy + y * TILE * size[0]);
        // The last bin is ragged: it ends with the map, not with its tile.
        const x1 = edge(Math.min(grid.ox + (x * TILE + columns) * size[1], grid.right));
        const y1 = edge(Math.min(grid.oy + (y * TILE + rows) * size[0], grid.bottom));
        if (heads.every((head) => hidden(head, lq, lk, y, x))) continue;
        const refs = heads.map((head) => reference(head, lq, lk, y, x, pool));
        shown.push(...refs);
        const tiles = refs.map((ref) => this.loader.get(ref));
        const distance = Math.hypot((x0 + x1) / 2 / ratio - from.x, (y0 + y1) / 2 / ratio - from.y);
        refs.forEach((ref, i) => {
          if (!tiles[i] || tiles[i]!.estimate) wanted.push({ ref, distance });
          const failure = this.loader.failures.get(tileKey(ref));
          if (failure) this.failed = failure;
        });
        const source = [rows - ragged(grid.queries, lq, y, rows), columns - ragged(grid.keys, lk, x, columns)];
        if (tiles.every((tile) => tile)) {
          const values = this.values(tiles as TileData[]);
          if (tiles.some((tile) => tile!.estimate)) this.refining = true;
          if (values) {
            const key = refs.map(tileKey).join("-");
            context.drawImage(this.picture(key, values), 0, 0, source[1], source[0], x0, y0, x1 - x0, y1 - y0);
          }
        } else {
          this.waiting++;
          this.stopgap(context, grid, heads, pool, y, x, x0, y0, x1, y1);
        }
      }
    }
    // Coarser tiles that stood in are dropped before any that is in view.
    if (this.waiting) for (const ref of shown) this.loader.get(ref);
    return wanted;
  }

  // The value that is shown for a bin, if its tile is here.
  value(grid: Grid, heads: HeadRef[], pool: Pool, cells: Cells): { value: number; estimate: boolean } | null {
    const { lq, lk } = grid;
    const [row, column] = [cells.q0 >> lq, cells.k0 >> lk];
    const [y, x] = [Math.floor(row / TILE), Math.floor(column / TILE)];
    const tiles = heads.map((head) => this.loader.get(reference(head, lq, lk, y, x, pool)));
    if (!heads.length) return null;
    if (heads.every((head) => hidden(head, lq, lk, y, x))) return { value: NaN, estimate: false };
    if (!tiles.every((tile) => tile)) return null;
    const values = this.values(tiles as TileData[]);
    const value = values ? values[(row % TILE) * TILE + (column % TILE)] : NaN;
    return { value, estimate: tiles.some((tile) => tile!.estimate) };
  }

  private values(tiles: TileData[]): Float32Array | null {
    if (tiles.length === 1) return tiles[0].values;
    const [a, b] = tiles.map((tile) => tile.values);
    if (!a || !b) return null;
    let difference = this.differences.get(a);
    if (!difference) {
      difference = a.map((value, i) => value - b[i]);
      this.differences.set(a, difference);
    }
    return difference;
  }

  private picture(key: string, values: Float32Array): HTMLCanvasElement {
    let painted = this.painted.get(key);
    if (!painted || painted.version !== this.version || painted.of !== values) {
      const canvas = painted?.canvas ?? this.spare();
      const context = canvas.getContext("2d")!;
      paint(values, this.table, this.words);
      context.putImageData(this.pixels, 0, 0);
      painted = { canvas, version: this.version, of: values };
    }
    this.painted.delete(key);
    this.painted.set(key, painted);
    return painted.canvas;
  }

  // A canvas for one more tile: a new one, or that of the tile which was not needed for longest.
  private spare(): HTMLCanvasElement {
    let spare: HTMLCanvasElement | null = null;
    while (this.painted.size >= this.limit) {
      const [key, { canvas }] = this.painted.entries().next().value!;
      this.painted.delete(key);
      spare = canvas;
    }
    if (spare) return spare;
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = TILE;
    return canvas;
  }

  // While a tile is on its way: the part of a coarser one that covers it, or plain paper.
  private stopgap(
    context: CanvasRenderingContext2D,
    grid: Grid,
    heads: HeadRef[],
    pool: Pool,
    y: number,
    x: number,
    x0: number,
    y0: number,
    x1: number,
    y1: number,
  ): void {
    for (let up = 1; up < 12; up++) {
      const [lq, lk] = [grid.lq + up, grid.lk + up];
      const [yy, xx] = [y >> up, x >> up];
      const refs = heads.map((head) => reference(head, lq, lk, yy, xx, pool));
      const tiles = refs.map((ref) => this.loader.get(ref));
      if (!tiles.every((tile) => tile?.values)) continue;
      const values = this.values(tiles as TileData[])!;
      const part = TILE / 2 ** up;
      const sx = (x - (xx << up)) * part;
      const sy = (y - (yy << up)) * part;
      const ratio = window.devicePixelRatio || 1;
      const full = TILE * grid.cw * 2 ** grid.lk * ratio;
      const wide = ((x1 - x0) / full) * part;
      const high = ((y1 - y0) / (TILE * grid.ch * 2 ** grid.lq * ratio)) * part;
      context.drawImage(
        this.picture(refs.map(tileKey).join("-"), values),
        sx,
        sy,
        wide,
        high,
        x0,
        y0,
        x1 - x0,
        y1 - y0,
      );
      return;
    }
    context.fillStyle = this.scale!.dark ? "#26262e" : "#eeedf0";
    context.fillRect(x0, y0, x1 - x0, y1 - y0);
  }

  private pattern(context: CanvasRenderingContext2D, ratio: number): CanvasPattern | string {
    if (!this.hatch) {
      const size = Math.round(8 * ratio);
      const tile = document.createElement("canvas");
      tile.width = tile.height = size;
      const c = tile.getContext("2d")!;
      const [ground, lines] = hatchColors(this.scale?.dark ?? false);
      c.fillStyle = ground;
      c.fillRect(0, 0, size, size);
      c.strokeStyle = lines;
      c.lineWidth = Math.max(1, ratio);
      c.beginPath();
      for (const shift of [-size, 0, size]) {
        c.moveTo(shift, size);
        c.lineTo(shift + size, 0);
      }
      c.stroke();
      this.hatch = context.createPattern(tile, "repeat");
    }
    return this.hatch ?? css(paper(this.scale?.dark ?? false));
  }
}

export function reference(head: HeadRef, lq: number, lk: number, y: number, x: number, pool: Pool): TileRef {
  return { run: head.run.asked, rev: head.run.rev, layer: head.layer, head: head.head, lq, lk, y, x, pool };
}

// Tiles that a causal mask hides are not asked for.
export function hidden(head: HeadRef, lq: number, lk: number, y: number, x: number): boolean {
  const layer = head.run.layer(head.layer);
  if (!layer.causal) return false;
  const lastQuery = Math.min(((y + 1) * TILE) << lq, layer.queries) - 1;
  return x * TILE * 2 ** lk > lastQuery + layer.keys - layer.queries;
}

// How much of a tile's last bin is beyond the map, in bins.
export function ragged(length: number, level: number, tile: number, bins: number): number {
  const end = (tile * TILE + bins) * 2 ** level;
  return end > length ? (end - length) / 2 ** level : 0;
}
