// From a weight to a colour. The scale is fixed per run and never follows what is visible.

export type MapName = "magma" | "viridis" | "cividis" | "grey";
export type ScaleName = "log" | "linear";

// 25 colours of each map, evenly spaced; those between are mixed. All can be read without seeing red or green.
type Stops = MapName | "difference" | "difference-dark";

const STOPS: Record<Stops, string> = {
  magma:
    "000004 050416 100b2d 1d1147 2c115f 3f0f72 51127c 601880 721f81 832681 932b80 a5317e b73779 c73d73 d8456c e75263 f1605d f8745c fc8961 fd9b6b feb078 fec488 fed799 fdebac fcfdbf",
  viridis:
    "440154 471063 481f70 472d7b 443983 404688 3b528b 365d8d 31688e 2c728e 287c8e 24868e 21918c 1f9a8a 20a486 28ae80 35b779 48c16e 5ec962 75d054 90d743 addc30 c8e020 e5e419 fde725",
  cividis:
    "00224e 002a5f 003170 1a386f 2a3f6d 38476c 434e6c 4d556c 575d6d 61656f 6a6c71 737475 7d7c78 868379 918b78 9b9476 a59c74 b0a571 bcae6c c6b667 d2c060 dec958 e9d34e f6dd3f fee838",
  grey: "111111 f4f4f4",
  "difference-dark": "8cc2ff 5a9fe6 35699f 294563 24242d 573d25 8f5a24 cf8536 ffc581",
  difference: "0b4f9e 2f7dc4 7fb0dd c5dcef f3f3f3 f8dcc0 f0b27a dd7f2a a65000",
};

export interface Scale {
  name: ScaleName;
  lo: number;
  hi: number;
  map: MapName;
  dark: boolean;
  difference: boolean;
  most?: number; // of a reading: its largest cell, which its thumbnails are shares of
}

// What a reading goes up to is known: the largest cell of any head.
export function readingScale(scale: Scale, { most, signed }: { most: number; signed: boolean }): Scale {
  const lo = scale.name === "log" ? most * 1e-4 : 0;
  return { ...scale, lo, hi: most, difference: scale.difference || signed, most };
}

export type Rgb = [number, number, number];

const parsed = new Map<string, Rgb[]>();

function stops(name: Stops): Rgb[] {
  let list = parsed.get(name);
  if (!list) {
    list = STOPS[name].split(" ").map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)) as Rgb);
    parsed.set(name, list);
  }
  return list;
}

// Blue below 0, orange above; what is 0 has nearly the colour of the paper.
export function signedColor(dark: boolean, t: number): Rgb {
  return colorAt(dark ? "difference-dark" : "difference", t);
}

export function colorAt(name: Stops, t: number): Rgb {
  const list = stops(name);
  const place = Math.min(Math.max(t, 0), 1) * (list.length - 1);
  const i = Math.min(Math.floor(place), list.length - 2);
  const f = place - i;
  return [0, 1, 2].map((c) => Math.round(list[i][c] * (1 - f) + list[i + 1][c] * f)) as Rgb;
}

// The lowest colour on light paper: nearly that of the page, so that a map of nothing is no bright field.
const PALE: Rgb = [246, 244, 248];
const FADED = 0.3;

// Dark paper: the highest is the brightest. Light paper: the highest is the darkest, the lowest is faded.
export function rampColor(scale: Scale, t: number): Rgb {
  if (scale.dark) return colorAt(scale.map, t);
  const full = Math.min(Math.max(t / FADED, 0), 1);
  const color = colorAt(scale.map, 1 - t);
  return color.map((c, i) => Math.round(PALE[i] + (c - PALE[i]) * full)) as Rgb;
}

// Where a weight lies on the scale: 0 at the floor, 1 at the top.
export function position(scale: Scale, weight: number): number {
  if (scale.name === "linear") return (weight - scale.lo) / (scale.hi - scale.lo);
  return Math.log(weight / scale.lo) / Math.log(scale.hi / scale.lo);
}

export function weightAt(scale: Scale, t: number): number {
  return scale.name === "linear" ? scale.lo + t * (scale.hi - scale.lo) : scale.lo * (scale.hi / scale.lo) ** t;
}

// What exactly 0 looks like: paper, lighter than the darkest colour where that is nearly black.
export function paper(dark: boolean): Rgb {
  return dark ? [36, 36, 45] : [255, 255, 255];
}

// What is masked is hatched: the ground, and the lines on it.
export function hatchColors(dark: boolean): [string, string] {
  return dark ? ["#1d1d24", "#33333d"] : ["#f4f3f5", "#dddbe0"];
}

export function colorOf(scale: Scale, weight: number): Rgb | null {
  if (Number.isNaN(weight)) return null;
  if (scale.difference) return signedColor(scale.dark, 0.5 + 0.5 * signedPosition(scale, weight));
  if (weight === 0) return paper(scale.dark);
  if (weight < 0) return rampColor(scale, 0);
  return rampColor(scale, position(scale, weight));
}

function signedPosition(scale: Scale, x: number): number {
  const size = Math.abs(x);
  const t = scale.name === "linear" ? size / scale.hi : size < scale.lo ? 0 : position(scale, size);
  return Math.sign(x) * Math.min(Math.max(t, 0), 1);
}

// A colour for every float32 whose lower 16 bits are cut off: looking up is much quicker than a logarithm per pixel.
export function colorTable(scale: Scale): Uint32Array {
  const table = new Uint32Array(1 << 16);
  const bits = new Uint32Array(1);
  const value = new Float32Array(bits.buffer);
  for (let i = 0; i < 1 << 16; i++) {
    // The middle of the floats that share these bits; 0 itself must stay 0.
    bits[0] = i === 0 || i === 0x8000 ? 0 : (i << 16) | 0x8000;
    const color = colorOf(scale, value[0]);
    table[i] = color === null ? 0 : ((255 << 24) | (color[2] << 16) | (color[1] << 8) | color[0]) >>> 0;
  }
  return table;
}

export function paint(values: Float32Array, table: Uint32Array, into: Uint32Array): void {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let i = 0; i < bits.length; i++) {
    const word = bits[i];
    // A small number that is not 0 but has no bits above the cut is still below the floor, not 0.
    into[i] = table[word >>> 16 === 0 && word !== 0 ? 1 : word >>> 16];
  }
}

export function css(color: Rgb, alpha = 1): string {
  return alpha === 1 ? `rgb(${color.join(",")})` : `rgba(${color.join(",")},${alpha})`;
}

// The floor of a run: the decade below a tenth of what each key would get if all got the same.
export function floorFor(keys: number): number {
  return 10 ** Math.floor(Math.log10(0.1 / Math.max(keys, 1)) + 1e-9);
}

// Up to so many keys colours are linear from 0: each weight is a good part of 1.
const SHORT = 64;

// The scale that a run opens with.
export function opening(keys: number): { scale: ScaleName; lo: number } {
  return keys <= SHORT ? { scale: "linear", lo: 0 } : { scale: "log", lo: floorFor(keys) };
}

// Logarithms need a floor; a linear scale begins at 0 unless someone chose otherwise.
export function rescaled(scale: ScaleName, lo: number, keys: number): { scale: ScaleName; lo: number } {
  if (scale === "log") return { scale, lo: lo > 0 ? lo : floorFor(keys) };
  return { scale, lo: lo === floorFor(keys) ? 0 : lo };
}

// A weight as people read it.
export function show(weight: number): string {
  if (Number.isNaN(weight)) return "masked";
  const size = Math.abs(weight);
  if (size === 0) return "0";
  const digits = size >= 0.0995 ? weight.toFixed(3) : size >= 0.001 ? weight.toPrecision(2) : weight.toExponential(1);
  return digits.replace("e+", "e").replaceAll("-", "−");
}

// A weight that is right to some per cent: no more digits than that.
export function showAbout(weight: number): string {
  return Number.isNaN(weight) || weight === 0
    ? show(weight)
    : `about ${show(Number(weight.toPrecision(2)))
        .replace(/(\.\d*?)0+$/, "$1")
        .replace(/\.$/, "")}`;
}

const THUMB_FLOOR = 1e-7;

// The weight that a byte of a thumbnail stands for: right to 3.3 %.
export function thumbWeight(code: number): number {
  if (code === 0) return NaN;
  return code === 1 ? 0 : THUMB_FLOOR * Math.exp(((code - 2) / 253) * -Math.log(THUMB_FLOOR));
}

const ZERO = 128; // the byte of a reading whose cell is 0, or next to nothing

// The cell of a reading that a byte of a thumbnail stands for.
export function thumbCell(code: number, most: number): number {
  const share = (code - ZERO) / 127;
  return code === 0 ? NaN : Math.sign(share) * share * share * most;
}

export function thumbTable(scale: Scale): Uint32Array {
  const table = new Uint32Array(256);
  const { most } = scale;
  if (most !== undefined)
    return table.map((_, code) => {
      // As below: what rounds to 0 is not shown as exactly 0.
      const faint = code === ZERO && !scale.difference;
      const color = faint ? rampColor(scale, 0) : colorOf(scale, thumbCell(code, most));
      return color === null ? 0 : ((255 << 24) | (color[2] << 16) | (color[1] << 8) | color[0]) >>> 0;
    });
  for (let code = 0; code < 256; code++) {
    // A byte cannot tell 0 from next to nothing: both are shown as below the floor.
    const color = code === 1 ? rampColor(scale, 0) : colorOf(scale, thumbWeight(code));
    table[code] = color === null ? 0 : ((255 << 24) | (color[2] << 16) | (color[1] << 8) | color[0]) >>> 0;
  }
  return table;
}
