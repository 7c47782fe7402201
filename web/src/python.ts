// What is on the screen as a program: text, edits, target, head and cell.

import type { components } from "./api";
import { copyShown } from "./clipboard";
import type { Context } from "./context";
import { el } from "./dom";
import { dialog } from "./export";
import { asked } from "./why";

export class CopyPython {
  readonly button = el(
    "button",
    {
      class: "button quiet",
      title: "what is on the screen as a program",
      attrs: { type: "button", "aria-haspopup": "dialog" },
      on: { click: () => void this.open() },
    },
    "Python",
  );
  readonly node: HTMLDialogElement;
  private code = el("pre", { class: "python", attrs: { tabindex: 0 } });

  constructor(private context: Context) {
    const copy = el("button", { class: "button", attrs: { type: "button" } }, "Copy");
    copy.addEventListener("click", () => void copyShown(context, this.code));
    this.node = dialog("As Python", this.code, el("p", {}, copy));
    this.node.classList.add("wide");
  }

  private async open(): Promise<void> {
    const { context } = this;
    const run = context.run.value;
    if (!run) return;
    const { layer, head, q, k, target, edits, other, view, rail, effects } = context.state;
    // Beside an edited run it is the edited one that is asked about.
    const edited = view === "compare" && other && edits.some((edit) => edit.on) ? other.run : run.asked;
    const given = new URLSearchParams();
    if (q.length) given.set("q", q.join(","));
    if (rail === "effects" && effects) given.set("heads", "true");
    if (k !== null) given.set("k", String(k));
    if (target.token) given.set("token", target.token);
    if (target.than) given.set("than", target.than);
    if (target.after !== null) given.set("after", String(target.after));
    try {
      const path = `/api/runs/${edited}/python/${layer}/${head}?${given}`;
      const found = await asked<components["schemas"]["Python"]>(context.source, path);
      this.code.textContent = found.python;
      this.node.showModal();
    } catch (error) {
      context.failed(error, () => void this.open());
    }
  }
}
