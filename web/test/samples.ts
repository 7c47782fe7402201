// A small run, as the server would describe it.

import type { Embedded } from "../src/embedded";
import { OpenRun } from "../src/run";
import type { LayerInfo, RunInfo, Source } from "../src/source";

export function layer(index: number, change: Partial<LayerInfo> = {}): LayerInfo {
  return {
    index,
    number: index,
    name: `layers.${index}.attention`,
    heads: 2,
    numbers: [0, 1],
    queries: 4,
    keys: 4,
    cross: false,
    exact: true,
    causal: false,
    normalizer: "softmax",
    floor: [0, 0],
    ...change,
  };
}

export function info(layers: LayerInfo[] = [layer(0), layer(1)], change: Partial<RunInfo> = {}): RunInfo {
  return {
    id: "abc",
    state: "done",
    model: "minilm",
    origin: "made here",
    title: "a text",
    text: "a text",
    tokens: 4,
    memory_tokens: null,
    layers,
    layer_numbers: layers.map((one) => one.number),
    unseen: {},
    revision: 0,
    growing: false,
    prompt: null,
    asked: null,
    edits: [],
    base: "abc",
    of: "weights",
    signed: false,
    most: null,
    aim: null,
    value: null,
    own: ["weights"],
    why_not: null,
    image: null,
    ...change,
  };
}

// A source of which a test says only what it needs.
export function source(parts: Partial<Source> = {}): Source {
  return { live: true, ...parts } as Source;
}

export function run(layers?: LayerInfo[], parts: Partial<Source> = {}): OpenRun {
  const open = new OpenRun(source(parts), info(layers));
  open.tokens.texts.splice(0, 4, "The", " kids", " were", ".");
  return open;
}

export function packed(bytes: ArrayLike<number>): string {
  return btoa(String.fromCharCode(...Array.from(bytes)));
}

// Two heads of 4 x 4: of the first every cell is there, of the second the thumbnail alone.
export function embedded(change: Partial<Embedded> = {}): Embedded {
  const thumbs = new Uint8Array(2 * 64 * 64);
  for (let q = 0; q < 4; q++) for (let k = 0; k < 4; k++) thumbs[64 * 64 + q * 64 + k] = k <= q ? 100 : 0;
  return {
    info: info([layer(0)]),
    tokens: { texts: ["a", "b", "c", "d"], kinds: [0, 0, 0, 0] },
    memory: null,
    portraits: { heads: [], measures: [], similar: [], first: [0, 0], complete: true },
    thumbs: packed(thumbs),
    heads: {
      "0/0": {
        levels: [0, 0],
        mean: packed([255, 0, 0, 0, 2, 200, 0, 0, 1, 1, 1, 0, 90, 80, 70, 60]),
        link: [1, 0, 0.5],
      },
    },
    ...change,
  };
}
