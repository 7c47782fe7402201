import { describe, expect, test } from "vitest";
import { strongest } from "../src/links";
import { type Chosen, Shading, topOf } from "../src/shading";

const LOOKS: Chosen = { shade: "looks", layer: 0, q: [3], k: null };
const name = (i: number) => `t${i}`;

describe("shading", () => {
  test("is relative to the strongest, and leaves out what would hardly be seen", () => {
    const shading = new Shading(Float32Array.of(0.1, 0.5, 0.4, 0.0001, 0), LOOKS);
    expect(shading.strength(1)).toBe(1);
    expect(shading.strength(2)).toBeCloseTo(0.8 ** 0.6, 6);
    expect(shading.strength(3)).toBe(0);
    expect(shading.strength(4)).toBe(0);
    expect(shading.strength(9)).toBe(0);
  });

  test("sets the first token aside where it is told to, whatever this row gives it, and says so", () => {
    const shading = new Shading(Float32Array.of(0.6, 0.1, 0.3), LOOKS, true);
    expect(shading.skipsFirst).toBe(true);
    expect([0, 1, 2].map((i) => shading.strength(i))).toEqual([0, expect.closeTo((1 / 3) ** 0.6), 1]);
    expect(shading.words(name, name)).toBe("what “t3” looks at; first token 60\u00a0%, set aside");
    expect(shading.ofRest(2)).toBeCloseTo(0.75, 6);
    expect(shading.top(8)).toEqual([2, 1]);
    const shown = new Shading(Float32Array.of(0.6, 0.1, 0.3), LOOKS, false);
    expect([shown.skipsFirst, shown.strength(0), shown.ofRest(2), shown.top(1)]).toEqual([false, 1, null, [0]]);
    const little = new Shading(Float32Array.of(0.2, 0.2, 0.6), LOOKS, true);
    expect([little.strength(0), little.ofRest(2)]).toEqual([0, expect.closeTo(0.75)]);
    const all = new Shading(Float32Array.of(1, 0, 0), LOOKS, true); // nothing is left to be seen beside it
    expect([all.skipsFirst, all.strength(0)]).toEqual([false, 1]);
    const looked = new Shading(Float32Array.of(0.6, 0.1, 0.3), { ...LOOKS, shade: "looked" }, true);
    expect(looked.skipsFirst).toBe(false);
    expect(looked.strength(0)).toBe(1);
  });

  test("passes over what is masked", () => {
    const shading = new Shading(Float32Array.of(NaN, 0.2, NaN), LOOKS);
    expect(shading.skipsFirst).toBe(false);
    expect([0, 1, 2].map((i) => shading.strength(i))).toEqual([0, 1, 0]);
  });

  test("without values shades nothing", () => {
    const shading = new Shading(null, LOOKS);
    expect([shading.strength(0), shading.skipsFirst, shading.firstShare]).toEqual([0, false, 0]);
  });

  test.each([
    [{ shade: "looks", q: [1, 2] }, "what “t1 + t2” looks at"],
    [{ shade: "looks", q: [] }, "Point at a token, or click one, to see what it looks at."],
    [{ shade: "looked", q: [1, 2], k: null }, "who looks at “k2”"],
    [{ shade: "looked", q: [1], k: 7 }, "who looks at “k7”"],
    [{ shade: "looked", q: [], k: null }, "Point at a token to see who looks at it."],
    [{ shade: "received", q: [] }, "how much each token received"],
    [{ shade: "rollout", q: [1] }, "what fed “t1”, through all layers: heuristic, not proof of cause"],
    [{ shade: "rollout", q: [] }, "Pin a token, then press R."],
  ] as [Partial<Chosen>, string][])("says what it shows: %j", (of, words) => {
    expect(new Shading(null, { ...LOOKS, ...of }).words(name, (i) => `k${i}`)).toBe(words);
  });
});

describe("the strongest", () => {
  test("come largest first, of equal ones the lower, without zeros and masked ones", () => {
    expect(topOf(Float32Array.of(0, 0.2, 0.5, 0.2, NaN, 0.1), 3)).toEqual([2, 1, 3]);
    expect(topOf(Float32Array.of(0, NaN), 3)).toEqual([]);
  });

  test("are what a full sort would say", () => {
    const values = Float32Array.from({ length: 500 }, (_, i) => ((i * 7919) % 101) / 101);
    const sorted = [...values.keys()].filter((i) => values[i] > 0).sort((a, b) => values[b] - values[a] || a - b);
    expect(topOf(values, 8)).toEqual(sorted.slice(0, 8));
  });

  test("links are at most eight for each query, from whichever tile", () => {
    const lines = Array.from({ length: 20 }, (_, k) => ({ q: k % 2, k, weight: k / 20 }));
    const kept = strongest(lines);
    expect(kept.filter((line) => line.q === 0).map((line) => line.k)).toEqual([18, 16, 14, 12, 10, 8, 6, 4]);
    expect(kept).toHaveLength(16);
  });

  test("of a reading with a sign the strongest links are those of the largest size", () => {
    const lines = Array.from({ length: 9 }, (_, k) => ({ q: 0, k, weight: k ? k / 20 : -0.9 }));
    expect(strongest(lines).map((line) => line.k)).toEqual([0, 8, 7, 6, 5, 4, 3, 2]);
  });
});
