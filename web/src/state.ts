// What is looked at, in one object, kept in the address: a link shows exactly this.

import { signal } from "@preact/signals-core";
import { onChange } from "./changes";
import type { MapName, ScaleName } from "./colors";
import type { Pool } from "./source";
import { decodeWhy, encodeWhy, WHY, type WhyState } from "./whystate";

export type View = "map" | "links" | "steps" | "compare" | "wall" | "written";
export type Panel = "text" | "centre" | "heads" | "more";
export type Shade = "looks" | "looked" | "received" | "rollout";

export interface Place {
  row: number;
  col: number;
  zoom: number;
}

export interface Other {
  run: string;
  layer: number;
  head: number;
}

export interface State extends WhyState {
  run: string | null;
  view: View;
  layer: number;
  head: number;
  q: number[];
  k: number | null;
  at: Place | null; // null: the whole map
  pool: Pool;
  scale: ScaleName;
  lo: number;
  hi: number;
  map: MapName;
  shade: Shade;
  other: Other | null;
  difference: boolean;
  diagonal: boolean;
  aside: boolean; // whether the first token is set aside where it takes much
}

export const START: State = {
  run: null,
  view: "map",
  layer: 0,
  head: 0,
  q: [],
  k: null,
  at: null,
  pool: "mean",
  scale: "log",
  lo: 1e-4,
  hi: 1,
  map: "magma",
  shade: "looks",
  other: null,
  difference: false,
  diagonal: true,
  aside: true,
  ...WHY,
};

export const VIEWS: View[] = ["map", "links", "steps", "compare", "wall", "written"];
export const NAMES: Record<View, string> = {
  map: "Map",
  links: "Links",
  steps: "Steps",
  compare: "Compare",
  wall: "All heads",
  written: "Written",
};
export const SHADES: Shade[] = ["looks", "looked", "received", "rollout"];
export const MAPS: MapName[] = ["magma", "viridis", "cividis", "grey"];
// Addresses of version 1 count the layers of a run; since then they have the model's own numbers.
const VERSION = "2";

// The numbers of a run's layers, if they are known; else places are numbers.
type Numbers = (run: string | null | undefined) => number[] | undefined;
const PLACES: Numbers = () => undefined;

export function encode(state: State, numbers: Numbers = PLACES): string {
  const parts: string[] = [`v=${VERSION}`];
  const put = (name: string, value: string | number) => parts.push(`${name}=${value}`);
  if (state.run) put("run", state.run);
  put("view", state.view);
  put("L", numbers(state.run)?.[state.layer] ?? state.layer);
  put("H", state.head);
  if (state.q.length) put("q", state.q.join(","));
  if (state.k !== null) put("k", state.k);
  if (state.at) put("at", [state.at.row, state.at.col, state.at.zoom].map(short).join(","));
  put("pool", state.pool);
  put("scale", state.scale);
  put("lo", state.lo);
  put("hi", state.hi);
  put("map", state.map);
  if (state.shade !== "looks") put("shade", state.shade);
  const { other } = state;
  if (other) put("with", `${other.run},${numbers(other.run)?.[other.layer] ?? other.layer},${other.head}`);
  if (state.difference) put("diff", 1);
  if (!state.diagonal) put("diag", 0);
  if (!state.aside) put("aside", 0);
  encodeWhy(state, put);
  return `#${parts.join("&")}`;
}

// What an address says, as far as it can be understood; the notices name what could not.
export function decode(hash: string, numbers: Numbers = PLACES): { state: Partial<State>; notices: string[] } {
  const state: Partial<State> = {};
  const notices: string[] = [];
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const version = given.get("v");
  const place = (number: number, run: string | null | undefined) => {
    const found = version === "1" ? undefined : numbers(run);
    if (!found || found.includes(number)) return found?.indexOf(number) ?? number;
    notices.push(`there is no layer ${number}`);
    return Math.max(found.filter((one) => one < number).length - 1, 0);
  };
  if (version !== null && version !== "1" && version !== VERSION) notices.push(`this address is of version ${version}`);
  const oneOf = <T extends string>(name: string, known: readonly T[], set: (value: T) => void) => {
    const value = given.get(name);
    if (value === null) return;
    if ((known as readonly string[]).includes(value)) set(value as T);
    else notices.push(`${name}=${value.slice(0, 20)} is not known`);
  };
  const number = (name: string, set: (value: number) => void, whole = true) => {
    const value = given.get(name);
    if (value === null) return;
    const x = Number(value);
    if (value !== "" && Number.isFinite(x) && x >= 0 && (!whole || Number.isInteger(x))) set(x);
    else notices.push(`${name}=${value.slice(0, 20)} is not a number that fits`);
  };
  const run = given.get("run");
  if (run !== null && /^[\w-]{1,64}$/.test(run)) state.run = run;
  oneOf("view", VIEWS, (value) => (state.view = value));
  oneOf("pool", ["mean", "max"] as const, (value) => (state.pool = value));
  oneOf("scale", ["log", "linear"] as const, (value) => (state.scale = value));
  oneOf("map", MAPS, (value) => (state.map = value));
  oneOf("shade", SHADES, (value) => (state.shade = value));
  number("L", (value) => (state.layer = place(value, state.run)));
  number("H", (value) => (state.head = value));
  number("k", (value) => (state.k = value));
  number("lo", (value) => (state.lo = value), false);
  number("hi", (value) => (state.hi = value), false);
  const q = given.get("q");
  if (q !== null) {
    const list = q.split(",").map(Number);
    if (list.every((x) => Number.isInteger(x) && x >= 0)) state.q = [...new Set(list)].slice(0, 64);
    else notices.push(`q=${q.slice(0, 20)} is not understood`);
  }
  const at = given.get("at")?.split(",").map(Number);
  if (at) {
    if (at.length === 3 && at.every(Number.isFinite)) state.at = { row: at[0], col: at[1], zoom: at[2] };
    else notices.push("the place on the map is not understood");
  }
  const other = given.get("with")?.split(",");
  if (
    other?.length === 3 &&
    /^[\w-]{1,64}$/.test(other[0]) &&
    Number.isInteger(+other[1]) &&
    Number.isInteger(+other[2])
  )
    state.other = { run: other[0], layer: place(+other[1], other[0]), head: +other[2] };
  if (given.get("diff") === "1") state.difference = true;
  if (given.get("diag") === "0") state.diagonal = false;
  if (given.get("aside") === "0") state.aside = false;
  Object.assign(state, decodeWhy(given, notices));
  return { state, notices };
}

// An address of a run that says nothing of what to look at in it.
export function bare({ run, layer, head, q, k }: Partial<State>): boolean {
  return run !== undefined && [layer, head, q, k].every((choice) => choice === undefined);
}

function short(x: number): string {
  return String(Math.round(x * 100) / 100);
}

export class Store {
  readonly signal = signal(START);
  readonly numbers = new Map<string, number[]>(); // of the layers of each run
  private past: State[] = [];

  // A page in a frame has no address of its own: it remembers its steps itself.
  constructor(private framed = false) {
    window.addEventListener("popstate", () => this.arrive());
  }

  get now(): State {
    return this.signal.value;
  }

  // A step that Back undoes; panning and hovering replace instead.
  push(change: Partial<State>): void {
    this.change(change, true);
  }

  replace(change: Partial<State>): void {
    this.change(change, false);
  }

  // Listen to some of the state only.
  on(keys: (keyof State)[], listener: (state: State, before: State) => void): () => void {
    return onChange(this.signal, (state, before) => {
      if (keys.some((key) => !same(state[key], before[key]))) listener(state, before);
    });
  }

  back(): void {
    if (!this.framed) return history.back();
    const before = this.past.pop();
    if (before) this.signal.value = before;
  }

  address(): string {
    return location.href.replace(/#.*$/, "") + this.encoded(this.now);
  }

  // What the address says; without a run it is about the one that is open.
  addressed(): { state: Partial<State>; notices: string[] } {
    return decode(location.hash, (run) => this.numbers.get(run ?? this.now.run ?? ""));
  }

  private encoded(state: State): string {
    return encode(state, (run) => this.numbers.get(run ?? ""));
  }

  private change(change: Partial<State>, push: boolean): void {
    const next = { ...this.now, ...change };
    const hash = this.encoded(next);
    if (this.framed) {
      if (push && hash !== this.encoded(this.now)) this.past = [...this.past.slice(-99), this.now];
    } else if (hash !== location.hash) history[push ? "pushState" : "replaceState"](null, "", hash);
    this.signal.value = next;
  }

  private arrive(): void {
    const { state } = this.addressed();
    const { scale, lo, hi, run } = this.now;
    this.signal.value = { ...START, scale, lo, hi, ...state, run: state.run ?? run };
  }
}

export function same(a: unknown, b: unknown): boolean {
  return a === b || JSON.stringify(a) === JSON.stringify(b);
}
