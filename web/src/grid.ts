// The one scale object of a map: from cells to pixels and back. Tiles, axes, strips and tooltip all use it.

export const TILE = 256;
export const MAX_ZOOM = 6;

export interface Cells {
  q0: number;
  q1: number;
  k0: number;
  k1: number;
}

export class Grid {
  // Short axes are stretched by a power of two, so that a map of 20 x 900 is not a line.
  readonly sq: number;
  readonly sk: number;

  // Where cell 0, 0 stands in the view, and the zoom: 0 is one pixel a cell.
  ox = 0;
  oy = 0;
  zoom = 0;
  width = 0;
  height = 0;
  // The lowest levels there are: below them bins are only drawn larger.
  floor: [number, number] = [0, 0];
  // How many tiles may be in view at once: a screen too large for that is shown coarser.
  most = Infinity;

  constructor(
    readonly queries: number,
    readonly keys: number,
  ) {
    const ratio = Math.log2(Math.max(keys, 1) / Math.max(queries, 1));
    this.sq = ratio > 1 ? Math.floor(ratio) - 1 : 0;
    this.sk = ratio < -1 ? Math.floor(-ratio) - 1 : 0;
  }

  // Pixels of one cell.
  get cw(): number {
    return 2 ** (this.zoom + this.sk);
  }
  get ch(): number {
    return 2 ** (this.zoom + this.sq);
  }

  // Levels of the tiles that are shown: each bin is a pixel or somewhat more, so that none is lost between two.
  get lq(): number {
    return this.levels()[0];
  }
  get lk(): number {
    return this.levels()[1];
  }

  private levels(): [number, number] {
    for (let up = 0; ; up++) {
      const lq = Math.max(this.floor[0], level(this.zoom + this.sq) + up);
      const lk = Math.max(this.floor[1], level(this.zoom + this.sk) + up);
      const down = inView(this.height, this.queries, this.ch, lq);
      if (!(down * inView(this.width, this.keys, this.cw, lk) > this.most)) return [lq, lk];
    }
  }

  get pooled(): boolean {
    return this.lq > 0 || this.lk > 0;
  }

  get right(): number {
    return this.ox + this.keys * this.cw;
  }
  get bottom(): number {
    return this.oy + this.queries * this.ch;
  }

  // The zoom at which the whole map fills its pane: cells and bins may have any size from a pixel up.
  fit(width: number, height: number): number {
    const exact = Math.min(
      Math.log2(Math.max(width, 1) / (this.keys * 2 ** this.sk)),
      Math.log2(Math.max(height, 1) / (this.queries * 2 ** this.sq)),
    );
    return Math.min(exact, MAX_ZOOM);
  }

  column(x: number): number {
    return Math.floor((x - this.ox) / this.cw);
  }
  row(y: number): number {
    return Math.floor((y - this.oy) / this.ch);
  }
  x(column: number): number {
    return this.ox + column * this.cw;
  }
  y(row: number): number {
    return this.oy + row * this.ch;
  }

  // The cells of the bin at a point of the view, or null beside the map.
  at(x: number, y: number): Cells | null {
    const k = this.column(x);
    const q = this.row(y);
    if (k < 0 || q < 0 || k >= this.keys || q >= this.queries) return null;
    return this.bin(q, k);
  }

  bin(q: number, k: number): Cells {
    const q0 = (q >> this.lq) << this.lq;
    const k0 = (k >> this.lk) << this.lk;
    return { q0, q1: Math.min(q0 + (1 << this.lq), this.queries), k0, k1: Math.min(k0 + (1 << this.lk), this.keys) };
  }

  // The rows and columns that are in view.
  visible(): Cells {
    const clip = (n: number, most: number) => Math.min(Math.max(n, 0), most);
    return {
      q0: clip(this.row(0), this.queries),
      q1: clip(this.row(this.height - 1) + 1, this.queries),
      k0: clip(this.column(0), this.keys),
      k1: clip(this.column(this.width - 1) + 1, this.keys),
    };
  }
}

// How many halvings make bins of at least a pixel; what a rounded address is off by is no halving.
function level(zoom: number): number {
  return Math.max(0, Math.ceil(-zoom - 0.01));
}

// The most tiles of a level that a length of the view can touch, wherever it begins.
function inView(pixels: number, cells: number, cell: number, level: number): number {
  const tile = TILE * 2 ** level;
  return Math.min(Math.ceil(pixels / (tile * cell)) + 1, Math.ceil(cells / tile));
}

export function single(cells: Cells): boolean {
  return cells.q1 - cells.q0 === 1 && cells.k1 - cells.k0 === 1;
}

// Positions for ticks at 1, 2, 5 x 10^n, at least `apart` pixels from each other.
export function ticks(first: number, last: number, cell: number, apart: number): number[] {
  let step = 1;
  for (let n = 1; ; n *= 10) {
    const good = [1, 2, 5].find((m) => m * n * cell >= apart);
    if (good) {
      step = good * n;
      break;
    }
  }
  const found: number[] = [];
  for (let i = Math.ceil(first / step) * step; i < last; i += step) found.push(i);
  return found;
}
