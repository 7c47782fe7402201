// A line at the foot of the page that goes away by itself; one about a failure stays until it is tried again.

import { onChange } from "./changes";
import type { Context } from "./context";
import { el, retryButton } from "./dom";

const STAYS = 6000;

export class NoticeLine {
  readonly node = el("div", { class: "notice", attrs: { hidden: true, role: "status" } });
  private timer = 0;

  constructor(context: Context) {
    onChange(context.notice, ({ text, again }) => {
      clearTimeout(this.timer);
      this.node.hidden = !text;
      this.node.replaceChildren(text);
      if (text) this.place();
      if (again) this.node.append(retryButton(() => context.retry(again)));
      else if (text) this.timer = window.setTimeout(() => context.say(""), STAYS);
    });
  }

  // A dialog lies over all else: as long as one is open, the line is in it.
  private place(): void {
    const home = document.querySelector(".app");
    const over = document.querySelector("dialog[open]");
    (over ?? home)?.append(this.node);
    over?.addEventListener("close", () => home?.append(this.node), { once: true });
  }
}
