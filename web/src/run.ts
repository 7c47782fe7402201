// A run that is open in the page: what is known of it, fetched once.

import { thumbWeight } from "./colors";
import type { LayerInfo, Measure, Portraits, RunInfo, Source } from "./source";
import { Tokens } from "./tokens";

export const THUMB = 64;

export class OpenRun {
  readonly tokens: Tokens;
  readonly memory: Tokens | null;
  portraits: Portraits | null = null;
  private thumbBytes: Uint8Array | null = null;
  private thumbsOf: RunInfo; // of a run that grows: as long as it was when they were made
  private nameless: Tokens | null = null;
  private starts: number[] = [];
  private rows = new Map<string, Promise<Float32Array>>();

  constructor(
    readonly source: Source,
    readonly info: RunInfo,
  ) {
    this.thumbsOf = info;
    this.tokens = Tokens.of(source, info.id, info.revision, info.tokens, false);
    this.memory =
      info.memory_tokens === null ? null : Tokens.of(source, info.id, info.revision, info.memory_tokens, true);
    let start = 0;
    for (const layer of info.layers) {
      this.starts.push(start);
      start += layer.heads;
    }
  }

  get id(): string {
    return this.info.base ?? this.info.id;
  }

  // What is asked for: a reading of a run has an id of its own.
  get asked(): string {
    return this.info.id;
  }

  // What its cells are; null for weights.
  get reading(): { most: number; signed: boolean } | null {
    const { of, most, signed } = this.info;
    return of === "weights" || of === undefined ? null : { most: most || 1, signed };
  }

  get rev(): number {
    return this.info.revision;
  }

  // What was known of the run before it grew, until it is known anew.
  inherit(before: OpenRun): void {
    this.portraits = before.portraits;
    this.thumbBytes = before.thumbBytes;
    this.thumbsOf = before.thumbsOf;
    for (let i = 0; i < Math.min(before.tokens.length, this.tokens.length); i++) {
      this.tokens.texts[i] = before.tokens.texts[i];
      this.tokens.kinds[i] = before.tokens.kinds[i];
    }
  }

  // Who attended without being seen, by why: most of them share a reason.
  unseenByReason(): [string, string[]][] {
    const groups = new Map<string, string[]>();
    for (const [name, why] of Object.entries(this.info.unseen)) {
      const names = groups.get(why);
      if (names) names.push(name);
      else groups.set(why, [name]);
    }
    return [...groups];
  }

  layer(index: number): LayerInfo {
    return this.info.layers[Math.min(index, this.info.layers.length - 1)];
  }

  keyTokens(layer: number): Tokens {
    const { cross, keys } = this.layer(layer);
    if (!cross) return this.tokens;
    // Keys of a memory are no words of this text: where their own are not known, they are positions.
    this.nameless ??= new Tokens(keys, async (from, to) => ({ from, to, texts: [], kinds: [] }));
    return this.memory ?? this.nameless;
  }

  get longest(): number {
    return Math.max(...this.info.layers.map((layer) => layer.keys));
  }

  async loadPortraits(): Promise<void> {
    this.portraits = await this.source.portraits(this.asked, this.rev);
  }

  async loadThumbs(): Promise<boolean> {
    const { bytes, estimate } = await this.source.thumbs(this.asked, this.rev);
    this.thumbBytes = bytes;
    this.thumbsOf = this.info;
    return estimate;
  }

  thumb(layer: number, head: number): Uint8Array | null {
    if (!this.thumbBytes) return null;
    const start = (this.starts[layer] + head) * THUMB * THUMB;
    return this.thumbBytes.subarray(start, start + THUMB * THUMB);
  }

  // The layer as it was when its thumbnails were made.
  thumbOf(layer: number): LayerInfo {
    return this.thumbsOf.layers[layer] ?? this.layer(layer);
  }

  // How many of the 64 bins the map fills, each way.
  thumbSize(layer: number): [number, number] {
    const { queries, keys } = this.thumbOf(layer);
    return [queries, keys].map((n) => Math.ceil(n / 2 ** Math.max(0, Math.ceil(Math.log2(n / THUMB))))) as [
      number,
      number,
    ];
  }

  thumbLargest(layer: number, head: number): number {
    const thumb = this.thumb(layer, head);
    return thumb ? thumbWeight(thumb.reduce((a, b) => Math.max(a, b), 0)) : NaN;
  }

  measure(layer: number, head: number, name: string): number | null {
    return this.portraits?.heads[layer]?.[head]?.[name] ?? null;
  }

  // What the first token takes of a head; 0 where that is not known.
  sink(layer: number, head: number): number {
    return this.measure(layer, head, "first") ?? 0;
  }

  // The same of all heads in the mean, but for those that look at a memory.
  get sinkOfAll(): number {
    const own = this.info.layers.filter((layer) => !layer.cross);
    const shares = own.flatMap(({ index, heads }) =>
      Array.from({ length: heads }, (_, head) => this.sink(index, head)),
    );
    return shares.length ? shares.reduce((a, b) => a + b, 0) / shares.length : 0;
  }

  // What a portrait lists: the server says what there is, and how it is called.
  get measures(): Measure[] {
    return this.portraits?.measures ?? [];
  }

  name(layer: number, head: number): string {
    return `layer ${this.layer(layer).number} head ${this.layer(layer).numbers[head] ?? head}`;
  }

  short(layer: number, head: number): string {
    return `L${this.layer(layer).number} H${this.layer(layer).numbers[head] ?? head}`;
  }

  // A row, kept: views ask for the same one at the same time.
  row(layer: number, head: number, q: number[]): Promise<Float32Array> {
    return this.kept(`r${layer}/${head}/${q.join()}`, () => this.source.row(this.asked, this.rev, layer, head, q));
  }

  column(layer: number, head: number, k: number): Promise<Float32Array> {
    return this.kept(`c${layer}/${head}/${k}`, () => this.source.column(this.asked, this.rev, layer, head, [k]));
  }

  tracks(layer: number, head: number): Promise<Float32Array> {
    return this.kept(`t${layer}/${head}`, () => this.source.tracks(this.asked, this.rev, layer, head));
  }

  rollout(q: number[]): Promise<Float32Array> {
    return this.kept(`o${q.join()}`, () => this.source.rollout(this.id, this.rev, q));
  }

  private kept(key: string, fetch: () => Promise<Float32Array>): Promise<Float32Array> {
    let found = this.rows.get(key);
    if (found) {
      this.rows.delete(key);
    } else {
      found = fetch();
      found.catch(() => this.rows.delete(key));
    }
    this.rows.set(key, found);
    if (this.rows.size > 48) this.rows.delete(this.rows.keys().next().value!);
    return found;
  }
}
