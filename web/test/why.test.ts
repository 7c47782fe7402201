import { describe, expect, test } from "vitest";
import { most } from "../src/everyhead";
import { decode } from "../src/state";
import { fitWall } from "../src/wallfit";
import { editWords } from "../src/whystate";

describe("the wall", () => {
  test.each([
    [30, 9, 42],
    [32, 32, 24],
    [6, 12, 60],
  ])("%i layers of %i heads are on one screen of a laptop", (layers, heads, least) => {
    const { side, columns } = fitWall({ width: 1412, height: 700, layers, heads, byLayer: true });
    expect(side).toBeGreaterThanOrEqual(least);
    expect(columns * (30 + heads * (side + 6))).toBeLessThanOrEqual(1412);
    expect(Math.ceil(layers / columns) * (side + 6 + (side >= 40 ? 14 : 0))).toBeLessThanOrEqual(
      layers > 31 ? 990 : 700,
    );
  });

  test("a phone gets heads that a finger can hit", () => {
    expect(fitWall({ width: 360, height: 500, layers: 30, heads: 9, byLayer: false }).side).toBeGreaterThanOrEqual(24);
  });

  test("what is scrolled on a phone is as wide as the phone", () => {
    const { side, columns } = fitWall({ width: 362, height: 330, layers: 30, heads: 9, byLayer: true });
    expect({ side, columns }).toEqual({ side: 30, columns: 1 });
    expect(fitWall({ width: 362, height: 330, layers: 30, heads: 12, byLayer: true }).side).toBe(24);
  });
});

describe("what a query looks at most", () => {
  test("is not the first token, where there is another", () => {
    expect(
      most([
        [0, 0.9],
        [4, 0.05],
      ]),
    ).toEqual({ value: 0.05, key: 4 });
    expect(most([[0, 1]])).toEqual({ value: 1, key: 0 });
    expect(most([])).toEqual({ value: null, key: null });
  });
});

describe("edits", () => {
  test.each([
    ["ablate:23.3", "without layer 23 head 3"],
    ["cut:23.3:q13:k9", "layer 23 head 3, 13 → 9 cut"],
    ["cut:*.*:k0-3", "all heads, all → 0 to 3 cut"],
    ["scale:5.*:x0.5", "layer 5 scaled × 0.5"],
    ["boost:5.1:k9:x2", "layer 5 head 1, all → 9 boosted × 2"],
  ])("%s reads %s", (what, words) => expect(editWords(what)).toBe(words));

  test("that nobody offers are left out of an address, and said", () => {
    const { state, notices } = decode("#v=2&edits=ablate:1.2,patch:1.2,cut:1&marks=1~2~x");
    expect(state.edits).toEqual([{ what: "ablate:1.2", on: true }]);
    expect(state.marks).toEqual([]);
    expect(notices).toHaveLength(2);
  });
});
