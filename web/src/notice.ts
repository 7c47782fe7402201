// A line at the foot of the page that goes away by itself. One about a failure stays until it is tried again, and what is
// to be copied until it is closed.

import { onChange } from "./changes";
import type { Context } from "./context";
import { el, retryButton } from "./dom";

const STAYS = 6000;

export class NoticeLine {
  readonly node = el("div", { class: "notice", attrs: { hidden: true, role: "status" } });
  private timer = 0;

  constructor(context: Context) {
    onChange(context.notice, ({ text, again, given }) => {
      clearTimeout(this.timer);
      this.node.hidden = !text;
      this.node.replaceChildren(text);
      if (text) this.place();
      if (given) this.give(text, given, () => context.say(""));
      else if (again) this.node.append(retryButton(() => context.retry(again)));
      else if (text) this.timer = window.setTimeout(() => context.say(""), STAYS);
    });
  }

  // Marked at once, so that a key copies it.
  private give(text: string, what: string, close: () => void): void {
    const given = el("span", { class: "given" }, what);
    const button = el("button", { class: "icon-button", attrs: { type: "button", "aria-label": "close" } }, "×");
    button.addEventListener("click", close);
    this.node.replaceChildren(el("span", {}, text, given), button);
    getSelection()?.selectAllChildren(given);
  }

  // A dialog lies over all else: as long as one is open, the line is in it.
  private place(): void {
    const home = document.querySelector(".app");
    const over = document.querySelector("dialog[open]");
    (over ?? home)?.append(this.node);
    over?.addEventListener("close", () => home?.append(this.node), { once: true });
  }
}
