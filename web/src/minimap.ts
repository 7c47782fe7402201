// The whole map in a corner, with the part that is in view: drag it to go elsewhere.

import { type Scale, thumbTable } from "./colors";
import { el } from "./dom";
import type { Grid } from "./grid";
import type { HeadRef } from "./painter";
import { THUMB } from "./run";

const SIDE = 128;

export class MiniMap {
  readonly node: HTMLElement;
  private canvas = el("canvas", { attrs: { width: SIDE, height: SIDE } });
  private grid: Grid | null = null;
  private small = document.createElement("canvas");
  private shown = "";
  private of: ArrayBufferLike | null = null;

  constructor(private go: (row: number, col: number) => void) {
    this.node = el("div", { class: "minimap", attrs: { hidden: true, "aria-hidden": "true" } }, this.canvas);
    const move = (event: PointerEvent) => {
      if (!this.grid) return;
      const box = this.canvas.getBoundingClientRect();
      const [height, width] = this.size(this.grid);
      const row = ((event.clientY - box.top) / box.height) * (SIDE / height) * this.grid.queries;
      const col = ((event.clientX - box.left) / box.width) * (SIDE / width) * this.grid.keys;
      this.go(Math.min(Math.max(row, 0), this.grid.queries), Math.min(Math.max(col, 0), this.grid.keys));
    };
    this.node.addEventListener("pointerdown", (event) => {
      this.node.setPointerCapture(event.pointerId);
      move(event);
      this.node.addEventListener("pointermove", move);
    });
    this.node.addEventListener("pointerup", () => this.node.removeEventListener("pointermove", move));
  }

  draw(grid: Grid, head: HeadRef, scale: Scale, whole: boolean): void {
    this.grid = grid;
    const thumb = head.run.thumb(head.layer, head.head);
    this.node.hidden = whole || !thumb;
    if (whole || !thumb) return;
    const context = this.canvas.getContext("2d")!;
    const [rows, columns] = head.run.thumbSize(head.layer);
    const [height, width] = this.size(grid);
    const { small } = this;
    const key = JSON.stringify([head.run.asked, head.run.rev, head.layer, head.head, scale, rows, columns]);
    // Drawn anew only if it is another: it is shown with every frame, and the collector does not see what canvases hold.
    if (key !== this.shown || thumb.buffer !== this.of) {
      this.shown = key;
      this.of = thumb.buffer;
      small.width = columns;
      small.height = rows;
      const image = new ImageData(columns, rows);
      const pixels = new Uint32Array(image.data.buffer);
      const table = thumbTable({ ...scale, difference: false });
      for (let y = 0; y < rows; y++)
        for (let x = 0; x < columns; x++) pixels[y * columns + x] = table[thumb[y * THUMB + x]];
      small.getContext("2d")!.putImageData(image, 0, 0);
    }
    context.clearRect(0, 0, SIDE, SIDE);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, width, height);
    const { q0, q1, k0, k1 } = grid.visible();
    const x = (k0 / grid.keys) * width;
    const y = (q0 / grid.queries) * height;
    const w = Math.max(((k1 - k0) / grid.keys) * width, 5);
    const h = Math.max(((q1 - q0) / grid.queries) * height, 5);
    for (const [line, color] of [
      [3, "rgba(0,0,0,.8)"],
      [1.5, "#fff"],
    ] as const) {
      context.lineWidth = line;
      context.strokeStyle = color;
      context.strokeRect(x, y, w, h);
    }
  }

  private size(grid: Grid): [number, number] {
    const tall = grid.queries * 2 ** grid.sq;
    const wide = grid.keys * 2 ** grid.sk;
    const most = Math.max(tall, wide);
    return [(SIDE * tall) / most, (SIDE * wide) / most];
  }
}
