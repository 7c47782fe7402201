// What the views behind "why" ask for. A report has no server: what it holds is computed here, the same way.

import type { components } from "./api";
import type { OpenRun } from "./run";
import { Refused, type Source } from "./source";
import { SPECIAL } from "./tokens";
import type { Walk } from "./whystate";

type Shapes = components["schemas"];
export type Grid = Shapes["Grid"];
export type Strongest = Shapes["Strongest"];
export type Path = Shapes["Path"];
export type PathStep = Shapes["PathStep"];

const TOP = 3;
const LISTED = 4;
export const LEAST = 0.3;

export async function asked<T>(source: Source, path: string, options: RequestInit = {}): Promise<T> {
  if (!source.file) throw lacks();
  return (await (await source.file(path, options)).json()) as T;
}

// To send JSON with POST or PUT.
export function sent(method: string, body: unknown): RequestInit {
  return { method, body: JSON.stringify(body), headers: { "content-type": "application/json" } };
}

export async function grid(run: OpenRun, layer: number, q: number, k: number, signal?: AbortSignal): Promise<Grid> {
  if (run.source.live)
    return asked(run.source, `/api/runs/${run.asked}/grid?q=${q}&k=${k}&layer=${layer}&rev=${run.rev}`, { signal });
  const heads = await everyHead(run, layer, q, (row) => (Number.isNaN(row[k]) ? null : row[k]), null);
  return { query: q, key: k, of: run.info.of, heads };
}

export async function strongest(run: OpenRun, layer: number, q: number, signal?: AbortSignal): Promise<Strongest> {
  if (run.source.live)
    return asked(run.source, `/api/runs/${run.asked}/grid?q=${q}&layer=${layer}&rev=${run.rev}`, { signal });
  const most = (row: Float32Array) =>
    order(row)
      .slice(0, TOP)
      .map((key) => [key, row[key]] as [number, number]);
  return { query: q, of: run.info.of, heads: await everyHead(run, layer, q, most, []) };
}

export async function path(run: OpenRun, layer: number, q: number, start: number | null): Promise<Path> {
  if (run.source.live) {
    const from = start === null ? "" : `&start=${start}`;
    return asked(run.source, `/api/runs/${run.asked}/path?q=${q}&layer=${layer}${from}&rev=${run.rev}`);
  }
  const like = run.layer(layer);
  const steps: PathStep[] = [];
  let place = q;
  for (let index = start ?? run.info.layers.length - 1; index >= 0; index--) {
    const here = run.layer(index);
    if (here.cross || here.queries !== like.queries || here.keys !== like.keys) continue;
    const found: [number, number, number][] = [];
    let most = 0;
    for (let head = 0; head < here.heads; head++) {
      const row = await rowOf(run, index, head, place);
      if (!row) continue;
      most = row.reduce((a, b) => Math.max(a, Math.abs(b) || 0), most);
      for (const key of order(row))
        if (key && key !== place && !(run.tokens.kind(key) & SPECIAL)) found.push([head, key, row[key]]);
    }
    found.sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
    // What a signed reading calls much depends on the text: a share of the largest anywhere in these rows.
    const enough = run.info.of === "weights" ? LEAST : LEAST * most;
    const goes = found.length > 0 && Math.abs(found[0][2]) >= enough;
    steps.push({ layer: index, query: place, sources: found.slice(0, LISTED), goes });
    if (goes) place = found[0][1];
  }
  return { query: q, of: run.info.of, least: LEAST, steps };
}

// A path with the sources that were chosen on the way.
export async function followed(run: OpenRun, layer: number, { from, taken }: Walk): Promise<PathStep[]> {
  let { steps } = await path(run, layer, from, null);
  for (const [number, key] of taken) {
    const i = steps.findIndex((step) => run.layer(step.layer).number === number);
    const rank = i < 0 ? -1 : steps[i].sources.findIndex((source) => source[1] === key);
    if (rank >= 0) steps = await turned(run, steps, i, rank);
  }
  return steps;
}

// The same path up to a layer, where another source is taken.
export async function turned(run: OpenRun, steps: PathStep[], i: number, rank: number): Promise<PathStep[]> {
  const step = steps[i];
  const sources = [step.sources[rank], ...step.sources.filter((_, other) => other !== rank)];
  const below = step.layer > 0 ? (await path(run, step.layer, sources[0][1], step.layer - 1)).steps : [];
  return [...steps.slice(0, i), { ...step, sources, goes: true }, ...below];
}

async function everyHead<T>(run: OpenRun, like: number, q: number, of: (row: Float32Array) => T, none: T) {
  const all: T[][] = [];
  for (const layer of run.info.layers) {
    const heads: T[] = [];
    for (let head = 0; head < layer.heads; head++) {
      const row = layer.cross === run.layer(like).cross ? await rowOf(run, layer.index, head, q) : null;
      heads.push(row ? of(row) : none);
    }
    all.push(heads);
  }
  return all;
}

async function rowOf(run: OpenRun, layer: number, head: number, q: number): Promise<Float32Array | null> {
  try {
    return q < run.layer(layer).queries ? await run.source.row(run.asked, run.rev, layer, head, [q]) : null;
  } catch {
    return null; // a report may not hold this head
  }
}

function order(row: Float32Array): number[] {
  const places = [...row.keys()].filter((i) => Math.abs(row[i]) > 0);
  return places.sort((a, b) => Math.abs(row[b]) - Math.abs(row[a])).slice(0, 64);
}

export function lacks(): Refused {
  return new Refused(0, { error: "A report cannot answer this", expected: "", got: "", try: "sightline serve" });
}
