// The button that fills an empty view: it pins the strongest link of the head that is open.

import type { Context } from "./context";
import { el } from "./dom";

// None where no link is known.
export function strongestButton(context: Context): HTMLElement[] {
  const link = context.link.value;
  if (!link) return [];
  const click = () => context.pin(link[0], link[1]);
  return [el("button", { class: "button invite", attrs: { type: "button" }, on: { click } }, "Pin the strongest link")];
}
