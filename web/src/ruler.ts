// The whole text as a strip beside it: where it is shaded, and which part is in view. A drag scrolls.

import { el } from "./dom";

const WIDE = 10;

export class Ruler {
  readonly node = el("canvas", { class: "ruler", attrs: { "aria-hidden": "true" } });

  constructor(
    private scroller: HTMLElement,
    private strength: (token: number) => number,
    private against: (token: number) => boolean,
  ) {
    const { node } = this;
    node.addEventListener("pointerdown", (event) => {
      const move = (moved: PointerEvent) => {
        const box = node.getBoundingClientRect();
        const place = (moved.clientY - box.top) / box.height;
        scroller.scrollTop = place * scroller.scrollHeight - scroller.clientHeight / 2;
      };
      node.setPointerCapture(event.pointerId);
      move(event);
      node.addEventListener("pointermove", move);
      node.addEventListener("pointerup", () => node.removeEventListener("pointermove", move), { once: true });
    });
  }

  draw(count: number): void {
    const ratio = window.devicePixelRatio || 1;
    const height = this.scroller.clientHeight;
    this.node.width = WIDE * ratio;
    this.node.height = height * ratio;
    if (!count || !height) return;
    const context = this.node.getContext("2d")!;
    const ink = getComputedStyle(this.scroller);
    const signed = this.scroller.closest(".signed") !== null;
    const colors = (signed ? ["--raises", "--lowers"] : ["--accent", "--accent"]).map((name) =>
      ink.getPropertyValue(name),
    );
    const device = height * ratio;
    for (let y = 0; y < device; y++) {
      const first = Math.floor((y / device) * count);
      const stop = Math.max(Math.floor(((y + 1) / device) * count), first + 1);
      let [most, token] = [0, first];
      for (let i = first; i < stop && i < count; i++) {
        const strength = this.strength(i);
        if (strength > most) [most, token] = [strength, i];
      }
      if (!most) continue;
      context.fillStyle = colors[Number(this.against(token))];
      context.globalAlpha = most;
      context.fillRect(0, y, WIDE * ratio, 1);
    }
    context.globalAlpha = 1;
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    if (scrollHeight <= clientHeight + 4) return;
    context.strokeStyle = ink.getPropertyValue("--ink2");
    context.lineWidth = ratio;
    const [top, tall] = [(scrollTop / scrollHeight) * device, (clientHeight / scrollHeight) * device];
    context.strokeRect(0.5, top, WIDE * ratio - 1, tall);
  }
}
