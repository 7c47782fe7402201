import { describe, expect, test, vi } from "vitest";
import type { Portraits } from "../src/source";
import { summary } from "../src/summary";
import { layer, run } from "./samples";

const MEASURES = {
  entropy: 1,
  spread: 3.1,
  focus: 0.6,
  first: 0.12,
  previous: 0.1,
  same: 0,
  distance: 2,
  induction: 0,
};

describe("an open run", () => {
  test("asks for a row once, and again if that failed", async () => {
    const row = vi.fn(async () => Float32Array.of(1));
    row.mockRejectedValueOnce(new Error("gone"));
    const open = run(undefined, { row });
    await expect(open.row(0, 1, [2])).rejects.toThrow("gone");
    await Promise.all([open.row(0, 1, [2]), open.row(0, 1, [2])]);
    expect(row).toHaveBeenCalledTimes(2);
    expect(row).toHaveBeenLastCalledWith("abc", 0, 0, 1, [2]);
    for (let q = 0; q < 48; q++) await open.row(0, 0, [q]); // only so many are kept
    await open.row(0, 1, [2]);
    expect(row).toHaveBeenCalledTimes(51);
  });

  test("says by reason who was not seen", () => {
    const open = run();
    expect(open.unseenByReason()).toEqual([]);
    Object.assign(open.info.unseen, { "layers.0": "by hand", head: "torch.jit made it", "layers.1": "by hand" });
    expect(open.unseenByReason()).toEqual([
      ["by hand", ["layers.0", "layers.1"]],
      ["torch.jit made it", ["head"]],
    ]);
  });

  test("finds the thumbnail of a head among all layers", async () => {
    const bytes = Uint8Array.from({ length: 5 * 64 * 64 }, (_, i) => Math.floor(i / (64 * 64)));
    const layers = [layer(0, { heads: 3 }), layer(1, { queries: 100, keys: 65 })];
    const open = run(layers, { thumbs: async () => ({ bytes, estimate: true }) });
    expect(open.thumb(1, 1)).toBeNull();
    expect(await open.loadThumbs()).toBe(true);
    expect([open.thumb(0, 2)![0], open.thumb(1, 1)![0]]).toEqual([2, 4]);
    expect([open.thumbSize(0), open.thumbSize(1)]).toEqual([
      [4, 4],
      [50, 33],
    ]);
  });

  test("keeps thumbnails at the length of the run they were made of, until those of the grown one are there", async () => {
    const thumbs = async () => ({ bytes: new Uint8Array(2 * 64 * 64), estimate: false });
    const before = run([layer(0, { queries: 6, keys: 6 })], { thumbs });
    await before.loadThumbs();
    const after = run([layer(0, { queries: 16, keys: 16 })], { thumbs });
    after.inherit(before);
    expect(after.thumbSize(0)).toEqual([6, 6]);
    await after.loadThumbs();
    expect(after.thumbSize(0)).toEqual([16, 16]);
  });

  test("calls layers and heads by the model's own numbers", () => {
    const open = run([layer(0, { number: 3, numbers: [5, 7] })]);
    expect(open.name(0, 1)).toBe("layer 3 head 7");
    expect(open.short(0, 1)).toBe("L3 H7");
  });

  test("calls keys of a memory without words by their positions", () => {
    const open = run([layer(0), layer(1, { cross: true, keys: 8 })]);
    expect(open.keyTokens(0)).toBe(open.tokens);
    expect(open.keyTokens(1).label(2)).toBe("#2");
  });

  test("keeps what was known of it when it grows", () => {
    const [before, after] = [run(), run()];
    after.tokens.texts.fill("");
    before.portraits = { complete: true } as Portraits;
    after.inherit(before);
    expect(after.tokens.text(1)).toBe(" kids");
    expect(after.portraits).toBe(before.portraits);
  });
});

describe("a head in a sentence", () => {
  test.each([
    [{}, "focused"],
    [{ first: 0.7 }, "on the first token"],
    [{ previous: 0.5 }, "previous-token"],
    [{ induction: 0.6 }, "induction"],
    [{ focus: 0.2 }, "broad"],
  ])("is of a kind: %j", (change, kind) => {
    const open = run();
    const heads = [[{ ...MEASURES, ...change }]];
    open.portraits = { heads, measures: [], similar: [], first: [0, 0], complete: true };
    expect(summary(open, 0, 0, null)).toContain(`4 tokens, ${kind}: entropy 1.0 of 3.1`);
  });

  test("names its strongest link", () => {
    const open = run();
    open.portraits = { heads: [[MEASURES]], measures: [], similar: [], first: [0, 0], complete: true };
    expect(summary(open, 0, 0, [2, 1, 0.81])).toBe(
      "4 tokens, focused: entropy 1.0 of 3.1; 12\u00a0% first token; strongest “were” → “kids” 0.810",
    );
    expect(summary(run(), 0, 0, null)).toBe("4 tokens, broad");
  });
});
