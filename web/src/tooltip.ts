// What is under the pointer: at once from the tile, then with score, rank and entropy from the server.

import { show, showAbout } from "./colors";
import { debounced, el, forTouch } from "./dom";
import { type Cells, single } from "./grid";
import type { HeadRef } from "./painter";
import { aborted, type CellPeek, type PatchPeek } from "./source";

export class Tooltip {
  readonly node = el("div", { class: "tooltip", attrs: { hidden: true, role: "presentation" } });
  private stop: AbortController | null = null;
  private ask = debounced(60, (head: HeadRef, cells: Cells) => void this.more(head, cells));
  private last = "";
  private at: { x: number; y: number; area: DOMRect } | null = null;

  // Called with what was found, when it is complete.
  constructor(private found: (text: string) => void) {}

  hide(): void {
    this.node.hidden = true;
    this.stop?.abort();
    this.last = "";
  }

  show(
    heads: HeadRef[],
    cells: Cells,
    x: number,
    y: number,
    value: { value: number; estimate: boolean } | null,
    area: DOMRect,
    pool: string,
  ): void {
    const head = heads[0];
    const key = JSON.stringify([cells, head.layer, head.head, head.run.asked, value, pool, heads.length]);
    if (key !== this.last) {
      this.last = key;
      this.stop?.abort();
      this.draw(heads, cells, value, null, pool);
      if (heads.length === 1) this.ask(head, cells);
    }
    this.at = { x, y, area };
    this.node.hidden = false;
    this.place();
  }

  // Beside the pointer, and whole: what is said of a cell grows when the server has answered.
  private place(): void {
    if (!this.at) return;
    const { x, y, area } = this.at;
    const { offsetWidth: width, offsetHeight: height } = this.node;
    const within = (at: number, size: number, room: number) => {
      const beside = at + 18 + size > room ? at - size - 14 : at + 18;
      return Math.max(2, Math.min(Math.round(beside < 2 ? at + 18 : beside), Math.floor(room) - size - 2));
    };
    this.node.style.transform = `translate(${within(x, width, area.width)}px, ${within(y, height, area.height)}px)`;
  }

  private async more(head: HeadRef, cells: Cells): Promise<void> {
    const layer = head.run.layer(head.layer);
    if (!layer.exact || !head.run.source.live || this.node.hidden) return;
    const size = (cells.q1 - cells.q0) * (cells.k1 - cells.k0);
    if (size > 1 << 22) return;
    this.stop = new AbortController();
    try {
      const key = this.last;
      const rows = single(cells) ? `${cells.q0}` : `${cells.q0}:${cells.q1}`;
      const cols = single(cells) ? `${cells.k0}` : `${cells.k0}:${cells.k1}`;
      const peek = await head.run.source.peek(
        head.run.asked,
        head.run.rev,
        head.layer,
        head.head,
        rows,
        cols,
        this.stop.signal,
      );
      if (key !== this.last || this.node.hidden) return;
      this.draw([head], cells, null, peek, "");
      this.place();
    } catch (error) {
      if (!aborted(error)) return; // the weight is there already; the rest stays out
    }
  }

  private draw(
    heads: HeadRef[],
    cells: Cells,
    value: { value: number; estimate: boolean } | null,
    peek: CellPeek | PatchPeek | null,
    pool: string,
  ): void {
    const head = heads[0];
    const [queries, keys] = [head.run.tokens, head.run.keyTokens(head.layer)];
    const about = (estimate: boolean) => (estimate ? "about " : "");
    const lines: HTMLElement[] = [];
    if (single(cells)) {
      const held =
        heads.length === 1
          ? head.run.source.held?.(head.layer, head.head, cells.q0, cells.k0, head.run.asked)
          : undefined;
      const told = peek && "weight" in peek ? (head.run.reading ? peek.reading : peek.weight) : undefined;
      const weight = told !== undefined ? (told ?? NaN) : (held?.weight ?? value?.value ?? null);
      lines.push(
        el(
          "div",
          { class: "pair" },
          queries.element(cells.q0, 24),
          el("span", { class: "arrow" }, "→"),
          keys.element(cells.k0, 24),
        ),
        el(
          "div",
          { class: "weight" },
          weight === null
            ? "…"
            : heads.length === 2
              ? signed(weight)
              : head.run.source.live || held?.exact
                ? show(weight)
                : showAbout(weight),
        ),
        el("div", { class: "fine" }, `query ${cells.q0.toLocaleString("en")}, key ${cells.k0.toLocaleString("en")}`),
      );
      if (head.run.reading && peek && "weight" in peek && peek.weight !== null)
        lines.push(el("div", { class: "fine" }, `${head.run.info.of}; weight ${show(peek.weight)}`));
      if (peek && "rank" in peek && peek.rank)
        lines.push(
          el(
            "div",
            { class: "fine" },
            `rank ${peek.rank.toLocaleString("en")} of ${peek.of!.toLocaleString("en")}${peek.score == null ? "" : `, score ${peek.score.toFixed(2)}`}`,
          ),
          el("div", { class: "fine" }, `entropy of the row ${(peek.entropy ?? 0).toFixed(2)}`),
          ...peek.others
            .filter(({ value }) => value !== null)
            .map(({ label, unit, value }) =>
              el("div", { class: "fine" }, `${label} of the row ${value!.toPrecision(3)} ${unit}`.trim()),
            ),
        );
      if (weight !== null && peek)
        this.found(
          `${queries.name(cells.q0)} to ${keys.name(cells.k0)}: ${show(weight)}${"rank" in peek && peek.rank ? `, rank ${peek.rank}` : ""}`,
        );
    } else {
      const span = (a: number, b: number) =>
        b - a === 1 ? a.toLocaleString("en") : `${a.toLocaleString("en")} to ${(b - 1).toLocaleString("en")}`;
      const patch = peek as PatchPeek | null;
      lines.push(
        el("div", { class: "pair" }, `queries ${span(cells.q0, cells.q1)}`),
        el("div", { class: "pair" }, `keys ${span(cells.k0, cells.k1)}`),
      );
      if (value && pool)
        lines.push(
          el(
            "div",
            { class: "weight" },
            Number.isNaN(value.value) ? "masked" : `${pool} ${about(value.estimate)}${show(value.value)}`,
          ),
        );
      if (patch && !patch.visible) {
        lines.push(el("div", { class: "weight" }, "masked"));
        this.found(`queries ${span(cells.q0, cells.q1)}, keys ${span(cells.k0, cells.k1)}: masked`);
      } else if (patch) {
        const [q, k] = patch.at!;
        lines.push(
          el("div", { class: "weight" }, `mean ${show(patch.mean!)}`),
          el(
            "div",
            { class: "fine" },
            `largest ${show(patch.max!)} at ${q.toLocaleString("en")}, ${k.toLocaleString("en")}`,
          ),
          el(
            "div",
            { class: "pair" },
            queries.element(q, 20),
            el("span", { class: "arrow" }, "→"),
            keys.element(k, 20),
          ),
          el("div", { class: "fine" }, forTouch("click goes there")),
        );
        this.found(
          `queries ${span(cells.q0, cells.q1)}, keys ${span(cells.k0, cells.k1)}: mean ${show(patch.mean!)}, largest ${show(patch.max!)}`,
        );
      }
    }
    this.node.replaceChildren(...lines);
  }
}

function signed(x: number): string {
  return Number.isNaN(x) ? "masked" : x > 0 ? `+${show(x)}` : show(x);
}
