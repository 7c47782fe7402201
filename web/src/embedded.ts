// A run inside the page itself: what a report holds. Maps of long texts are bytes, right to 3.3 %; others are exact.

import { thumbWeight } from "./colors";
import { THUMB } from "./run";
import {
  type CellPeek,
  type Held,
  type Kept,
  type Limits,
  type OrderInfo,
  type PatchPeek,
  type Pool,
  type Portraits,
  Refused,
  type RunInfo,
  type RunShort,
  type Source,
  type StepsTable,
  type TileData,
  type TileRef,
  type TokenPage,
} from "./source";

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

export interface Embedded {
  info: RunInfo;
  tokens: { texts: string[]; kinds: number[] };
  memory: { texts: string[]; kinds: number[] } | null;
  portraits: Portraits;
  thumbs: string;
  heads: Record<string, HeadData>;
  kept?: Kept;
}

interface Picture {
  levels: [number, number];
  rows: number;
  columns: number;
  width: number;
  exact: boolean;
  at: (i: number) => number;
}

export function embeddedData(): Embedded | null {
  const node = document.getElementById("sightline-data");
  return node ? (JSON.parse(node.textContent ?? "null") as Embedded) : null;
}

export class EmbeddedSource implements Source {
  readonly live = false;
  private thumbBytes: Uint8Array;
  private starts: number[] = [];
  private unpacked = new Map<string, Uint8Array>();
  readonly exact: boolean; // whether every weight is here

  constructor(private data: Embedded) {
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

  async limits(): Promise<Limits> {
    return { text_bytes: 0, runs: 1, queued: 0, tokens_a_page: 0, waiting_tiles: 0, tile: 256, models: [] };
  }
  async runs(): Promise<{ runs: RunShort[]; orders: OrderInfo[]; closed: RunShort[] }> {
    return { runs: [this.data.info], orders: [], closed: [] };
  }
  async run(): Promise<RunInfo> {
    return this.data.info;
  }
  async order(): Promise<{ id: string; position: number }> {
    throw lacks("a model to run");
  }
  async close(): Promise<void> {
    throw lacks("runs to close");
  }
  async reopen(): Promise<void> {
    throw lacks("runs to open again");
  }
  async text(): Promise<string> {
    return this.data.info.text;
  }
  async look(): Promise<void> {}
  events(): () => void {
    return () => undefined;
  }
  async tokens(_run: string, _rev: number, from: number, to: number, memory: boolean): Promise<TokenPage> {
    const { texts, kinds } = (memory && this.data.memory) || this.data.tokens;
    return { from, to, texts: texts.slice(from, to), kinds: kinds.slice(from, to) };
  }
  async portraits(): Promise<Portraits> {
    return this.data.portraits;
  }
  async thumbs(): Promise<{ bytes: Uint8Array; estimate: boolean }> {
    return { bytes: this.thumbBytes, estimate: false };
  }

  kept(): Kept {
    return this.data.kept ?? {};
  }

  floor(layer: number, head: number): [number, number] | null {
    return this.picture(layer, head, "mean")?.levels ?? null;
  }

  async tile(t: TileRef): Promise<TileData> {
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

  async row(_run: string, _rev: number, layer: number, head: number, q: number[]): Promise<Float32Array> {
    const info = this.data.info.layers[layer];
    const row = new Float32Array(info.keys);
    for (const query of q) {
      const one = this.rowOf(layer, head, query);
      for (let i = 0; i < row.length; i++) row[i] += one[i];
    }
    return row;
  }

  async column(_run: string, _rev: number, layer: number, head: number, k: number[]): Promise<Float32Array> {
    const info = this.data.info.layers[layer];
    return Float32Array.from({ length: info.queries }, (_, query) => this.rowOf(layer, head, query)[k[0]]);
  }

  async tracks(_run: string, _rev: number, layer: number, head: number): Promise<Float32Array> {
    const packed = this.data.heads[`${layer}/${head}`]?.tracks;
    if (!packed) throw lacks("the tracks of this head");
    return new Float32Array(bytes(packed).buffer);
  }

  async peek(
    _run: string,
    _rev: number,
    layer: number,
    head: number,
    rows: string,
    cols: string,
  ): Promise<CellPeek | PatchPeek> {
    if (rows.includes(":")) throw lacks("the cells behind a pixel");
    const [query, key] = [Number(rows), Number(cols)];
    const weight = this.rowOf(layer, head, query)[key];
    return { query, key, visible: true, weight, entropy: null, others: [] };
  }

  async link(_run: string, _rev: number, layer: number, head: number): Promise<[number, number, number] | null> {
    return this.data.heads[`${layer}/${head}`]?.link ?? null;
  }

  async rollout(): Promise<Float32Array> {
    throw lacks("rollout");
  }
  async steps(): Promise<StepsTable> {
    throw lacks("the steps");
  }
  exportAddress(): string {
    return "";
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
  private rowOf(layer: number, head: number, query: number): Float32Array {
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
  let [sum, count, most] = [0, 0, -1];
  for (let i = y; i < Math.min(y + height, picture.rows); i++)
    for (let j = x; j < Math.min(x + width, picture.columns); j++) {
      const value = picture.at(i * picture.width + j);
      if (Number.isNaN(value)) continue;
      sum += value;
      count++;
      most = Math.max(most, value);
    }
  return count === 0 ? null : kind === "max" ? most : sum / count;
}

function bytes(packed: string): Uint8Array {
  const text = atob(packed);
  const found = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
  return found;
}

function lacks(what: string): Refused {
  return new Refused(0, {
    error: `This page does not hold ${what}`,
    expected: "",
    got: "",
    try: "open the run in sightline serve",
  });
}
