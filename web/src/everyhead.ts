// What is pinned, in every head: a grid of layers and heads. Of a cell its weight, of a query what it looks at most.

import { onChange } from "./changes";
import { colorOf, css, show } from "./colors";
import type { Context } from "./context";
import { el, problem, retryButton } from "./dom";
import { HeadGrid } from "./headgrid";
import { strongestButton } from "./invite";
import { Seen } from "./listening";
import type { OpenRun } from "./run";
import { aborted, sentence } from "./source";
import { grid, strongest } from "./why";

interface Cell {
  value: number | null;
  key: number | null; // where it is not the pinned one
}

export class EveryHead {
  readonly node: HTMLElement;
  private about = el("p", { class: "summary", attrs: { role: "status" } });
  private table = new HeadGrid("link", "layers and heads", (...head) => this.open(...head));
  private seen: Seen;
  private cells: Cell[][] = [];
  private stop: AbortController | null = null;
  private shown = "";

  constructor(private context: Context) {
    this.node = el("div", { class: "every-head" }, this.about, this.table.node);
    const [load, draw] = [() => void this.load(), () => this.draw()];
    this.seen = new Seen(context, ["q", "k"], ["layer", "head", "map", "lo", "hi", "scale"], load, draw);
    onChange(context.link, () => this.seen.now && !context.state.q.length && load());
  }

  show(now: boolean): void {
    this.seen.show(now);
  }

  private async load(): Promise<void> {
    const run = this.context.run.value;
    const { q, k, layer } = this.context.state;
    if (!run || layer >= run.info.layers.length) return;
    if (!q.length) {
      this.cells = [];
      this.shown = "";
      this.table.clear();
      this.about.replaceChildren("Pin a cell or a token to see it in every head.", ...strongestButton(this.context));
      return;
    }
    const query = q.at(-1)!;
    const now = JSON.stringify([run.asked, run.rev, query, k, run.layer(layer).cross]);
    if (now === this.shown) return this.draw();
    this.stop?.abort();
    this.stop = new AbortController();
    try {
      const { signal } = this.stop;
      if (k === null) {
        const found = await strongest(run, layer, query, signal);
        this.cells = found.heads.map((heads) => heads.map((list) => most(list)));
      } else {
        const found = await grid(run, layer, query, k, signal);
        this.cells = found.heads.map((heads) => heads.map((value) => ({ value, key: null })));
      }
      if (signal.aborted) return;
      this.shown = now;
      this.table.at(this.context.state.layer, this.context.state.head);
      this.draw();
    } catch (error) {
      if (aborted(error)) return;
      this.table.clear();
      this.about.replaceChildren(problem(sentence(error)), " ");
      if (this.context.curable(error)) this.about.append(retryButton(() => this.context.retry()));
    }
  }

  private draw(): void {
    const run = this.context.run.value;
    const { q, k, layer, head } = this.context.state;
    if (!this.seen.now || !run || !q.length || this.cells.length !== run.info.layers.length) return;
    const keys = run.keyTokens(layer);
    this.about.replaceChildren(...this.words(run, q.at(-1)!, k));
    const scale = this.context.scale();
    const most = Math.max(...this.cells.flat().map(({ value }) => Math.abs(value ?? 0)));
    const cells = this.cells.map((heads, l) =>
      heads.map(({ value, key }, h) => {
        const color = value === null ? null : colorOf(scale, value);
        return {
          name: `${run.name(l, h)}: ${value === null ? "masked" : show(value)}${key === null ? "" : ` to ${keys.name(key)}`}`,
          color: color && css(color),
          most: value !== null && Math.abs(value) === most,
        };
      }),
    );
    this.table.draw(run, cells, [layer, head]);
  }

  // The strongest few, in words: what a glance at the grid is for.
  private words(run: OpenRun, query: number, k: number | null): HTMLElement[] {
    const { layer } = this.context.state;
    const keys = run.keyTokens(layer);
    const all = this.cells.flatMap((heads, l) => heads.map((cell, h) => ({ l, h, ...cell })));
    const best = all
      .filter(({ value }) => value !== null)
      .sort((a, b) => Math.abs(b.value!) - Math.abs(a.value!))
      .slice(0, 5);
    const title = el("span", {}, el("q", {}, run.tokens.element(query)), " → ");
    if (k === null) title.append("what it looks at most");
    else title.append(el("q", {}, keys.element(k)), " in every head");
    const list = el("span", { class: "link-best" });
    for (const { l, h, value, key } of best)
      list.append(
        el(
          "button",
          { class: "chip-button", attrs: { type: "button" }, on: { click: () => this.open(l, h, false) } },
          `${run.short(l, h)} `,
          key === null ? null : keys.element(key),
          el("b", {}, ` ${show(value!)}`),
        ),
      );
    return [title, list];
  }

  private open(layer: number, head: number, compare: boolean): void {
    this.table.at(layer, head);
    const key = this.cells[layer]?.[head]?.key;
    if (compare) return this.context.compareWith(layer, head);
    this.context.openHead(layer, head);
    if (key !== null && key !== undefined) this.context.point({ q: null, k: key, cells: null, from: "grid" });
    this.node.dispatchEvent(new CustomEvent("opened", { bubbles: true }));
  }
}

// The strongest key; where the first token takes the most, as causal models do, the next one says more.
export function most(list: [number, number][]): Cell {
  const found = list.length > 1 && list[0][0] === 0 ? list[1] : list[0];
  return found ? { value: found[1], key: found[0] } : { value: null, key: null };
}
