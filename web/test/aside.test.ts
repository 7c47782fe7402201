import { describe, expect, test } from "vitest";
import { left, setAside, withoutFirst } from "../src/aside";
import { thumbWeight } from "../src/colors";
import type { Portraits } from "../src/source";
import { layer, run } from "./samples";

const code = (weight: number) => Math.round(2 + (Math.log(weight / 1e-7) / -Math.log(1e-7)) * 253);

describe("the first token set aside", () => {
  test("leaves the rest as if it were all, where there is a rest", () => {
    expect(left(0.8)).toBeCloseTo(0.2);
    expect(left(0)).toBe(1);
    expect(left(1)).toBe(1);
    expect(left(0.99999)).toBe(1);
  });

  test("is that of which the whole head gives it much, and for rollout all heads that are no memory's", () => {
    const open = run([layer(0), layer(1), layer(2, { cross: true })]);
    expect(setAside(open, 0, 0)).toBe(0); // nothing is known yet
    const heads = [
      [{ first: 0.2 }, { first: 0.31 }],
      [{ first: 0.6 }, { first: 0.4 }],
      [{ first: 0 }, { first: 0.3 }],
    ];
    open.portraits = { heads } as unknown as Portraits;
    expect([0, 1].map((head) => setAside(open, 0, head))).toEqual([0, 0.31]);
    expect(setAside(open, 2, 1)).toBe(0);
    expect(setAside(open, 0, 0, "rollout")).toBeCloseTo(1.51 / 4);
    expect(setAside(open, 0, 0, "looks")).toBe(0);
    expect(setAside(open, 9, 0)).toBe(0);
  });

  test("raises each row of a thumbnail of single keys by its own share", () => {
    const thumb = Uint8Array.of(code(0.8), code(0.15), code(0.05), 1, code(0.5), code(0.5), 0, 1, 255, 0, 0, 0);
    const found = withoutFirst(thumb, [3, 3], 4, 0.7, true, thumbWeight);
    expect([...found].filter((_, i) => i % 4 === 0)).toEqual([0, 0, 0]);
    expect(thumbWeight(found[1])).toBeCloseTo(0.75, 1);
    expect(thumbWeight(found[2]) / thumbWeight(found[1])).toBeCloseTo(1 / 3, 1);
    expect(found[3]).toBe(1); // beyond the map nothing changes
    expect(thumbWeight(found[5])).toBeCloseTo(1, 1);
    expect(found[6]).toBe(0); // masked stays masked
    expect([found[9], found[10]]).toEqual([0, 0]);
  });

  test("raises bins of several keys by what the head gives it in the mean", () => {
    const found = withoutFirst(Uint8Array.of(code(0.3), code(0.1)), [1, 2], 2, 0.5, false, thumbWeight);
    expect(thumbWeight(found[1])).toBeCloseTo(0.2, 1);
  });
});
