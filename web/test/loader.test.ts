import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Loader, tileKey, type Wanted } from "../src/loader";
import { hidden, ragged } from "../src/painter";
import { Refused, type TileData, type TileRef } from "../src/source";
import { layer, run, source } from "./samples";

interface Asked {
  ref: TileRef;
  signal: AbortSignal;
  done: (tile: Partial<TileData>) => void;
  failed: (error: unknown) => void;
}

let asked: Asked[] = [];
const tile = (x: number): TileRef => ({ run: "a", rev: 0, layer: 0, head: 0, lq: 0, lk: 0, y: 0, x, pool: "mean" });
const want = (...places: number[]): Wanted[] => places.map((x) => ({ ref: tile(x), distance: x }));
const settled = () => vi.advanceTimersByTimeAsync(0);

function loader(): Loader {
  return new Loader(
    source({
      tile: (ref, signal) =>
        new Promise((done, failed) => {
          const answer = (found: Partial<TileData>) => done({ values: new Float32Array(1), estimate: false, ...found });
          asked.push({ ref, signal, done: answer, failed });
          signal.addEventListener("abort", () => failed(new DOMException("aborted", "AbortError")));
        }),
    }),
  );
}

beforeEach(() => {
  asked = [];
  vi.useFakeTimers();
  vi.stubGlobal("window", globalThis);
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("four at a time, the nearest first, and each once", async () => {
  const tiles = loader();
  tiles.want(tiles, want(9, 3, 7, 1, 5, 2), 6);
  expect(asked.map(({ ref }) => ref.x)).toEqual([1, 2, 3, 5]);
  tiles.want(tiles, want(9, 3, 7, 1, 5, 2), 6);
  expect(asked).toHaveLength(4);
  asked[0].done({});
  await settled();
  expect(asked.map(({ ref }) => ref.x)).toEqual([1, 2, 3, 5, 7]);
  expect(tiles.get(tile(1))?.estimate).toBe(false);
});

test("what nobody looks at any more is aborted, unless another map still does", () => {
  const tiles = loader();
  const other = {};
  tiles.want(tiles, want(1, 2), 2);
  tiles.want(other, want(2), 1);
  tiles.forget(tiles);
  expect(asked.map(({ ref, signal }) => [ref.x, signal.aborted])).toEqual([
    [1, true],
    [2, false],
  ]);
  expect(tiles.aborts).toBe(1);
});

test("a failure is kept, and not asked for again until Retry", async () => {
  const tiles = loader();
  const arrivals = vi.fn();
  tiles.onArrival(arrivals);
  tiles.want(tiles, want(1), 1);
  asked[0].failed(new Error("broken"));
  await settled();
  expect(tiles.failures.get(tileKey(tile(1)))).toBe("broken");
  expect(arrivals).toHaveBeenCalledTimes(1);
  tiles.want(tiles, want(1), 1);
  expect(asked).toHaveLength(1);
  tiles.retry();
  expect(asked).toHaveLength(2);
});

test("a server that has too much to do is left alone for as long as it says", async () => {
  const tiles = loader();
  tiles.want(tiles, want(1), 1);
  asked[0].failed(new Refused(503, { error: "busy", expected: "", got: "", try: "" }, 3));
  await settled();
  expect(tiles.failures.size).toBe(0);
  await vi.advanceTimersByTimeAsync(2900);
  expect(asked).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(200);
  expect(asked).toHaveLength(2);
});

test("an estimate is shown, and asked for again after a while, behind all others", async () => {
  const tiles = loader();
  tiles.want(tiles, want(1), 1);
  asked[0].done({ estimate: true });
  await settled();
  expect(tiles.get(tile(1))?.estimate).toBe(true);
  tiles.want(tiles, want(1, 2, 3, 4, 5), 5);
  expect(asked.map(({ ref }) => ref.x)).toEqual([1, 2, 3, 4, 5]);
  asked[1].done({});
  await vi.advanceTimersByTimeAsync(1600);
  expect(asked.at(-1)!.ref.x).toBe(1);
});

test("what was shown longest ago is dropped first", async () => {
  const tiles = loader();
  for (let x = 0; x < 129; x++) {
    tiles.want(tiles, want(x), 1);
    asked[x].done({});
    await settled();
    tiles.get(tile(0)); // shown all the time
  }
  expect(tiles.kept.size).toBe(128);
  expect(tiles.get(tile(0))).toBeDefined();
  expect(tiles.get(tile(1))).toBeUndefined();
});

test("tiles above a causal diagonal are not asked for", () => {
  const causal = { run: run([layer(0, { causal: true, queries: 1000, keys: 1000 })]), layer: 0, head: 0 };
  const hides = (lq: number, y: number, x: number) => hidden(causal, lq, lq, y, x);
  expect([hides(0, 0, 0), hides(0, 0, 1), hides(0, 1, 1), hides(0, 1, 2), hides(1, 0, 1)]).toEqual([
    false,
    true,
    false,
    true,
    true,
  ]);
  const free = { run: run([layer(0, { queries: 1000, keys: 1000 })]), layer: 0, head: 0 };
  expect(hidden(free, 0, 0, 0, 3)).toBe(false);
});

test("the last bin of a map ends with the map", () => {
  expect(ragged(1000, 3, 0, 125)).toBe(0);
  expect(ragged(1001, 3, 0, 126)).toBeCloseTo(7 / 8);
  expect(ragged(600, 0, 2, 88)).toBe(0);
});
