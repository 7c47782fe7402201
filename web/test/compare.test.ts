import { batch, signal } from "@preact/signals-core";
import { describe, expect, test, vi } from "vitest";
import { onChange } from "../src/changes";
import { Grid } from "../src/grid";
import { number, poolingNote } from "../src/legend";
import { aligned, Pairing, samePlace, sameTokens } from "../src/pairs";
import type { OpenRun } from "../src/run";
import { SPECIAL, Tokens } from "../src/tokens";
import { layer, run } from "./samples";

const tokens = (...texts: string[]) => {
  const made = new Tokens(texts.length, async () => ({ from: 0, to: 0, texts: [], kinds: [] }));
  texts.forEach((text, i) => {
    made.texts[i] = text;
    made.kinds[i] = /^\[.*\]$/.test(text) ? SPECIAL : 0;
  });
  return made;
};

describe("two texts", () => {
  test("in other tokens are aligned by their letters", () => {
    const pieces = tokens("[CLS]", "un", "believ", "able", "the", "kids", "[SEP]");
    const words = tokens("Unbelievable", " the", " kids");
    expect(aligned(pieces, words)).toEqual([0, 0, 0, 0, 1, 2, 2]);
    expect(aligned(words, pieces)).toEqual([2, 4, 5]);
  });

  test("have their special tokens beside each other", () => {
    const [a, b] = [tokens("[CLS]", "a", "b", "[SEP]"), tokens("[BOS]", "[USER]", "ab", "[EOS]")];
    expect(aligned(a, b)).toEqual([0, 2, 2, 3]);
    expect(aligned(b, a)).toEqual([0, 0, 1, 3]);
  });

  test("of other letters are aligned where they are the same, and nowhere else", () => {
    const [kids, lions] = [tokens("[CLS]", "the", "kids", "left", "."), tokens("the", "big", "lions", "le", "ft.")];
    expect(aligned(kids, lions)).toEqual([0, 0, null, 3, 4]);
    expect(aligned(lions, kids)).toEqual([1, null, null, 3, 3]);
    expect(aligned(tokens("one", "two"), tokens("six", "ten"))).toEqual([null, null]);
    expect(aligned(tokens("", ""), tokens("", "", ""))).toEqual([null, null]);
  });

  test("of which one was written on stay where they were", () => {
    const [short, long] = [tokens("so", "they"), tokens("so", "the", "y", "left", "so", "they")];
    expect(aligned(short, long)).toEqual([0, 1]);
    expect(aligned(long, short)).toEqual([0, 1, 1, null, null, null]);
  });

  test("of which one lost its accents are of the same letters", () => {
    expect(aligned(tokens("Le", " caf\u00e9", " noir"), tokens("le", "cafe", "noir"))).toEqual([0, 1, 2]);
  });
});

describe("two maps", () => {
  const short = { queries: 10, keys: 10 };
  const long = { queries: 40, keys: 20 };
  const head = (open: OpenRun, index = 0) => ({ run: open, layer: index, head: 0 });
  const across = (from: number, pairing: Pairing, cells: number[]) => cells.map((i) => pairing.query(from, i));

  test("of one run point at the same cell", () => {
    const open = run();
    expect(across(1, new Pairing([head(open), head(open, 1)]), [0, 1, 2, 3])).toEqual([0, 1, 2, 3]);
  });

  test("of one text point at the same letters", () => {
    const [a, b] = [run(), run([layer(0, { queries: 5, keys: 5 })])];
    Object.assign(b, { tokens: tokens("The", "ki", "ds", "were", ".") });
    const pairing = new Pairing([head(a), head(b)]);
    expect(across(0, pairing, [0, 1, 2, 3])).toEqual([0, 1, 3, 4]);
    expect([0, 1, 2, 3, 4].map((i) => pairing.key(1, i))).toEqual([0, 1, 1, 2, 3]);
  });

  test("of two texts point nowhere rather than somewhere", () => {
    const [a, b] = [run(), run([layer(0, { queries: 8, keys: 2 })])];
    Object.assign(b, { tokens: tokens(..."abcdefgh") });
    const pairing = new Pairing([head(a), head(b)]);
    expect(across(0, pairing, [0, 1, 2, 3])).toEqual([null, null, null, null]);
    expect([pairing.key(0, 3), pairing.key(1, 1), pairing.none]).toEqual([null, null, true]);
  });

  test("show the same part, one zoomed in further where it is shorter", () => {
    const place = { row: 5, col: 5, zoom: 1 };
    expect(samePlace(place, short, short)).toEqual(place);
    expect(samePlace(place, short, long)).toEqual({ row: 20, col: 10, zoom: 0 });
  });

  test("have a difference only of the same tokens", () => {
    const [a, b] = [run(), run()];
    expect(sameTokens(head(a), head(a, 1))).toBe(true);
    expect(sameTokens(head(a), head(b))).toBe(true);
    b.tokens.texts[3] = "!";
    expect(sameTokens(head(a), head(b))).toBe(false);
    expect(sameTokens(head(a), head(run([layer(0, { keys: 5 })])))).toBe(false);
  });
});

describe("the legend", () => {
  test("says how a pixel is made of cells", () => {
    const grid = Object.assign(new Grid(1000, 1000), { width: 500, height: 500 });
    expect(poolingNote(grid, "mean")).toBe("one cell, one weight");
    grid.zoom = -3;
    expect(poolingNote(grid, "mean")).toBe("mean of 8 × 8: one weight of 1 shows as 0.016. M = max");
    expect(poolingNote(grid, "max")).toBe("largest of 8 × 8. M = mean");
  });

  test.each([
    [1, "1"],
    [0.123456, "0.123"],
    [1e-5, "1e-5"],
    [2.5e-7, "2.5e-7"],
  ])("writes a bound of %d as it would be typed", (x, text) => {
    expect(number(x)).toBe(text);
    expect(Number(number(x))).toBeCloseTo(x, 3);
  });
});

describe("listening", () => {
  test("begins with the first change, and tells what was before", () => {
    const told = vi.fn();
    const value = signal(1);
    const stop = onChange(value, told);
    value.value = 1;
    expect(told).not.toHaveBeenCalled();
    value.value = 2;
    stop();
    value.value = 3;
    expect(told.mock.calls).toEqual([[2, 1]]);
  });

  test("hears of what changes at once when all of it has", () => {
    const [run, head] = [signal("a"), signal(0)];
    const seen: unknown[] = [];
    onChange(run, () => seen.push([run.value, head.value]));
    onChange(head, () => seen.push([run.value, head.value]));
    batch(() => {
      head.value = 7;
      run.value = "b";
    });
    expect(seen).toEqual([
      ["b", 7],
      ["b", 7],
    ]);
  });

  test("is to one value, whatever else is read", () => {
    const [value, other] = [signal(0), signal(0)];
    const told = vi.fn(() => other.value);
    onChange(value, told);
    value.value = 1;
    other.value = 1;
    expect(told).toHaveBeenCalledTimes(1);
  });

  test("of one that fails does not keep others from hearing", () => {
    const value = signal(0);
    const told = vi.fn();
    onChange(value, () => {
      throw new Error("broken");
    });
    onChange(value, told);
    expect(() => {
      value.value = 1;
    }).toThrow("broken");
    expect(told).toHaveBeenCalledTimes(1);
  });
});
