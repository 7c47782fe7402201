// The bar of "why": which reading, what for, what is changed; and where to go next.

import type { Context } from "./context";
import { el } from "./dom";
import { Marks } from "./marks";
import { Places } from "./places";

export class WhyBar {
  readonly node: HTMLElement;
  readonly marks: Marks;
  readonly places: Places;

  constructor(context: Context) {
    this.marks = new Marks(context);
    this.places = new Places(context);
    this.node = el(
      "div",
      { class: "why-bar", attrs: { role: "toolbar", "aria-label": "ask why" } },
      el("span", { class: "spring" }),
      ...this.places.nodes,
      this.marks.button,
    );
  }

  // What keys do, in small letters and large.
  shortcuts(both: (key: string, act: () => void) => Record<string, () => void>): Record<string, () => void> {
    return {
      ...both("n", () => void this.places.next()),
      ...both("a", () => void this.places.alike()),
      ...both("b", () => this.marks.open()),
    };
  }

  get dialogs(): HTMLElement[] {
    return [this.marks.node];
  }
}
