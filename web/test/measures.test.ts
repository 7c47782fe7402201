import { describe, expect, test } from "vitest";
import { extra, filled, said, written } from "../src/measures";
import type { Measure } from "../src/source";

function measure(change: Partial<Measure> = {}): Measure {
  return {
    name: "distance_variance",
    label: "variance of the distance",
    unit: "tokens²",
    about: "",
    range: null,
    ...change,
  };
}

describe("a measure", () => {
  test("beyond the usual ones is offered", () => {
    expect(extra([measure({ name: "focus" }), measure(), measure({ name: "distance" })])).toEqual([measure()]);
  });

  test.each([
    [null, 7, 0],
    [[0, 1], 0.25, 0.25],
    [[0, 1], 1.5, 1],
    [[2, 6], 3, 0.25],
    [[2, 6], 1, 0],
  ] as [[number, number] | null, number, number][])("fills a bar of %j", (range, value, part) => {
    expect(filled(measure({ range }), value)).toBe(part);
  });

  test.each([
    [[0, 1], 0.254, "25 %"],
    [null, 15161.04, "15,161"],
    [null, 12.34, "12.3"],
    [null, 0, "0.0"],
    [null, 0.01234, "0.0123"],
    [[0, 8], -3.5, "-3.5"],
  ] as [[number, number] | null, number, string][])("reads %j: %f", (range, value, text) => {
    expect(written(measure({ range }), value)).toBe(text);
  });

  test("says what it is", () => {
    expect(said(measure())).toBe("variance of the distance, in tokens²");
    expect(said(measure({ about: "how spread out", unit: "" }))).toBe("how spread out");
  });
});
