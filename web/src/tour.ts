// A short walk around the page: a card beside each part, which can be left at any step.

import { clamp, el, touched } from "./dom";
import type { Panel } from "./state";

interface Stop {
  at: string; // what the card stands beside
  panel: Panel; // where that is on a phone
  title: string;
  text: string;
  touch?: string; // what is done by fingers
}

const STOPS: Stop[] = [
  {
    at: ".sentence-line",
    panel: "text",
    title: "One link, in words",
    text: "A query looks at a key: of all that the first token looks at, this share goes to the second. The numbers behind the words are their positions.",
  },
  {
    at: ".heads-grid",
    panel: "heads",
    title: "Every head is a small map",
    text: "The most interesting come first; the chips of the Heads list rank them by something else. Click one to open it. The ? beside a measure says what it means.",
    touch:
      "The most interesting come first; the chips above rank them by something else. Tap one to open it. The ? beside a measure says what it means.",
  },
  {
    at: ".centre-map .surface",
    panel: "centre",
    title: "The map of the open head",
    text: "Queries go down, keys across. Point at a cell to read it, click to pin it, Esc to release it. Scroll to zoom, drag to move.",
    touch: "Tap a cell to read it, tap it again to pin it. + and − zoom, two fingers move the map.",
  },
  {
    at: ".text-frame",
    panel: "text",
    title: "The text",
    text: "Point at a word to see what it looks at, or who looks at it; click pins it. Rollout (R) follows it through all layers. The glass finds words.",
    touch:
      "Tap a word to see what it looks at, or who looks at it; a second tap pins it. Rollout follows it through all layers. The glass finds words.",
  },
  {
    at: ".centre > .tabs",
    panel: "more",
    title: "Other views of the same",
    text: "Links draws lines between words, Steps shows how a number was computed, Compare puts two heads, texts or models side by side.",
  },
  {
    at: ".bar",
    panel: "text",
    title: "A text of your own",
    text: "New text runs a model on what you type, or on an example that shows something. The pencil changes the text of a run and puts both side by side. The address says where you are: copy it to show somebody.",
  },
];

const GAP = 12;

export class Tour {
  readonly node = el("div", {
    class: "tour",
    attrs: { role: "dialog", "aria-label": "tour", tabindex: -1, hidden: true },
  });
  private at = -1;
  private from: Element | null = null;
  private back: () => void = () => undefined;

  // `here` says how to come back to where the page is.
  constructor(
    private show: (panel: Panel) => void,
    private here: () => () => void,
  ) {
    this.node.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.leave();
      else if (event.key === "ArrowRight") this.go(this.at + 1);
      else if (event.key === "ArrowLeft") this.go(this.at - 1);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    window.addEventListener("resize", () => this.place());
  }

  start(): void {
    this.from = document.activeElement;
    this.back = this.here();
    this.go(0);
  }

  leave(): void {
    this.mark(null);
    this.node.hidden = true;
    this.at = -1;
    this.back();
    if (this.from instanceof HTMLElement) this.from.focus();
  }

  private go(to: number): void {
    if (to >= STOPS.length) return this.leave();
    this.at = Math.max(0, to);
    const { title, text, touch, panel } = STOPS[this.at];
    const button = (name: string, click: () => void, kind = "") =>
      el("button", { class: `button ${kind}`, attrs: { type: "button" }, on: { click } }, name);
    const last = this.at === STOPS.length - 1;
    this.node.replaceChildren(
      el("h2", { class: "plain" }, title),
      el("p", {}, (touched() && touch) || text),
      el(
        "div",
        { class: "tour-row" },
        el("span", { class: "fine" }, `${this.at + 1} of ${STOPS.length}`),
        el("span", { class: "spring" }),
        last ? null : button("Leave", () => this.leave(), "quiet"),
        this.at ? button("Back", () => this.go(this.at - 1), "quiet") : null,
        button(last ? "Done" : "Next", () => this.go(this.at + 1), "primary"),
      ),
    );
    this.show(panel);
    this.node.hidden = false;
    this.place();
    this.node.focus();
  }

  private target(): Element | null {
    return this.at < 0 ? null : document.querySelector(STOPS[this.at].at);
  }

  private mark(target: Element | null): void {
    for (const marked of document.querySelectorAll(".tour-target")) marked.classList.remove("tour-target");
    target?.classList.add("tour-target");
  }

  // Beside its part where there is room, else over the foot of it; a phone has it at the foot of the page.
  private place(): void {
    const target = this.target();
    this.mark(target);
    if (!target || this.node.hidden) return;
    const box = target.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.node;
    const right = box.right + GAP + width < innerWidth ? box.right + GAP : box.left - GAP - width;
    const beside = right > 0 && box.height > height;
    const left = beside ? right : clamp(box.left + GAP, GAP, innerWidth - width - GAP);
    const top = beside ? box.top + GAP : Math.min(box.bottom + GAP, innerHeight - height - GAP);
    this.node.style.left = `${Math.round(left)}px`;
    this.node.style.top = `${Math.round(clamp(top, GAP, innerHeight - height - GAP))}px`;
  }
}
