// A vision model's picture: point at a patch, and see what it looks at, as a layer over the picture itself.

import { onChange } from "./changes";
import { colorOf, css, show } from "./colors";
import type { Context } from "./context";
import { blank, debounced, el, forTouch } from "./dom";
import type { OpenRun } from "./run";
import type { Shading } from "./shading";
import type { RunInfo } from "./source";
import type { Shade } from "./state";

type Patches = NonNullable<RunInfo["image"]>;

// Where the patches begin among what is shaded; null if they are not among it.
export function begins(image: Patches, cross: boolean, shade: Shade): number | null {
  return cross && (shade === "looks" || shade === "received") ? image.memory : image.first;
}

export class ImageView {
  readonly node: HTMLElement;
  private picture = el("img", { attrs: { alt: "what the model was given", draggable: "false" } });
  private layer = el("canvas", { class: "patches", attrs: { "aria-hidden": "true" } });
  private frame: HTMLElement;
  private others = el("div", { class: "image-others" });
  private about = el("p", { class: "fine image-about", attrs: { role: "status" } });
  private shading: Shading | null = null;
  private shown = "";
  private redraw = debounced(30, () => this.draw());

  constructor(
    private context: Context,
    private heading: HTMLElement,
  ) {
    this.frame = el(
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
    this.node = el("div", { class: "image-view", attrs: { hidden: true } }, this.frame, this.others, this.about);
    this.frame.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") this.point(this.patch(event));
    });
    this.frame.addEventListener("pointerleave", () => this.point(null));
    this.frame.addEventListener("click", (event) => this.pin(this.patch(event), event.shiftKey));
    this.frame.addEventListener("keydown", (event) => this.key(event));
    this.frame.addEventListener("blur", () => this.context.hover.value?.from === "image" && this.point(null));
    this.picture.addEventListener("load", () => {
      this.picture.classList.toggle("coarse", this.picture.naturalWidth < 128);
      this.draw();
    });
    new ResizeObserver(() => this.redraw()).observe(this.frame);
    onChange(context.run, (run) => void this.open(run));
    onChange(context.dark, () => this.redraw());
    onChange(context.tokens, () => this.context.run.value?.info.image && this.chips(this.context.run.value));
    context.store.on(["layer", "scale", "lo", "hi", "map"], () => this.redraw());
  }

  // What is shaded has changed.
  paint(shading: Shading): void {
    this.shading = shading;
    this.redraw();
  }

  private get patches(): Patches | null {
    return this.context.run.value?.info.image ?? null;
  }

  private get cross(): boolean {
    const { run, state } = this.context;
    return Boolean(run.value?.layer(state.layer).cross) && this.patches?.first === null; // words look at the picture
  }

  private async open(run: OpenRun | null): Promise<void> {
    this.node.hidden = !run?.info.image;
    const alone = Boolean(run?.info.image?.alone);
    this.node.parentElement?.classList.toggle("pictured", alone);
    this.heading.textContent = alone ? "Picture" : this.node.hidden ? "Text" : "Picture and text";
    if (!run || this.node.hidden) return;
    this.chips(run);
    if (this.shown === run.id) return this.redraw();
    this.shown = run.id;
    try {
      const address = await this.context.source.picture(run.id);
      if (this.shown === run.id) this.picture.src = address;
    } catch {
      this.shown = ""; // the map stands without it
      this.node.hidden = true;
    }
  }

  // Tokens that are no patch: where there is no text they have no other place.
  private chips(run: OpenRun): void {
    const image = run.info.image!;
    const count = image.alone && image.first !== null ? Math.min(image.first, 8) : 0;
    this.others.replaceChildren(
      ...Array.from({ length: count }, (_, i) => {
        const chip = el(
          "button",
          { class: "chip-button", attrs: { type: "button", "data-token": i } },
          run.tokens.label(i) || `token ${i}`,
        );
        chip.title = "a token that is no patch; of most models the first stands for the whole picture";
        chip.addEventListener("click", () => this.context.pin(i, null));
        chip.addEventListener("pointerenter", () => this.point(i));
        chip.addEventListener("pointerleave", () => this.point(null));
        return chip;
      }),
    );
  }

  // The token of the patch under the pointer.
  private patch(event: MouseEvent): number | null {
    const image = this.patches;
    const first = image && begins(image, this.cross, "looks");
    if (!image || first === null) return null;
    const box = this.picture.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * image.columns);
    const y = Math.floor(((event.clientY - box.top) / box.height) * image.rows);
    return x >= 0 && y >= 0 && x < image.columns && y < image.rows ? first + y * image.columns + x : null;
  }

  // A patch that a text looks at is a key; else it is who looks.
  private point(place: number | null): void {
    const { context } = this;
    if (place === null) return context.point(null);
    const { q, k } = context.hover.value ?? {};
    if (this.cross) {
      if (k !== place) context.point({ q: context.state.q.at(-1) ?? null, k: place, cells: null, from: "image" });
    } else if (q !== place) context.point({ q: place, k: null, cells: null, from: "image" });
  }

  private pin(place: number | null, add: boolean): void {
    if (place === null) return;
    if (this.cross) this.context.pinKey(place);
    else this.context.pin(place, null, add);
  }

  private draw(): void {
    const { context, shading, patches: image } = this;
    const run = context.run.value;
    if (!run || !image || this.node.hidden) return;
    const [width, height] = [this.picture.clientWidth, this.picture.clientHeight];
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    const draw = blank(this.layer, Math.round(width * ratio), Math.round(height * ratio));
    const [w, h] = [this.layer.width / image.columns, this.layer.height / image.rows];
    // On whole pixels: neighbours neither overlap nor leave a seam.
    const box = (i: number): [number, number, number, number] => {
      const [x, y] = [i % image.columns, Math.floor(i / image.columns)];
      const [left, top] = [Math.round(x * w), Math.round(y * h)];
      return [left, top, Math.round((x + 1) * w) - left, Math.round((y + 1) * h) - top];
    };
    const first = begins(image, this.cross, shading?.of.shade ?? "looks");
    const count = image.rows * image.columns;
    const cells = shading?.values && first !== null ? shading.values.subarray(first, first + count) : null;
    if (cells) {
      const scale = context.scale();
      const most = cells.reduce((a, b) => Math.max(a, Math.abs(b) || 0), 0) || 1;
      cells.forEach((value, i) => {
        const color = colorOf(scale, value);
        if (!color) return;
        draw.fillStyle = css(color, 0.15 + 0.65 * Math.min(1, Math.abs(value) / most) ** 0.5);
        draw.fillRect(...box(i));
      });
    }
    const ring = (place: number, start: number | null, dash: number[]) => {
      const i = start === null ? -1 : place - start;
      if (i < 0 || i >= count) return;
      const [x, y, across, down] = box(i);
      for (const [line, color] of [
        [4 * ratio, "#000"],
        [2 * ratio, "#fff"],
      ] as const) {
        draw.lineWidth = line;
        draw.strokeStyle = color;
        draw.setLineDash(dash.map((n) => n * ratio));
        draw.strokeRect(x + 2 * ratio, y + 2 * ratio, across - 4 * ratio, down - 4 * ratio);
      }
    };
    for (const q of context.queries) ring(q, this.cross ? null : image.first, []);
    const key = context.key;
    if (key !== null) ring(key, begins(image, this.cross, "looks"), [4, 3]);
    for (const chip of this.others.children as HTMLCollectionOf<HTMLElement>)
      chip.setAttribute("aria-pressed", String(context.state.q.includes(Number(chip.dataset.token))));
    this.about.textContent = this.words(cells, first);
  }

  private words(cells: Float32Array | null, first: number | null): string {
    const { shading } = this;
    if (first === null) return "In this layer words look at words alone: the picture is in others.";
    if (!cells || !shading?.values)
      return this.cross
        ? forTouch("Point at a word to see where in the picture it looks.")
        : forTouch("Point at a patch to see what it looks at.");
    const all = shading.values.reduce((a, b) => a + (b || 0), 0);
    const here = cells.reduce((a, b) => a + (b || 0), 0);
    const best = cells.reduce((top, value, i) => (Math.abs(value) > Math.abs(cells[top]) ? i : top), 0);
    const { columns } = this.patches!;
    const place = `row ${Math.floor(best / columns)}, column ${best % columns}`;
    const rest = shading.of.shade === "looks" ? `; ${show(all - here)} goes to what is no patch` : "";
    return `strongest ${show(cells[best])}, ${place}${rest}`;
  }

  private key(event: KeyboardEvent): void {
    const image = this.patches;
    const first = image && begins(image, this.cross, "looks");
    if (!image || first === null) return;
    const { hover, state } = this.context;
    const now = (this.cross ? (hover.value?.k ?? state.k) : (hover.value?.q ?? state.q.at(-1))) ?? first;
    const at = Math.max(0, Math.min(now - first, image.rows * image.columns - 1));
    const column = at % image.columns;
    const by: Record<string, number> = {
      ArrowRight: column < image.columns - 1 ? 1 : 0,
      ArrowLeft: column > 0 ? -1 : 0,
      ArrowDown: image.columns,
      ArrowUp: -image.columns,
    };
    if (event.key in by) {
      const next = at + by[event.key];
      if (next >= 0 && next < image.rows * image.columns) this.point(next + first);
    } else if (event.key === "Enter") this.pin(at + first, event.shiftKey);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
