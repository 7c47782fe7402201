// Token labels beside the map: every token where cells are large, else ticks. DOM text, so that it can be read aloud.

import { blank, el } from "./dom";
import { type Grid, ticks } from "./grid";
import type { Tokens } from "./tokens";

const EVERY = 14;
const APART = 60;
const LINE = 16;
const WIDEST = 160;
const NEAR = 40; // pixels from the edge

export interface Marks {
  rows: Set<number>;
  columns: Set<number>;
  hoverRow: number | null;
  hoverColumn: number | null;
  changed?: { rows: Set<number>; columns: Set<number> }; // what the text beside this one does not have
}

export function drawRows(box: HTMLElement, grid: Grid, tokens: Tokens, marks: Marks): void {
  const { q0, q1 } = grid.visible();
  const every = grid.ch >= EVERY;
  const marked = [marks.hoverRow, ...marks.rows];
  const places = every ? range(q0, q1) : withMarks(ticks(q0, q1, grid.ch, APART), marked, q0, q1, grid.ch, LINE);
  keepLabels(box, places, tokens, every, "row", (label, i) => {
    label.style.translate = `0 ${whole(every ? grid.y(i) : Math.max(grid.y(i) + Math.min(grid.ch, 4) / 2 - 8, 0))}px`;
    label.style.height = `${every ? grid.ch : LINE}px`;
    mark(label, marks.rows.has(i), marks.hoverRow === i, marks.changed?.rows.has(i));
  });
}

export function drawColumns(box: HTMLElement, grid: Grid, tokens: Tokens, marks: Marks): void {
  const { k0, k1 } = grid.visible();
  const every = grid.cw >= EVERY;
  const marked = [marks.hoverColumn, ...marks.columns];
  const places = every ? range(k0, k1) : withMarks(ticks(k0, k1, grid.cw, APART), marked, k0, k1, grid.cw, APART);
  const x = (i: number) => grid.x(i) + (every ? grid.cw : Math.min(grid.cw, 4)) / 2;
  const room = every ? null : rooms(places, x);
  keepLabels(box, places, tokens, every, every ? "column steep" : "column", (label, i) => {
    const at = x(i);
    // One that would be cut off at an edge begins or ends there.
    const start = !every && at < NEAR;
    const end = !every && at > grid.width - NEAR;
    label.classList.toggle("start", start);
    label.classList.toggle("end", end);
    label.style.translate = `${whole(start ? 0 : end ? grid.width : at)}px`;
    const spare = start ? at : grid.width - at;
    if (room) label.style.maxWidth = `${start || end ? room.get(i)! / 2 + spare : room.get(i)}px`;
    mark(label, marks.columns.has(i), marks.hoverColumn === i, marks.changed?.columns.has(i));
  });
}

// How wide each label may be: as far as half way to the nearest beside it, on both sides.
export function rooms(places: number[], x: (i: number) => number): Map<number, number> {
  const order = [...places].sort((a, b) => a - b);
  return new Map(
    order.map((i, n) => {
      const near = Math.min(
        ...[order[n - 1], order[n + 1]].map((j) => (j === undefined ? Infinity : Math.abs(x(j) - x(i)))),
      );
      return [i, Math.min(Math.floor(near) - 4, WIDEST)];
    }),
  );
}

const shown = new WeakMap<HTMLElement, Map<string, HTMLElement>>();

// A label stays as long as it is in view, and is only moved. Made anew with every frame, labels were over 100 MB after a
// minute of panning: elements are not on the heap of the script, so that its collector sees no reason to run.
function keepLabels(
  box: HTMLElement,
  places: number[],
  tokens: Tokens,
  every: boolean,
  name: string,
  place: (label: HTMLElement, i: number) => void,
): void {
  const before = shown.get(box) ?? new Map<string, HTMLElement>();
  const now = new Map<string, HTMLElement>();
  const text = tokens.named || every;
  for (const i of places) {
    const key = `${name}/${every}/${i}/${text ? `${tokens.kind(i)}/${tokens.label(i)}` : ""}`;
    const label =
      before.get(key) ??
      el("div", { class: `axis-label ${name}` }, every ? null : position(i), text ? tokens.element(i) : null);
    before.delete(key);
    now.set(key, label);
    place(label, i);
  }
  for (const label of before.values()) label.remove();
  let next = box.firstChild;
  for (const label of now.values()) {
    if (label === next) next = next.nextSibling;
    else box.insertBefore(label, next);
  }
  shown.set(box, now);
}

// Text is sharp on whole pixels of the screen only.
function whole(pixels: number): number {
  const ratio = window.devicePixelRatio || 1;
  return Math.round(pixels * ratio) / ratio;
}

function mark(label: HTMLElement, pinned: boolean, hovered: boolean, changed = false): void {
  label.classList.toggle("changed", changed);
  label.classList.toggle("pinned", pinned);
  label.classList.toggle("hovered", hovered);
}

function position(i: number): HTMLElement {
  return el("span", { class: "position" }, i.toLocaleString("en"));
}

function range(first: number, stop: number): number[] {
  return Array.from({ length: Math.max(0, stop - first) }, (_, i) => first + i);
}

// What is marked is labelled first, the pointer's before all; ticks, and marks too near to another, give way.
export function withMarks(
  found: number[],
  marked: (number | null)[],
  first: number,
  stop: number,
  cell: number,
  apart: number,
): number[] {
  const kept: number[] = [];
  const free = (i: number) => kept.every((other) => Math.abs(other - i) * cell >= apart);
  for (const i of marked) if (i !== null && i >= first && i < stop && free(i)) kept.push(i);
  return [...found.filter(free), ...kept];
}

// A strip beside an axis: one bar per pixel, the mean of what lies behind it; below 0 it has a colour of its own.
export function drawStrip(
  canvas: HTMLCanvasElement,
  sums: Float64Array | null,
  grid: Grid,
  vertical: boolean,
  largest: number,
  above: string,
  below: string,
): void {
  const ratio = window.devicePixelRatio || 1;
  const length = vertical ? grid.height : grid.width;
  const across = vertical ? canvas.clientWidth : canvas.clientHeight;
  const context = blank(
    canvas,
    Math.round((vertical ? across : length) * ratio),
    Math.round((vertical ? length : across) * ratio),
  );
  if (!sums || !largest) return;
  const count = sums.length - 1;
  const [start, size] = vertical ? [grid.oy, grid.ch] : [grid.ox, grid.cw];
  const device = Math.round(length * ratio);
  const deep = across * ratio;
  for (let i = 0; i < device; i++) {
    const first = Math.floor((i / ratio - start) / size);
    const stop = Math.max(Math.ceil(((i + 1) / ratio - start) / size), first + 1);
    if (stop <= 0 || first >= count) continue;
    const [a, b] = [Math.max(first, 0), Math.min(stop, count)];
    const mean = (sums[b] - sums[a]) / (b - a);
    const tall = Math.max(mean ? ratio : 0, Math.min(1, Math.abs(mean) / largest) * deep);
    context.fillStyle = mean < 0 ? below : above;
    if (vertical) context.fillRect(deep - tall, i, tall, 1);
    else context.fillRect(i, deep - tall, 1, tall);
  }
}

// Sums from the start, so that the mean of any stretch is one subtraction.
export function running(values: ArrayLike<number>): Float64Array {
  const sums = new Float64Array(values.length + 1);
  for (let i = 0; i < values.length; i++) sums[i + 1] = sums[i] + (Number.isFinite(values[i]) ? values[i] : 0);
  return sums;
}
