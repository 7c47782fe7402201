// The Map tab: one map, its legend and its tooltip, tied to the state.

import { onChange } from "./changes";
import { weightAt } from "./colors";
import type { Context } from "./context";
import { el } from "./dom";
import { type Cells, single } from "./grid";
import { Legend } from "./legend";
import { SHOWN } from "./loader";
import { MapView } from "./mapview";
import type { HeadRef } from "./painter";
import { aborted, type PatchPeek } from "./source";
import { Tooltip } from "./tooltip";

export class MapCentre {
  readonly node: HTMLElement;
  readonly view: MapView;
  readonly legend: Legend;
  private tooltip: Tooltip;
  private shown = "";

  constructor(
    private context: Context,
    private say: (text: string) => void,
  ) {
    this.tooltip = new Tooltip((text) => this.say(text));
    this.view = new MapView(
      context.loader,
      {
        hover: (cells, x, y, value) => this.hover(cells, x, y, value),
        click: (cells, event) => void this.click(cells, event.shiftKey),
        moved: (place, step) => {
          if (step) context.store.push({ at: place });
          else context.store.replace({ at: place });
          this.legend.pooled(this.view.grid);
        },
        sized: () => this.legend.pooled(this.view.grid),
        retry: () => context.retry(),
      },
      "Attention map. Arrow keys move the cell, Enter pins it, plus and minus zoom.",
    );
    this.view.surface.append(this.tooltip.node);
    this.legend = new Legend(context, () => this.fitColours());
    this.node = el("div", { class: "centre-map" }, this.view.node, this.legend.node);
    onChange(context.run, () => this.update());
    onChange(context.tokens, () => this.update());
    onChange(context.portraits, () => this.update());
    onChange(context.dark, () => this.update());
    onChange(context.again, () => this.view.again());
    context.store.on(["layer", "head", "pool", "scale", "lo", "hi", "map", "diagonal"], () => this.update());
    context.store.on(["q", "k"], (state) => this.view.setPins(state.q, state.k));
    context.store.on(["at"], (state) => {
      const { at } = state;
      const now = this.view.camera.isWhole ? null : this.view.camera.place;
      const far =
        at === null || now === null
          ? at !== now
          : Math.abs(at.row - now.row) > 0.02 || Math.abs(at.col - now.col) > 0.02 || at.zoom !== now.zoom;
      if (far) this.view.camera.start(at);
      this.legend.pooled(this.view.grid);
    });
    onChange(context.hover, (hover) => {
      if (hover?.from === "map") return;
      if (!hover) return this.view.setHover(null);
      const q = hover.q ?? context.state.q[context.state.q.length - 1] ?? null;
      const k = hover.k ?? (hover.q === null ? null : context.state.k);
      this.view.setHover(q === null || k === null ? null : this.view.grid.bin(q, k));
    });
  }

  // The cells that are shown, if not all are.
  part(): Cells | null {
    return this.context.state.view !== "map" || this.view.camera.isWhole ? null : this.view.grid.visible();
  }

  heads(): HeadRef[] {
    const run = this.context.run.value;
    const { layer, head } = this.context.state;
    return run && layer < run.info.layers.length
      ? [{ run, layer, head: Math.min(head, run.layer(layer).heads - 1) }]
      : [];
  }

  update(): void {
    const heads = this.heads();
    if (!heads.length) return;
    const { pool, diagonal, q, k, at } = this.context.state;
    const first = this.shown !== heads[0].run.id;
    this.shown = heads[0].run.id;
    this.view.show({ heads, scale: this.context.scale(), pool, diagonal, q, k, tiles: SHOWN });
    if (first) this.view.camera.start(at);
    this.legend.pooled(this.view.grid);
  }

  // Bounds to what is visible, once; nothing rescales by itself.
  fitColours(): void {
    const { grid } = this.view;
    const cells = grid.visible();
    const found: number[] = [];
    const steps = [
      Math.max(1 << grid.lq, Math.ceil((cells.q1 - cells.q0) / 400)),
      Math.max(1 << grid.lk, Math.ceil((cells.k1 - cells.k0) / 400)),
    ];
    for (let q = cells.q0; q < cells.q1; q += steps[0])
      for (let k = cells.k0; k < cells.k1; k += steps[1]) {
        const value = this.view.valueAt(grid.bin(q, k))?.value;
        if (value !== undefined && value > 0) found.push(value);
      }
    if (!found.length) return;
    found.sort((a, b) => a - b);
    const low = found[Math.floor(found.length * 0.02)];
    const high = found[found.length - 1];
    const linear = this.context.state.scale === "linear";
    const lo = linear ? 0 : Math.max(10 ** Math.floor(Math.log10(low)), 1e-12);
    const hi = Math.min(1, Number(high.toPrecision(2)) >= high ? Number(high.toPrecision(2)) : high * 1.01);
    this.context.store.push({ lo, hi: hi > lo ? hi : Math.min(1, weightAt(this.context.scale(), 1)) });
  }

  private hover(cells: Cells | null, x: number, y: number, value: { value: number; estimate: boolean } | null): void {
    if (!cells) {
      this.tooltip.hide();
      if (this.context.hover.value?.from === "map") this.context.point(null);
      return;
    }
    this.tooltip.show(
      this.heads(),
      cells,
      x,
      y,
      value,
      this.view.surface.getBoundingClientRect(),
      this.context.state.pool,
    );
    const one = single(cells);
    const before = this.context.hover.value;
    if (before?.from === "map" && before.cells?.q0 === cells.q0 && before.cells.k0 === cells.k0) return;
    this.context.point({ q: one ? cells.q0 : null, k: one ? cells.k0 : null, cells, from: "map" });
  }

  // A cell is pinned; of a bin, its largest cell is gone to.
  private async click(cells: Cells, add: boolean): Promise<void> {
    if (single(cells)) return this.context.pin(cells.q0, cells.k0, add);
    const [head] = this.heads();
    if (!head) return;
    try {
      const found = (await head.run.source.peek(
        head.run.asked,
        head.run.rev,
        head.layer,
        head.head,
        `${cells.q0}:${cells.q1}`,
        `${cells.k0}:${cells.k1}`,
      )) as PatchPeek;
      if (!found.at) return;
      const [q, k] = found.at;
      this.tooltip.hide();
      this.view.camera.dive(q, k);
      this.context.pin(q, k, add);
    } catch (error) {
      if (!aborted(error)) this.context.failed(error, () => void this.click(cells, add));
    }
  }
}
