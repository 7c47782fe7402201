// What a model wrote, token by token, with the probability of each and what it might have written instead.

import type { Context } from "./context";
import { el } from "./dom";

export class WrittenView {
  readonly node = el("div", { class: "written" });

  constructor(readonly context: Context) {}

  show(_visible: boolean): void {}
}
