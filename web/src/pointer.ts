// What points at a map: mouse, finger, and the cell cursor of the keyboard. Shift and drag is a rectangle.

import type { Camera, Point } from "./camera";
import { clamp, el } from "./dom";
import type { Cells } from "./grid";

export interface Pointed {
  hover(cells: Cells | null, x: number, y: number): void;
  click(cells: Cells, event: MouseEvent | KeyboardEvent): void;
  changed(): void;
}

const NOTCH = 60;

export class Pointer {
  at: Point | null = null;
  hovered: Cells | null = null;
  private tapped: Cells | null = null;
  private box = false;
  private wheel = 0;

  constructor(
    private camera: Camera,
    private surface: HTMLElement,
    private pointed: Pointed,
  ) {
    const { node } = camera;
    node.addEventListener("mousemove", (event) => this.move(event));
    // A browser moves its mouse to a tap, and may move it back: what a finger points at stays. A finger leaves at once.
    node.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && this.leave());
    node.addEventListener("wheel", (event) => this.turn(event), { passive: false });
    node.addEventListener("pointerdown", (event) => this.startBox(event), true);
    node.addEventListener("mousedown", (event) => event.shiftKey && event.stopImmediatePropagation(), true);
    camera.map.on("click", (event) => this.tap(event.containerPoint, event.originalEvent));
  }

  // The map has moved under the pointer. One that is dragged comes along: the cell it was taken by stays.
  moved(): void {
    if (this.at && this.hovered) this.point(this.at);
  }

  // The cell cursor of the keyboard; without one it begins at what is pinned.
  step(rows: number, columns: number, pinned: { q: number; k: number }): void {
    const { grid } = this.camera;
    const start = this.hovered && grid.bin(this.hovered.q0, this.hovered.k0);
    const [q, k] = start ? [start.q0 + rows * 2 ** grid.lq, start.k0 + columns * 2 ** grid.lk] : [pinned.q, pinned.k];
    const next = grid.bin(clamp(q, 0, grid.queries - 1), clamp(k, 0, grid.keys - 1));
    this.camera.reveal(next.q0, next.k0);
    this.at = { x: grid.x(next.k0) + grid.cw / 2, y: grid.y(next.q0) + grid.ch / 2 };
    this.say(next, this.at);
  }

  pin(event: KeyboardEvent): void {
    if (this.hovered) this.pointed.click(this.hovered, event);
  }

  private place(event: MouseEvent): Point {
    const box = this.camera.node.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  private point({ x, y }: Point): void {
    if (!this.camera.dragged || !this.hovered) this.hovered = this.camera.grid.at(x, y);
    this.pointed.hover(this.hovered, x, y);
  }

  private say(cells: Cells, { x, y }: Point): void {
    this.hovered = cells;
    this.pointed.hover(cells, x, y);
    this.pointed.changed();
  }

  private move(event: MouseEvent): void {
    if (this.box) return;
    this.at = this.place(event);
    if (event.buttons & 1) return; // a drag: the map will move, and tell of it
    this.point(this.at);
    this.pointed.changed();
  }

  private leave(): void {
    this.at = null;
    this.hovered = null;
    this.pointed.hover(null, 0, 0);
    this.pointed.changed();
  }

  private tap({ x, y }: Point, event: MouseEvent): void {
    const cells = this.camera.grid.at(x, y);
    // With Shift it was a rectangle, or is told by its own handler.
    const touched = (event as PointerEvent).pointerType === "touch";
    if (!cells || (event.detail > 1 && !touched) || event.shiftKey) return;
    // On a touch screen the first tap is the pointer, the second one on the same cell pins.
    // What is hovered does not tell: a browser moves its mouse to a tap before it clicks there.
    const before = this.tapped;
    this.tapped = touched ? cells : null;
    if (touched && (before?.q0 !== cells.q0 || before.k0 !== cells.k0)) return this.say(cells, { x, y });
    this.pointed.click(cells, event);
  }

  private turn(event: WheelEvent): void {
    event.preventDefault();
    this.wheel += event.deltaMode === 1 ? event.deltaY * 20 : event.deltaY;
    const steps = Math.trunc(this.wheel / NOTCH);
    if (!steps) return;
    this.wheel = 0;
    this.camera.zoomBy(-Math.sign(steps), this.place(event));
  }

  // A rectangle to zoom into.
  private startBox(event: PointerEvent): void {
    if (!event.shiftKey || event.button !== 0) return;
    event.stopPropagation();
    event.preventDefault();
    const { map } = this.camera;
    map.dragging.disable();
    const from = this.place(event);
    const node = el("div", { class: "box" });
    this.surface.append(node);
    this.box = true;
    this.leave(); // what is said of a cell must not lie over the rectangle
    const move = (moved: PointerEvent) => {
      const to = this.place(moved);
      Object.assign(node.style, {
        left: `${Math.min(from.x, to.x)}px`,
        top: `${Math.min(from.y, to.y)}px`,
        width: `${Math.abs(to.x - from.x)}px`,
        height: `${Math.abs(to.y - from.y)}px`,
      });
    };
    const up = (ended: PointerEvent) => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
      node.remove();
      this.box = false;
      if (!matchMedia("(pointer: coarse)").matches) map.dragging.enable();
      const to = this.place(ended);
      if (Math.abs(to.x - from.x) > 6 && Math.abs(to.y - from.y) > 6) return this.camera.zoomInto(from, to);
      const cells = this.camera.grid.at(from.x, from.y);
      if (cells) this.pointed.click(cells, ended);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
  }
}
