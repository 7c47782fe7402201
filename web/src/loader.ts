// Tiles: at most four requests at a time, the nearest to the pointer first; what nobody looks at any more is aborted.

import { clamp } from "./dom";
import { aborted, Refused, type Source, sentence, type TileData, type TileRef } from "./source";

const AT_ONCE = 4;
// A usual screen shows about 20 tiles; the rest is for going back. A large one keeps twice what it shows, within bounds.
const KEPT = 128;
const MOST = 256; // 64 MiB
// All maps on the screen together show fewer than are kept: what is shown and yet dropped would be asked for again, for
// ever. The difference of two heads needs this many on a screen of 3840 x 2160.
export const SHOWN = 252;

export interface Wanted {
  ref: TileRef;
  distance: number;
}

export function tileKey(t: TileRef): string {
  return `${t.run}/${t.rev}/${t.layer}/${t.head}/${t.lq}/${t.lk}/${t.y}/${t.x}/${t.pool}`;
}

export class Loader {
  readonly kept = new Map<string, TileData>();
  failures = new Map<string, string>();
  aborts = 0;
  private wanted = new Map<object, Wanted[]>();
  private shown = new Map<object, number>();
  private running = new Map<string, AbortController>();
  private listeners = new Set<() => void>();
  private pause = 0;

  constructor(private source: Source) {}

  onArrival(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  // The tile, if it is here; asking makes it the last to be dropped.
  get(ref: TileRef): TileData | undefined {
    const key = tileKey(ref);
    const tile = this.kept.get(key);
    if (tile) {
      this.kept.delete(key);
      this.kept.set(key, tile);
    }
    return tile;
  }

  // What one map needs now, of how many it shows; whatever it wanted before is forgotten.
  want(owner: object, tiles: Wanted[], shown: number): void {
    this.wanted.set(owner, tiles);
    this.shown.set(owner, shown);
    const needed = new Set<string>();
    for (const list of this.wanted.values()) for (const { ref } of list) needed.add(tileKey(ref));
    for (const [key, controller] of this.running) {
      if (!needed.has(key)) {
        controller.abort();
        this.running.delete(key);
        this.aborts++;
      }
    }
    this.start();
  }

  forget(owner: object): void {
    this.want(owner, [], 0);
    this.wanted.delete(owner);
    this.shown.delete(owner);
  }

  retry(): void {
    this.failures.clear();
    this.start();
  }

  get busy(): boolean {
    return this.running.size > 0;
  }

  private start(): void {
    if (performance.now() < this.pause) return;
    while (this.running.size < AT_ONCE) {
      const next = this.next();
      if (!next) return;
      void this.fetch(next);
    }
  }

  private next(): TileRef | null {
    let best: Wanted | null = null;
    for (const list of this.wanted.values()) {
      for (const wanted of list) {
        const key = tileKey(wanted.ref);
        const kept = this.kept.get(key);
        if ((kept && !kept.estimate) || this.running.has(key) || this.failures.has(key)) continue;
        // An estimate is on the screen already: it is asked for again, but last, and not at once.
        const late = kept?.estimate ? 1e9 : 0;
        if (late && performance.now() < (this.again.get(key) ?? 0)) continue;
        if (!best || wanted.distance + late < best.distance)
          best = { ref: wanted.ref, distance: wanted.distance + late };
      }
    }
    return best?.ref ?? null;
  }

  private again = new Map<string, number>();

  private async fetch(ref: TileRef): Promise<void> {
    const key = tileKey(ref);
    const controller = new AbortController();
    this.running.set(key, controller);
    try {
      const tile = await this.source.tile(ref, controller.signal);
      this.put(key, tile);
      if (tile.estimate) this.later(key, 1500);
      else this.again.delete(key);
    } catch (error) {
      if (aborted(error)) return;
      if (error instanceof Refused && (error.status === 503 || error.status === 429)) {
        this.pause = performance.now() + 1000 * Math.max(1, error.retryAfter);
        window.setTimeout(() => this.start(), 1000 * Math.max(1, error.retryAfter) + 10);
      } else {
        this.failures.set(key, sentence(error));
      }
    } finally {
      if (this.running.get(key) === controller) this.running.delete(key);
    }
    for (const listener of [...this.listeners]) listener();
    this.start();
  }

  private later(key: string, wait: number): void {
    this.again.set(key, performance.now() + wait);
    window.setTimeout(() => this.start(), wait + 20);
  }

  private put(key: string, tile: TileData): void {
    this.kept.delete(key);
    this.kept.set(key, tile);
    let shown = 0;
    for (const count of this.shown.values()) shown += count;
    const limit = clamp(2 * shown, KEPT, MOST);
    while (this.kept.size > limit) this.kept.delete(this.kept.keys().next().value!);
  }
}
