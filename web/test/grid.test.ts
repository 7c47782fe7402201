import { describe, expect, test } from "vitest";
import { rooms, running, withMarks } from "../src/axes";
import { Grid, single, ticks } from "../src/grid";

function grid(queries: number, keys: number, zoom: number, width = 800, height = 600): Grid {
  const made = new Grid(queries, keys);
  return Object.assign(made, { zoom, width, height });
}

describe("a grid", () => {
  test("maps cells to pixels and back", () => {
    const made = Object.assign(grid(100, 100, 3), { ox: -16, oy: 40 });
    expect([made.cw, made.ch]).toEqual([8, 8]);
    expect([made.x(5), made.y(5)]).toEqual([24, 80]);
    expect([made.column(24), made.column(31.9), made.column(23.9)]).toEqual([5, 5, 4]);
    expect(made.at(24, 80)).toEqual({ q0: 5, q1: 6, k0: 5, k1: 6 });
    expect(made.at(24, 39)).toBeNull();
    expect(made.at(-16 + 800, 80)).toBeNull();
  });

  test("has bins of powers of two where cells are smaller than pixels, the last one ragged", () => {
    const made = grid(1000, 1000, -3);
    expect([made.lq, made.lk, made.pooled]).toEqual([3, 3, true]);
    expect(made.bin(13, 999)).toEqual({ q0: 8, q1: 16, k0: 992, k1: 1000 });
    expect(single(made.bin(13, 999))).toBe(false);
    expect(single(grid(1000, 1000, 0).bin(13, 999))).toBe(true);
  });

  test("stretches an axis that is much shorter", () => {
    expect(new Grid(100, 100)).toMatchObject({ sq: 0, sk: 0 });
    expect(new Grid(100, 190)).toMatchObject({ sq: 0, sk: 0 });
    expect(new Grid(20, 900)).toMatchObject({ sq: 4, sk: 0 });
    expect(new Grid(900, 20)).toMatchObject({ sq: 0, sk: 4 });
  });

  test("fills its pane at every length, and shows no bin in less than a pixel", () => {
    for (const [queries, keys] of [
      [16, 16],
      [150, 150],
      [200, 200],
      [300, 300],
      [700, 700],
      [4096, 4096],
      [20, 900],
      [65_536, 65_536],
    ]) {
      const made = grid(queries, keys, 0);
      made.zoom = made.fit(made.width, made.height);
      expect(made.right).toBeLessThanOrEqual(made.width + 1e-9);
      expect(made.bottom).toBeLessThanOrEqual(made.height + 1e-9);
      expect(Math.max(made.bottom / made.height, made.right / made.width)).toBeCloseTo(1, 9);
      expect(made.ch * 2 ** made.lq).toBeGreaterThanOrEqual(0.99);
      expect(made.cw * 2 ** made.lk).toBeGreaterThanOrEqual(0.99);
      expect(made.ch * 2 ** made.lq < 2 || made.lq === 0).toBe(true);
    }
    expect(grid(1, 1, 0).fit(10_000, 10_000)).toBe(6);
  });

  test("sees the rows and columns that are in view, and none beside the map", () => {
    const made = Object.assign(grid(100, 100, 3), { ox: -80, oy: 500 });
    expect(made.visible()).toEqual({ q0: 0, q1: 13, k0: 10, k1: 100 });
  });

  test("goes no lower than there is data, and coarser where a screen would show too many tiles", () => {
    const made = grid(65_536, 65_536, 0, 3840, 2160);
    made.floor = [2, 1];
    expect([made.lq, made.lk]).toEqual([2, 1]);
    made.floor = [0, 0];
    expect(made.lq).toBe(0);
    made.most = 40; // 16 x 10 tiles of one pixel a cell would be in view
    expect([made.lq, made.lk]).toEqual([2, 2]);
  });
});

describe("ticks", () => {
  test("stand at 1, 2, 5 times a power of ten, far enough apart", () => {
    expect(ticks(0, 50, 12, 60)).toEqual([0, 5, 10, 15, 20, 25, 30, 35, 40, 45]);
    expect(ticks(0, 1000, 0.5, 60)).toEqual([0, 200, 400, 600, 800]);
    expect(ticks(195, 1000, 0.15, 60)).toEqual([500]);
    for (const cell of [0.003, 0.07, 1, 9.9, 70]) {
      const [first, second] = ticks(0, 100_000, cell, 60);
      expect((second - first) * cell).toBeGreaterThanOrEqual(60);
      expect((second - first) * cell).toBeLessThan(150);
    }
  });

  test("give way to what is marked", () => {
    expect(withMarks([0, 10, 20], [9, null, 500], 0, 30, 4, 30)).toEqual([0, 20, 9]);
    expect(withMarks([0, 10, 20], [10, 10], 0, 30, 4, 30)).toEqual([0, 20, 10]);
  });

  test("and marks to those before them, where there is no room for both", () => {
    expect(withMarks([], [10, 12, 30], 0, 40, 4, 16)).toEqual([10, 30]);
    expect(withMarks([], [10, 14], 0, 40, 4, 16)).toEqual([10, 14]);
  });

  test("are no wider than the way to the next", () => {
    expect([...rooms([30, 0, 10], (i) => 6.5 * i)]).toEqual([
      [0, 61],
      [10, 61],
      [30, 126],
    ]);
    expect([...rooms([7], (i) => 6.5 * i)]).toEqual([[7, 160]]);
  });
});

test("sums from the start make any mean one subtraction, and skip what is no number", () => {
  expect([...running([1, 2, NaN, 4])]).toEqual([0, 1, 3, 3, 7]);
  expect([...running([])]).toEqual([0]);
});
