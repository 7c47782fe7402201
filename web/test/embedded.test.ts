import { describe, expect, test } from "vitest";
import { thumbWeight } from "../src/colors";
import { EmbeddedSource } from "../src/embedded";
import type { TileRef } from "../src/source";
import { embedded, info, layer, packed } from "./samples";

const REF: TileRef = { run: "abc", rev: 0, layer: 0, head: 0, lq: 0, lk: 0, y: 0, x: 0, pool: "mean" };

describe("a report", () => {
  test("has the rows of a head that is there cell by cell", async () => {
    const source = new EmbeddedSource(embedded());
    const row = await source.row("", 0, 0, 0, [1]);
    expect(row[0]).toBeCloseTo(1e-7, 12);
    expect(row[1]).toBeCloseTo(thumbWeight(200), 6);
    expect(row[2]).toBeNaN();
    const both = await source.row("", 0, 0, 0, [0, 3]);
    expect(both[0]).toBeCloseTo(1 + thumbWeight(90), 6);
    const column = await source.column("", 0, 0, 0, [1]);
    expect(column[0]).toBeNaN();
    expect([...column.slice(1)]).toEqual([thumbWeight(200), 0, thumbWeight(80)].map((x) => expect.closeTo(x, 6)));
  });

  test("pools its cells into coarser tiles: a mean of what is visible, or the largest", async () => {
    const source = new EmbeddedSource(embedded());
    const { values: mean } = await source.tile({ ...REF, lq: 1, lk: 1 });
    expect(mean![0]).toBeCloseTo((1 + 1e-7 + thumbWeight(200)) / 3, 6);
    expect(mean![1]).toBeNaN(); // both queries see nothing there
    expect(mean![2]).toBeNaN(); // beside the map
    const { values: max } = await source.tile({ ...REF, lq: 2, lk: 2, pool: "max" });
    expect(max![0]).toBeCloseTo(1, 6);
  });

  test("of a short text has every weight as it is", async () => {
    const weights = Float32Array.from({ length: 16 }, (_, i) => (i % 4 > i >> 2 ? NaN : 0.9 + i / 1000));
    const head = { levels: [0, 0] as [number, number], exact: packed(new Uint8Array(weights.buffer)) };
    const source = new EmbeddedSource(embedded({ heads: { "0/0": head, "0/1": head } }));
    expect(source.exact).toBe(true);
    expect(source.held(0, 0, 2, 1)).toEqual({ weight: weights[9], exact: true });
    expect([...(await source.row("", 0, 0, 0, [2]))]).toEqual([...weights.slice(8, 12)]);
    const { values } = await source.tile(REF);
    expect([values![0], values![1], values![256]]).toEqual([weights[0], NaN, weights[4]]);
  });

  test("of a longer text has about the weights of its map, and exactly the strongest", async () => {
    const data = embedded();
    const keys = new Int32Array(4 * 8).fill(-1);
    const weights = new Float32Array(4 * 8);
    keys[8] = 1;
    weights[8] = 0.0215;
    data.heads["0/0"].top = {
      keys: packed(new Uint8Array(keys.buffer)),
      weights: packed(new Uint8Array(weights.buffer)),
    };
    const source = new EmbeddedSource(data);
    expect(source.held(0, 0, 1, 1)).toEqual({ weight: weights[8], exact: true });
    expect(source.held(0, 0, 3, 1)).toEqual({ weight: thumbWeight(80), exact: false });
    expect((await source.row("", 0, 0, 0, [1]))[1]).toBe(weights[8]);
  });

  test("shows a head that was not chosen by its thumbnail", async () => {
    const source = new EmbeddedSource(embedded());
    const { values } = await source.tile({ ...REF, head: 1 });
    expect([values![0], values![256]]).toEqual([thumbWeight(100), thumbWeight(100)].map((x) => expect.closeTo(x, 9)));
    expect(values![1]).toBeNaN();
  });

  test("has of a long head its strongest keys, and no finer cells than it holds", async () => {
    const keys = new Int32Array(100 * 8).fill(-1);
    const weights = new Float32Array(100 * 8);
    keys.set([7, 3], 5 * 8);
    weights.set([0.977, 0.002], 5 * 8);
    const data = embedded({ info: info([layer(0, { queries: 100, keys: 100 })], { tokens: 100 }) });
    const picture = packed(new Uint8Array(50 * 50).fill(9));
    const top = { keys: packed(new Uint8Array(keys.buffer)), weights: packed(new Uint8Array(weights.buffer)) };
    data.heads = { "0/0": { levels: [1, 1], mean: picture, top } };
    const source = new EmbeddedSource(data);
    expect(source.floor(0, 0)).toEqual([1, 1]);
    const row = await source.row("", 0, 0, 0, [5]);
    expect([row[7], row[3], row[0]]).toEqual([expect.closeTo(0.977, 6), expect.closeTo(0.002, 6), 0]);
    expect(source.held(0, 0, 5, 7)).toEqual({ weight: expect.closeTo(0.977, 6), exact: true });
    expect(source.held(0, 0, 5, 8)).toBeNull();
    expect(source.exact).toBe(false);
    await expect(source.tile(REF)).rejects.toThrow("does not hold finer cells");
    await expect(source.row("", 0, 0, 1, [5])).rejects.toThrow("does not hold the rows");
  });

  test("says what it lacks, and where that is", async () => {
    const source = new EmbeddedSource(embedded());
    await expect(source.rollout()).rejects.toMatchObject({
      sentence: "This page does not hold rollout. Try: open the run in sightline serve",
    });
    await expect(source.peek("", 0, 0, 0, "0:2", "0:2")).rejects.toThrow("behind a pixel");
    expect(await source.link("", 0, 0, 0)).toEqual([1, 0, 0.5]);
    expect(await source.link("", 0, 0, 1)).toBeNull();
  });

  test("has the tokens of the memory where there is one", async () => {
    const memory = { texts: ["x", "y"], kinds: [1, 0] };
    const source = new EmbeddedSource(embedded({ memory }));
    expect(await source.tokens("", 0, 1, 2, true)).toEqual({ from: 1, to: 2, texts: ["y"], kinds: [0] });
    expect((await source.tokens("", 0, 0, 2, false)).texts).toEqual(["a", "b"]);
  });
});
