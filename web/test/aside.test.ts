import { describe, expect, test } from "vitest";
import { left, withoutFirst } from "../src/aside";
import { thumbWeight } from "../src/colors";

const code = (weight: number) => Math.round(2 + (Math.log(weight / 1e-7) / -Math.log(1e-7)) * 253);

describe("the first token set aside", () => {
  test("leaves the rest as if it were all, where there is a rest", () => {
    expect(left(0.8)).toBeCloseTo(0.2);
    expect(left(0)).toBe(1);
    expect(left(1)).toBe(1);
    expect(left(0.99999)).toBe(1);
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
