// Two maps side by side, linked: heads, layers, models or texts; or the difference of two.

import { onChange } from "./changes";
import type { Context } from "./context";
import { el, shortened } from "./dom";
import { type Cells, single } from "./grid";
import { segmented } from "./legend";
import { SHOWN } from "./loader";
import { MapView } from "./mapview";
import type { HeadRef } from "./painter";
import { Pairing, samePlace, sameTokens } from "./pairs";
import type { RunShort } from "./source";
import type { Place } from "./state";
import { GLUED, SPECIAL, type Tokens } from "./tokens";
import { Tooltip } from "./tooltip";

// Tokens beside a changed one, and how many are shown of a text.
const AROUND = 8;
const MOST = 120;

// The second of the two maps that are shown, and what is pinned on it.
export interface Second {
  run: string;
  layer: number;
  head: number;
  q: number[];
  k: number | null;
  difference: boolean;
}

export class Compare {
  readonly node: HTMLElement;
  readonly views: MapView[] = [];
  private maps = el("div", { class: "compare-maps" });
  private mode = segmented("show", ["side by side", "difference"], (choice) =>
    this.context.store.push({ difference: choice === "difference" }),
  );
  private pickers = el("div", { class: "compare-pickers" });
  private texts = el("div", { class: "compare-texts", attrs: { hidden: true } });
  private note = el("p", { class: "compare-note", attrs: { role: "status", hidden: true } });
  private visible = false;
  private built = "";
  private pairing: Pairing | null = null;

  constructor(
    private context: Context,
    private runs: () => RunShort[],
    private say: (text: string) => void,
  ) {
    this.node = el(
      "div",
      { class: "compare" },
      el("div", { class: "compare-bar" }, this.pickers, this.mode.node),
      this.note,
      this.texts,
      this.maps,
    );
    onChange(context.run, () => this.update());
    onChange(context.other, () => this.update());
    onChange(context.portraits, () => this.update());
    onChange(context.tokens, () => this.update());
    onChange(context.dark, () => this.update());
    onChange(context.again, () => {
      for (const view of this.views) view.again();
    });
    context.store.on(
      ["layer", "head", "other", "difference", "pool", "scale", "lo", "hi", "map", "q", "k", "diagonal"],
      () => this.update(),
    );
    onChange(context.hover, (hover) => {
      if (!hover || hover.from.startsWith("compare")) return;
      for (const view of this.views)
        view.setHover(hover.q === null || hover.k === null ? null : view.grid.bin(hover.q, hover.k));
    });
  }

  show(visible: boolean): void {
    this.visible = visible;
    if (visible) this.update();
    else this.clear();
    if (!visible) this.context.subtracts.value = false;
  }

  second(): Second | null {
    const heads = this.visible ? this.heads() : null;
    if (!heads || !this.pairing) return null;
    const { q, k } = this.context.state;
    const [{ run, layer, head }, difference] = [heads[1], this.views.length === 1];
    const keys = this.across(k === null ? [] : [k], "key");
    return { run: run.asked, layer, head, q: this.across(q, "query"), k: keys[0] ?? null, difference };
  }

  private clear(): void {
    for (const view of this.views) view.destroy();
    this.views.length = 0;
    this.built = "";
    this.maps.replaceChildren();
  }

  private heads(): HeadRef[] | null {
    const run = this.context.run.value;
    const other = this.context.other.value;
    const { state } = this.context;
    if (!run || !state.other || !other || other.id !== state.other.run || state.layer >= run.info.layers.length)
      return null;
    if (run.info.of !== other.info.of) return null; // until both are read the same way
    const layer = Math.min(state.other.layer, other.info.layers.length - 1);
    const head = Math.min(state.other.head, other.layer(layer).heads - 1);
    return [
      { run, layer: state.layer, head: state.head },
      { run: other, layer, head },
    ];
  }

  private update(): void {
    if (!this.visible) return;
    const heads = this.heads();
    this.drawPickers();
    this.note.hidden = this.texts.hidden = true;
    if (!heads) {
      this.clear();
      this.mode.node.hidden = true;
      if (!this.context.state.other) this.invite();
      return;
    }
    const [a, b] = heads;
    const alike = sameTokens(a, b);
    const difference = this.context.state.difference && alike;
    this.mode.node.hidden = !alike;
    this.mode.set(difference ? "difference" : "side by side");
    const shape = `${difference} ${a.run.id} ${b.run.id}`;
    if (shape !== this.built) {
      this.clear();
      this.built = shape;
      const count = difference ? 1 : 2;
      for (let i = 0; i < count; i++) this.add(i);
      for (const view of this.views) view.camera.start(null);
    }
    const { pool, diagonal, q, k } = this.context.state;
    const scale = this.context.scale(difference);
    this.context.subtracts.value = difference;
    this.pairing = new Pairing([a, b]);
    const pins = [
      { q: inside(q, a, "queries"), k: inside(k === null ? [] : [k], a, "keys") },
      { q: this.across(q, "query"), k: this.across(k === null ? [] : [k], "key") },
    ];
    this.tell(q.length > pins[1].q.length || (k !== null && !pins[1].k.length));
    const changed = this.changes(heads);
    // Two heads share what may be shown. Two maps leave room for the coarser tiles that stand in on each.
    const tiles = SHOWN / 2 - (difference ? 0 : 16);
    this.views.forEach((view, i) => {
      const shown = difference ? [a, b] : [heads[i]];
      const [rows, k] = [pins[i].q, pins[i].k[0] ?? null];
      view.show({ heads: shown, scale, tiles, pool, diagonal, q: rows, k, changed: changed?.[i] });
      const [first, second] = heads.map(({ run, layer, head }) => run.short(layer, head));
      const title = difference
        ? `${first} − ${second}: orange where the first gives more, blue where the second does`
        : label(heads[i]);
      view.node.parentElement!.querySelector("h2")!.textContent = title;
    });
  }

  // Which words of two texts are not in the other one, and both texts around them.
  private changes(heads: HeadRef[]): { rows: Set<number>; columns: Set<number> }[] | null {
    const [a, b] = heads;
    const { pairing } = this;
    const read = heads.every(({ run }) => run.tokens.named && run.tokens.texts.some((text) => text !== ""));
    if (a.run === b.run || !read || !pairing || pairing.none) return null;
    const changed = heads.map(({ run, layer }, i) => ({
      rows: pairing.changed(i, run.layer(layer).queries, "q"),
      columns: pairing.changed(i, run.layer(layer).keys, "k"),
    }));
    this.texts.hidden = changed.every(({ rows }) => !rows.size);
    this.texts.replaceChildren(
      ...heads.map(({ run }, i) =>
        el("p", {}, el("b", {}, i ? "second" : "first"), ...around(run.tokens, changed[i].rows)),
      ),
    );
    return changed;
  }

  private add(i: number): void {
    const tooltip = new Tooltip(this.say);
    const view: MapView = new MapView(
      this.context.loader,
      {
        hover: (cells, x, y, value) => this.hover(view, tooltip, cells, x, y, value),
        click: (cells, event) => single(cells) && this.pin(view, cells, event.shiftKey),
        moved: (place) => this.follow(view, place),
        retry: () => this.context.retry(),
      },
      i ? "second map" : "first map",
    );
    view.surface.append(tooltip.node);
    this.views.push(view);
    this.maps.append(el("section", { class: "compare-side" }, el("h2", { class: "plain" }), view.node));
  }

  // A pin applies to both: what is pinned are cells of the first.
  private pin(view: MapView, cells: Cells, add: boolean): void {
    const [q, k] = this.own(view, cells);
    if (q === null && k === null) this.context.say("the first text has neither of these two tokens");
    else this.context.pin(q, k, add);
  }

  // Whatever cannot be shown in both is said: nothing is pointed at by guess.
  private tell(missing: boolean): void {
    const read = this.heads()!.every(
      ({ run: { tokens } }) => !tokens.named || tokens.texts.some((text) => text !== ""),
    );
    this.note.hidden = !read || (!this.pairing?.none && !missing); // texts that are still to come are not compared
    this.note.textContent = this.pairing?.none
      ? "These two have no text in common: what is pinned in one cannot be shown in the other."
      : "Something that is pinned is not in the second text: there it is not marked.";
  }

  private own(view: MapView, { q0, k0 }: Cells): [number | null, number | null] {
    if (!this.views.indexOf(view) || !this.pairing) return [q0, k0];
    return [this.pairing.query(1, q0), this.pairing.key(1, k0)];
  }

  private across(pinned: number[], axis: "query" | "key"): number[] {
    const head = this.heads()![0];
    const places = inside(pinned, head, axis === "query" ? "queries" : "keys").map((i) => this.pairing![axis](0, i));
    return places.filter((i) => i !== null);
  }

  private hover(
    view: MapView,
    tooltip: Tooltip,
    cells: Cells | null,
    x: number,
    y: number,
    value: { value: number; estimate: boolean } | null,
  ): void {
    const heads = this.heads();
    if (!heads) return;
    const i = this.views.indexOf(view);
    const shown = this.views.length === 1 ? heads : [heads[i]];
    if (cells) tooltip.show(shown, cells, x, y, value, view.surface.getBoundingClientRect(), this.context.state.pool);
    else tooltip.hide();
    this.views.forEach((other, to) => {
      if (other === view) return;
      const cell = cells && this.pairing && [this.pairing.query(1 - to, cells.q0), this.pairing.key(1 - to, cells.k0)];
      const [q, k] = cell ?? [null, null];
      other.setHover(q === null || k === null ? null : other.grid.bin(q, k));
    });
    if (cells && single(cells)) {
      const [q, k] = this.own(view, cells);
      this.context.point({ q, k, cells, from: "compare" });
    } else if (!cells) this.context.point(null);
  }

  // Linked: the same place of both.
  private follow(view: MapView, place: Place | null): void {
    for (const other of this.views)
      if (other !== view) other.camera.go(place && samePlace(place, view.grid, other.grid));
  }

  private invite(): void {
    const run = this.context.run.value;
    const { layer, head } = this.context.state;
    const similar = run?.portraits?.similar[layer]?.[head]?.[0];
    this.maps.replaceChildren(
      el(
        "div",
        { class: "empty" },
        el(
          "p",
          {},
          matchMedia("(pointer: coarse)").matches
            ? "Choose a second head above."
            : "Choose a second head above, or Ctrl-click one in Heads.",
        ),
        similar && run
          ? el(
              "button",
              {
                class: "button",
                attrs: { type: "button" },
                on: { click: () => this.context.compareWith(similar[0], similar[1]) },
              },
              `Compare with ${run.name(similar[0], similar[1])}, the most similar`,
            )
          : null,
      ),
    );
  }

  private drawPickers(): void {
    const { context } = this;
    const run = context.run.value;
    const other = context.other.value ?? run;
    if (!run || !other) return;
    const now = context.state.other ?? { run: run.id, layer: context.state.layer, head: -1 };
    const change = (next: Partial<typeof now>) => {
      const made = { ...now, ...next };
      context.store.push({ other: { ...made, head: Math.max(0, made.head) } });
    };
    const list = this.runs();
    const runs = select(
      "second run",
      list.map((r) => [r.id, `${r.model ?? "run"}: ${shortened(r.title, 40)}`]),
      now.run,
      (value) => change({ run: value }),
    );
    const layers = select(
      "second layer",
      other.info.layers.map((l) => [String(l.index), `layer ${l.number}${l.cross ? " (cross)" : ""}`]),
      String(now.layer),
      (value) => change({ layer: Number(value) }),
    );
    const count = other.layer(now.layer).heads;
    const heads = select(
      "second head",
      Array.from({ length: count }, (_, i) => [String(i), `head ${other.layer(now.layer).numbers[i]}`]),
      String(now.head),
      (value) => change({ head: Number(value) }),
    );
    if (now.head < 0) heads.prepend(el("option", { attrs: { value: "", selected: true } }, "head …"));
    this.pickers.replaceChildren(
      el("span", { class: "label" }, "beside"),
      ...(list.length > 1 ? [runs] : []),
      layers,
      heads,
    );
  }
}

function select(
  name: string,
  options: [string, string][],
  value: string,
  choose: (value: string) => void,
): HTMLSelectElement {
  const node = el(
    "select",
    { attrs: { "aria-label": name } },
    ...options.map(([id, text]) => el("option", { attrs: { value: id, selected: id === value } }, text)),
  );
  node.addEventListener("change", () => choose(node.value));
  return node;
}

// The tokens around those that were changed, which are marked; of the rest an ellipsis.
function around(tokens: Tokens, changed: Set<number>): (Node | string)[] {
  const near = (i: number) => Array.from({ length: 2 * AROUND + 1 }, (_, n) => i + n - AROUND);
  const shown = new Set([...changed].flatMap(near));
  const parts: (Node | string)[] = [];
  let gap = false;
  for (let i = 0, n = 0; i < tokens.length && n < MOST; i++) {
    if (!shown.has(i) || tokens.kind(i) & SPECIAL) {
      if (!gap && !(tokens.kind(i) & SPECIAL)) parts.push(" …");
      gap = gap || !(tokens.kind(i) & SPECIAL);
      continue;
    }
    gap = false;
    n++;
    const glued = tokens.kind(i) & GLUED;
    if (!glued) parts.push(" ");
    const text = tokens.piece(i)?.shown ?? tokens.text(i);
    parts.push(changed.has(i) ? el("mark", {}, text) : text);
  }
  return parts;
}

function label({ run, layer, head }: HeadRef): string {
  return `${run.info.model ?? "run"}, ${run.name(layer, head)}: ${shortened(run.info.title, 40)}`;
}

// What is pinned may lie beyond a map: heads of one run may have other queries and keys.
function inside(places: number[], { run, layer }: HeadRef, axis: "queries" | "keys"): number[] {
  return places.filter((i) => i < run.layer(layer)[axis]);
}
