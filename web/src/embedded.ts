// A run inside the page itself: what a report holds, with the readings of it that were made.

import { bytes, HeldRun, lacks, type RunData } from "./heldrun";
import type {
  CellPeek,
  Held,
  Kept,
  Limits,
  OrderInfo,
  PatchPeek,
  Portraits,
  RunInfo,
  RunShort,
  Source,
  StepsTable,
  TileData,
  TileRef,
  TokenPage,
} from "./source";

export interface Embedded extends RunData {
  tokens: { texts: string[]; kinds: number[] };
  memory: { texts: string[]; kinds: number[] } | null;
  readings?: RunData[];
  kept?: Kept;
}

export function embeddedData(): Embedded | null {
  const node = document.getElementById("sightline-data");
  return node ? (JSON.parse(node.textContent ?? "null") as Embedded) : null;
}

export class EmbeddedSource implements Source {
  readonly live = false;
  private base: HeldRun;
  private all = new Map<string, HeldRun>();

  constructor(private data: Embedded) {
    this.base = new HeldRun(data);
    for (const reading of data.readings ?? []) this.all.set(reading.info.id, new HeldRun(reading));
    this.all.set(data.info.id, this.base);
  }

  get edits(): string[] {
    return this.data.info.edits;
  }

  get exact(): boolean {
    return this.base.exact;
  }

  // What it holds of the run: its weights, or what else its cells are; then readings of it.
  get readings(): RunInfo[] {
    return [...this.all.values()].map((run) => run.data.info).filter((info) => info.of !== "weights");
  }

  // That run, or a reading of it.
  private of(run?: string): HeldRun {
    return (run === undefined ? null : this.all.get(run)) ?? this.base;
  }

  async limits(): Promise<Limits> {
    const none = { text_bytes: 0, image_bytes: 0, image_pixels: 0, queued: 0, tokens_a_page: 0, waiting_tiles: 0 };
    return { ...none, runs: 1, tile: 256, models: [] };
  }
  async runs(): Promise<{ runs: RunShort[]; orders: OrderInfo[]; closed: RunShort[] }> {
    return { runs: [this.data.info], orders: [], closed: [] };
  }
  async run(id: string): Promise<RunInfo> {
    return this.of(id).data.info;
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
  async portraits(run: string): Promise<Portraits> {
    return this.of(run).data.portraits;
  }
  async thumbs(run: string): Promise<{ bytes: Uint8Array; estimate: boolean }> {
    return { bytes: this.of(run).thumbBytes, estimate: false };
  }

  async picture(): Promise<string> {
    const { picture } = this.data.kept ?? {};
    if (!picture) throw lacks("the picture");
    return picture;
  }

  kept(): Kept {
    return this.data.kept ?? {};
  }

  floor(layer: number, head: number, run?: string): [number, number] | null {
    return this.of(run).floor(layer, head);
  }

  held(layer: number, head: number, q: number, k: number, run?: string): Held | null {
    return this.of(run).held(layer, head, q, k);
  }

  async tile(t: TileRef): Promise<TileData> {
    return this.of(t.run).tile(t);
  }

  async row(run: string, _rev: number, layer: number, head: number, q: number[]): Promise<Float32Array> {
    const info = this.data.info.layers[layer];
    const row = new Float32Array(info.keys);
    for (const query of q) {
      const one = this.of(run).rowOf(layer, head, query);
      for (let i = 0; i < row.length; i++) row[i] += one[i];
    }
    return row;
  }

  async column(run: string, _rev: number, layer: number, head: number, k: number[]): Promise<Float32Array> {
    const info = this.data.info.layers[layer];
    const held = this.of(run);
    return Float32Array.from({ length: info.queries }, (_, query) => held.rowOf(layer, head, query)[k[0]]);
  }

  async tracks(run: string, _rev: number, layer: number, head: number): Promise<Float32Array> {
    const packed = this.of(run).head(layer, head)?.tracks;
    if (!packed) throw lacks("the tracks of this head");
    return new Float32Array(bytes(packed).buffer);
  }

  async peek(
    run: string,
    _rev: number,
    layer: number,
    head: number,
    rows: string,
    cols: string,
  ): Promise<CellPeek | PatchPeek> {
    if (rows.includes(":")) throw lacks("the cells behind a pixel");
    const [query, key] = [Number(rows), Number(cols)];
    const weight = this.of(run).rowOf(layer, head, query)[key];
    return { query, key, visible: true, weight, entropy: null, others: [] };
  }

  async link(run: string, _rev: number, layer: number, head: number): Promise<[number, number, number] | null> {
    return this.of(run).head(layer, head)?.link ?? null;
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
}
