// The first token, which takes most of what many heads of causal models give: set aside, so that the rest can be seen.

import { onChange } from "./changes";
import type { Context } from "./context";
import { el } from "./dom";
import type { OpenRun } from "./run";
import type { Shade } from "./state";

// From which share on the first token is set aside.
export const SINK = 0.3;
const LEAST = 1e-4; // where less is left, there is nothing to see beside it

// What a row leaves for the others; all of it where nothing is to be set aside.
export function left(first: number): number {
  return first > 0 && 1 - first > LEAST ? 1 - first : 1;
}

// What the first token takes of a head, where that is so much that every view sets it aside; else 0. Rollout goes through
// all heads: there it is what they give it in the mean.
export function setAside(run: OpenRun, layer: number, head: number, shade: Shade | null = null): number {
  if (run.reading || layer >= run.info.layers.length) return 0;
  const share = shade === "rollout" ? run.sinkOfAll : run.sink(layer, head);
  return share > SINK ? share : 0;
}

// A byte of a thumbnail is a logarithm: to divide a weight is to add to its byte.
const BYTES_A_NAT = 253 / -Math.log(1e-7);

// A thumbnail without its first column, the rest of each row as if it were all. Where a column is of several keys, they go
// together, and rows are raised by what the head gives the first token in the mean.
export function withoutFirst(
  thumb: Uint8Array,
  [rows, columns]: [number, number],
  width: number,
  first: number,
  single: boolean,
  weight: (code: number) => number,
): Uint8Array {
  const found = thumb.slice();
  for (let y = 0; y < rows; y++) {
    const more = Math.round(
      -Math.log(left(single ? shareOfFirst(thumb, y * width, columns, weight) : first)) * BYTES_A_NAT,
    );
    found[y * width] = 0;
    for (let x = 1; x < columns; x++) {
      const code = thumb[y * width + x];
      if (code > 1) found[y * width + x] = Math.min(255, code + more);
    }
  }
  return found;
}

// What the first of a row takes, by what the others add up to: each byte is right to some per cent of itself.
function shareOfFirst(thumb: Uint8Array, start: number, columns: number, weight: (code: number) => number): number {
  const value = (x: number) => weight(thumb[start + x]) || 0;
  let rest = 0;
  for (let x = 1; x < columns; x++) rest += value(x);
  return rest > 0 ? Math.max(1 - rest, value(0) / (value(0) + rest)) : 0;
}

// One switch for all views, there where the first token takes much of the open head.
export class AsideSwitch {
  readonly node = el("button", {
    class: "aside-switch chip-button",
    attrs: { type: "button", "aria-pressed": "true", hidden: true },
  });

  constructor(private context: Context) {
    this.node.addEventListener("click", () => context.store.push({ aside: !context.state.aside }));
    context.store.on(["layer", "head", "shade", "aside"], () => this.draw());
    onChange(context.run, () => this.draw());
    onChange(context.portraits, () => this.draw());
  }

  private draw(): void {
    const run = this.context.run.value;
    const { layer, head, shade, aside } = this.context.state;
    const own = run ? setAside(run, layer, head) : 0;
    const all = run && shade === "rollout" ? setAside(run, layer, head, shade) : 0;
    this.node.hidden = !own && !all;
    this.node.setAttribute("aria-pressed", String(aside));
    const share = `first token ${Math.round(100 * (own || all))} %${own ? "" : " of all heads"}:`;
    this.node.replaceChildren(el("span", {}, share), " ", el("span", {}, aside ? "set aside" : "shown"));
    const where = [own ? "Links, Text and thumbnails" : "", all ? "rollout" : ""].filter(Boolean).join(", and ");
    this.node.title = aside
      ? `${where}: the first token is left out, and the rest shown as if it were all; click to show it`
      : `${where}: the first token is shown as all others; click to set it aside`;
  }
}
