// A vision model's picture: point at a patch, and see what it looks at, as a layer over the picture itself.

import { onChange } from "./changes";
import { colorOf, css } from "./colors";
import type { Context } from "./context";
import { blank, debounced, el } from "./dom";

export class ImageView {
  readonly node: HTMLElement;
  private picture = el("img", { attrs: { alt: "what the model was given", draggable: "false" } });
  private layer = el("canvas", { class: "patches", attrs: { "aria-hidden": "true" } });
  private about = el("p", { class: "fine", attrs: { role: "status" } });
  private asked = 0;
  private redraw = debounced(30, () => void this.draw());

  constructor(private context: Context) {
    const frame = el(
      "div",
      {
        class: "image-frame",
        attrs: {
          tabindex: 0,
          role: "application",
          "aria-label": "the picture; arrow keys move the patch, Enter pins it",
        },
      },
      this.picture,
      this.layer,
    );
    this.node = el("div", { class: "image-view", attrs: { hidden: true } }, frame, this.about);
    frame.addEventListener("pointermove", (event) => this.point(this.patch(event)));
    frame.addEventListener("pointerleave", () => this.point(null));
    frame.addEventListener("click", (event) => {
      const q = this.patch(event);
      if (q !== null) this.context.pin(q, null, event.shiftKey);
    });
    frame.addEventListener("keydown", (event) => this.key(event));
    this.picture.addEventListener("load", () => this.redraw());
    onChange(context.run, () => this.open());
    onChange(context.hover, () => this.redraw());
    onChange(context.dark, () => this.redraw());
    context.store.on(["layer", "head", "q", "k", "scale", "lo", "hi", "map"], () => this.redraw());
  }

  private open(): void {
    const run = this.context.run.value;
    const shown = Boolean(run?.info.image && run.source.live && !this.context.way);
    this.node.hidden = !shown;
    if (!shown || !run) return;
    const address = `/api/runs/${run.id}/image`;
    if (!this.picture.src.endsWith(address)) this.picture.src = address;
    this.redraw();
  }

  // The token of the patch under the pointer.
  private patch(event: MouseEvent): number | null {
    const image = this.context.run.value?.info.image;
    if (!image) return null;
    const box = this.picture.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * image.columns);
    const y = Math.floor(((event.clientY - box.top) / box.height) * image.rows);
    return x >= 0 && y >= 0 && x < image.columns && y < image.rows ? image.first + y * image.columns + x : null;
  }

  private point(q: number | null): void {
    if (q === null) return this.context.point(null);
    if (this.context.hover.value?.q !== q) this.context.point({ q, k: null, cells: null, from: "image" });
  }

  private async draw(): Promise<void> {
    const run = this.context.run.value;
    const image = run?.info.image;
    if (!run || !image || this.node.hidden) return;
    const { layer, head } = this.context.state;
    const queries = this.context.queries;
    const now = ++this.asked;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.picture.clientWidth, this.picture.clientHeight];
    const row = queries.length ? await run.row(layer, head, queries).catch(() => null) : null;
    if (now !== this.asked || !width) return;
    const draw = blank(this.layer, Math.round(width * ratio), Math.round(height * ratio));
    draw.scale(ratio, ratio);
    const [w, h] = [width / image.columns, height / image.rows];
    const scale = this.context.scale();
    if (row) {
      const cells = row.subarray(image.first, image.first + image.rows * image.columns);
      const most = cells.reduce((a, b) => Math.max(a, Math.abs(b) || 0), 0) || 1;
      cells.forEach((value, i) => {
        const color = Number.isNaN(value) ? null : colorOf(scale, value);
        if (!color) return;
        draw.fillStyle = css(color, 0.15 + 0.65 * Math.min(1, Math.abs(value) / most) ** 0.5);
        draw.fillRect((i % image.columns) * w, Math.floor(i / image.columns) * h, w, h);
      });
    }
    for (const q of queries) {
      const i = q - image.first;
      if (i < 0 || i >= image.rows * image.columns) continue;
      draw.lineWidth = 2;
      draw.strokeStyle = "#fff";
      draw.strokeRect((i % image.columns) * w + 1, Math.floor(i / image.columns) * h + 1, w - 2, h - 2);
    }
    const before =
      row && image.first
        ? `; ${row
            .subarray(0, image.first)
            .reduce((a, b) => a + b, 0)
            .toFixed(3)} goes to tokens that are no patch`
        : "";
    this.about.textContent = row
      ? `what it looks at, over the picture${before}`
      : "Point at a patch to see what it looks at.";
  }

  private key(event: KeyboardEvent): void {
    const image = this.context.run.value?.info.image;
    if (!image) return;
    const now = this.context.hover.value?.q ?? this.context.state.q.at(-1) ?? image.first;
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: image.columns, ArrowUp: -image.columns }[event.key];
    if (by) {
      const next = now + by - image.first;
      if (next >= 0 && next < image.rows * image.columns) this.point(next + image.first);
    } else if (event.key === "Enter") this.context.pin(now, null, event.shiftKey);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
