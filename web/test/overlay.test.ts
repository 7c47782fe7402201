import { describe, expect, test } from "vitest";
import { hasDiagonal } from "../src/overlay";
import { layer } from "./samples";

describe("the diagonal", () => {
  const long = layer(0, { queries: 65, keys: 65 });

  test("of a whole map is there on every screen, or on none", () => {
    for (const cell of [0.5, 4.6, 7.9, 8, 10.5, 24]) {
      expect(hasDiagonal(long, true, cell)).toBe(true);
      expect(hasDiagonal(layer(0, { queries: 15, keys: 15 }), true, cell)).toBe(false);
      expect(hasDiagonal(layer(0, { queries: 65, keys: 65, cross: true }), true, cell)).toBe(false);
    }
  });

  test("goes where one has come near enough to see the cells", () => {
    expect([2, 7.9, 8, 40].map((cell) => hasDiagonal(long, false, cell))).toEqual([true, true, false, false]);
  });
});
