import { describe, expect, test } from "vitest";
import {
  colorOf,
  colorTable,
  css,
  floorFor,
  opening,
  paint,
  paper,
  position,
  rampColor,
  readingScale,
  rescaled,
  type Scale,
  show,
  showAbout,
  signedColor,
  thumbTable,
  thumbWeight,
  weightAt,
} from "../src/colors";

const LOG: Scale = { name: "log", lo: 1e-4, hi: 1, map: "magma", dark: true, difference: false };
const LINEAR: Scale = { ...LOG, name: "linear", lo: 0.1, hi: 0.6 };

const opaque = ([r, g, b]: number[]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

describe("the scale", () => {
  test("goes from its floor to its top", () => {
    expect([1e-4, 1e-2, 1].map((weight) => position(LOG, weight))).toEqual([0, expect.closeTo(0.5), 1]);
    expect([0.1, 0.35, 0.6].map((weight) => position(LINEAR, weight))).toEqual([0, expect.closeTo(0.5), 1]);
  });

  test.each([LOG, LINEAR])("can be read both ways: $name", (scale) => {
    for (const t of [0, 0.2, 0.77, 1]) expect(position(scale, weightAt(scale, t))).toBeCloseTo(t, 12);
  });

  test.each([
    [16, 1e-3],
    [100, 1e-3],
    [101, 1e-4],
    [65_536, 1e-6],
    [0, 0.1],
  ])("of %i keys begins a decade below a tenth of an equal share", (keys, floor) => {
    expect(floorFor(keys)).toBeCloseTo(floor, 15);
  });
});

describe("a run opens", () => {
  test("linear from 0 where it is short, else with the floor of its length", () => {
    expect(opening(64)).toEqual({ scale: "linear", lo: 0 });
    expect(opening(65)).toEqual({ scale: "log", lo: 1e-3 });
  });

  test("and keeps a bound that someone chose, whichever scale it is", () => {
    expect(rescaled("log", 0, 16)).toEqual({ scale: "log", lo: 1e-3 });
    expect(rescaled("linear", 1e-3, 16)).toEqual({ scale: "linear", lo: 0 });
    for (const name of ["log", "linear"] as const) expect(rescaled(name, 0.2, 16)).toEqual({ scale: name, lo: 0.2 });
  });
});

describe("a colour", () => {
  test("masked, zero, below the floor and lowest are told apart", () => {
    expect(colorOf(LOG, NaN)).toBeNull();
    expect(colorOf(LOG, 0)).toEqual(paper(true));
    expect(colorOf(LOG, 1e-9)).toEqual(rampColor(LOG, 0));
    expect(paper(true)).not.toEqual(rampColor(LOG, 0));
  });

  test("is darkest for the highest weight on light paper, brightest on dark", () => {
    const sum = (scale: Scale, weight: number) => colorOf(scale, weight)!.reduce((a, b) => a + b);
    expect(sum(LOG, 1)).toBeGreaterThan(sum(LOG, 1e-3));
    expect(sum({ ...LOG, dark: false }, 1)).toBeLessThan(sum({ ...LOG, dark: false }, 1e-3));
  });

  test("of nothing is nearly that of light paper, whichever the map", () => {
    for (const map of ["magma", "viridis", "cividis", "grey"] as const) {
      const lowest = rampColor({ ...LOG, map, dark: false }, 0);
      expect(Math.min(...lowest)).toBeGreaterThanOrEqual(240);
      expect(lowest).not.toEqual(paper(false));
      let before = Infinity; // and from there it only gets darker
      for (let t = 0; t <= 1; t += 0.05) {
        const [r, g, b] = rampColor({ ...LOG, map, dark: false }, t);
        const light = 0.2126 * r + 0.7152 * g + 0.0722 * b;
        expect(light).toBeLessThan(before + 0.5);
        before = light;
      }
    }
  });

  test("of a difference is orange above 0, blue below, and pale at 0", () => {
    const scale = { ...LOG, difference: true };
    const [up, down] = [colorOf(scale, 0.9)!, colorOf(scale, -0.9)!];
    expect(up[0]).toBeGreaterThan(up[2]);
    expect(down[2]).toBeGreaterThan(down[0]);
    expect(colorOf(scale, 0)).toEqual(signedColor(scale.dark, 0.5));
    expect(colorOf(scale, 1e-6)).toEqual(colorOf(scale, 0));
    expect(colorOf(scale, 5)).toEqual(signedColor(scale.dark, 1));
  });

  test("is written for the browser", () => {
    expect(css([1, 2, 3])).toBe("rgb(1,2,3)");
    expect(css([1, 2, 3], 0.5)).toBe("rgba(1,2,3,0.5)");
  });
});

describe("painting", () => {
  test("looks up what the scale would say", () => {
    const table = colorTable(LOG);
    const values = Float32Array.of(1, 0.3, 1e-3, 0, NaN, 1e-42);
    const pixels = new Uint32Array(values.length);
    paint(values, table, pixels);
    expect(pixels[3]).toBe(opaque(paper(true)));
    expect(pixels[4]).toBe(0);
    expect(pixels[5]).toBe(opaque(rampColor(LOG, 0))); // next to nothing is not nothing
    for (const i of [0, 1, 2]) {
      const color = colorOf(LOG, values[i])!;
      // The table knows 16 bits of a float: within a step of a hundredth of the weight.
      for (const c of [0, 1, 2]) expect(Math.abs(((pixels[i] >>> (8 * c)) & 255) - color[c])).toBeLessThanOrEqual(2);
    }
  });

  test("a part of a larger array is painted as it is", () => {
    const pixels = new Uint32Array(1);
    paint(Float32Array.of(1, 0).subarray(1), colorTable(LOG), pixels);
    expect(pixels[0]).toBe(opaque(paper(true)));
  });
});

describe("thumbnails", () => {
  test("a byte is masked, nothing, or a weight from 1e-7 to 1", () => {
    expect(thumbWeight(0)).toBeNaN();
    expect(thumbWeight(1)).toBe(0);
    expect(thumbWeight(2)).toBeCloseTo(1e-7, 12);
    expect(thumbWeight(255)).toBeCloseTo(1, 12);
    for (let code = 3; code < 256; code++)
      expect(thumbWeight(code) / thumbWeight(code - 1)).toBeCloseTo(10 ** (7 / 253), 9);
  });

  test("a byte that may be 0 or next to it has the lowest colour", () => {
    const table = thumbTable(LOG);
    expect(table[0]).toBe(0);
    expect(table[1]).toBe(opaque(rampColor(LOG, 0)));
    expect(table[255]).toBe(opaque(rampColor(LOG, 1)));
  });

  test("of a reading shows what is next to nothing as the lowest colour, not as exactly 0", () => {
    const carried = readingScale({ ...LOG, name: "linear" }, { most: 136, signed: false });
    expect(thumbTable(carried)[128]).toBe(opaque(rampColor(carried, 0)));
    const signed = readingScale({ ...LOG, name: "linear" }, { most: 3, signed: true });
    expect(thumbTable(signed)[128]).toBe(opaque(signedColor(true, 0.5)));
  });
});

test.each([
  [NaN, "masked"],
  [0, "0"],
  [0.81436, "0.814"],
  [0.0999, "0.100"],
  [0.0123, "0.012"],
  [0.000123, "1.2e−4"],
  [-0.25, "−0.250"],
  [-0.00025, "−2.5e−4"],
])("a weight of %d reads %s", (weight, text) => {
  expect(show(weight)).toBe(text);
});

test.each([
  [0.9712, "about 0.97"],
  [1, "about 1"],
  [0.0512, "about 0.051"],
  [0.803, "about 0.8"],
  [0.0000123, "about 1.2e−5"],
  [0, "0"],
  [NaN, "masked"],
])("%d, right to some per cent, reads %s", (weight, shown) => {
  expect(showAbout(weight)).toBe(shown);
});
