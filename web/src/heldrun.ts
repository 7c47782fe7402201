// The numbers of one run inside the page: its maps, exact or as bytes that are right to 3.3 %, and thumbnails of the rest.

import { thumbWeight } from "./colors";
import { THUMB } from "./run";
import { type Held, type Pool, type Portraits, Refused, type RunInfo, type TileData, type TileRef } from "./source";

const TOP = 8;

interface HeadData {
  levels: [number, number];
  exact?: string; // every weight, or the map as bytes
  mean?: string;
  max?: string;
  tracks?: string;
  link?: [number, number, number] | null;
  top?: { keys: string; weights: string };
}

// A run, or a reading of it.
export interface RunData {
  info: RunInfo;
  portraits: Portraits;
  thumbs: string;
  heads: Record<string, HeadData>;
}

interface Picture {
  levels: [number, number];
  rows: number;
  columns: number;
  width: number;
  exact: boolean;
  at: (i: number) => number;
}

export class HeldRun {
  readonly thumbBytes: Uint8Array;
  readonly exact: boolean; // whether every weight is here
  private starts: number[] = [];
  private unpacked = new Map<string, Uint8Array>();

  constructor(readonly data: RunData) {
    this.thumbBytes = bytes(data.thumbs);
    let start = 0;
    for (const layer of data.info.layers) {
      this.starts.push(start);
      start += layer.heads;
      // What this page holds of a layer is its floor; a head that was not chosen has its thumbnail.
      layer.floor = this.picture(layer.index, 0, "mean")?.levels ?? null;
    }
    this.exact = data.info.layers.every((layer) =>
      Array.from({ length: layer.heads }).every((_, head) => data.heads[`${layer.index}/${head}`]?.exact),
    );
  }

  head(layer: number, head: number): HeadData | undefined {
    return this.data.heads[`${layer}/${head}`];
  }

  floor(layer: number, head: number): [number, number] | null {
    return this.picture(layer, head, "mean")?.levels ?? null;
  }

  tile(t: TileRef): TileData {
    const picture = this.picture(t.layer, t.head, t.pool);
    if (!picture || t.lq < picture.levels[0] || t.lk < picture.levels[1]) throw lacks("finer cells of this head");
    const [fq, fk] = [2 ** (t.lq - picture.levels[0]), 2 ** (t.lk - picture.levels[1])];
    const values = new Float32Array(256 * 256).fill(NaN);
    for (let y = 0; y < 256; y++)
      for (let x = 0; x < 256; x++) {
        const value = pool(picture, (t.y * 256 + y) * fq, (t.x * 256 + x) * fk, fq, fk, t.pool);
        if (value !== null) values[y * 256 + x] = value;
      }
    return { values, estimate: false };
  }

  held(layer: number, head: number, q: number, k: number): Held | null {
    const picture = this.picture(layer, head, "mean");
    const fine = picture && picture.levels[0] === 0 && picture.levels[1] === 0;
    if (fine && picture.exact) return { weight: picture.at(q * picture.width + k), exact: true };
    const top = this.top(layer, head, q).find(([key]) => key === k);
    if (top) return { weight: top[1], exact: true };
    return fine ? { weight: picture.at(q * picture.width + k), exact: false } : null;
  }

  // The strongest keys of a query with their weights, where they are here.
  private top(layer: number, head: number, query: number): [number, number][] {
    const top = this.data.heads[`${layer}/${head}`]?.top;
    if (!top) return [];
    const keys = new Int32Array(this.bytesOf(`${layer}/${head}/keys`, top.keys).buffer);
    const weights = new Float32Array(this.bytesOf(`${layer}/${head}/weights`, top.weights).buffer);
    const found: [number, number][] = [];
    for (let i = query * TOP; i < (query + 1) * TOP; i++) if (keys[i] >= 0) found.push([keys[i], weights[i]]);
    return found;
  }

  // A row: of the whole map where it is here cell by cell, else the strongest keys alone.
  rowOf(layer: number, head: number, query: number): Float32Array {
    const info = this.data.info.layers[layer];
    const row = new Float32Array(info.keys);
    const picture = this.picture(layer, head, "mean");
    if (picture && picture.levels[0] === 0 && picture.levels[1] === 0)
      for (let k = 0; k < info.keys; k++) row[k] = picture.at(query * picture.width + k);
    else if (!this.data.heads[`${layer}/${head}`]?.top) throw lacks("the rows of this head");
    for (const [key, weight] of this.top(layer, head, query)) row[key] = weight;
    return row;
  }

  private picture(layer: number, head: number, kind: Pool): Picture | null {
    const info = this.data.info.layers[layer];
    const chosen = this.data.heads[`${layer}/${head}`];
    const size = (levels: [number, number]) => [
      Math.ceil(info.queries / 2 ** levels[0]),
      Math.ceil(info.keys / 2 ** levels[1]),
    ];
    if (chosen?.exact) {
      const [rows, columns] = size(chosen.levels);
      const weights = new Float32Array(this.bytesOf(`${layer}/${head}/exact`, chosen.exact).buffer);
      return { levels: chosen.levels, rows, columns, width: columns, exact: true, at: (i) => weights[i] };
    }
    const code = (codes: Uint8Array) => ({ exact: false, at: (i: number) => thumbWeight(codes[i]) });
    if (chosen?.mean) {
      const [rows, columns] = size(chosen.levels);
      const name = kind === "max" && chosen.max ? "max" : "mean";
      const codes = this.bytesOf(`${layer}/${head}/${name}`, chosen[name]!);
      return { levels: chosen.levels, rows, columns, width: columns, ...code(codes) };
    }
    const levels = [info.queries, info.keys].map((n) => Math.max(0, Math.ceil(Math.log2(n / THUMB)))) as [
      number,
      number,
    ];
    const [rows, columns] = size(levels);
    const start = (this.starts[layer] + head) * THUMB * THUMB;
    return { levels, rows, columns, width: THUMB, ...code(this.thumbBytes.subarray(start, start + THUMB * THUMB)) };
  }

  private bytesOf(key: string, packed: string): Uint8Array {
    let found = this.unpacked.get(key);
    if (!found) {
      found = bytes(packed);
      this.unpacked.set(key, found);
    }
    return found;
  }
}

// The mean or the largest of a rectangle of a picture; null where nothing is visible.
function pool(picture: Picture, y: number, x: number, height: number, width: number, kind: Pool): number | null {
  let [sum, count, most] = [0, 0, 0];
  for (let i = y; i < Math.min(y + height, picture.rows); i++)
    for (let j = x; j < Math.min(x + width, picture.columns); j++) {
      const value = picture.at(i * picture.width + j);
      if (Number.isNaN(value)) continue;
      sum += value;
      count++;
      if (Math.abs(value) > Math.abs(most)) most = value; // of a reading with a sign: the largest either way
    }
  return count === 0 ? null : kind === "max" ? most : sum / count;
}

export function bytes(packed: string): Uint8Array {
  const text = atob(packed);
  const found = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
  return found;
}

export function lacks(what: string): Refused {
  return new Refused(0, {
    error: `This page does not hold ${what}`,
    expected: "",
    got: "",
    try: "open the run in sightline serve",
  });
}
