// What attended without being seen: how many modules in the bar, and who and why in a dialog.

import { el } from "./dom";
import { dialog } from "./export";
import type { OpenRun } from "./run";

export class Unseen {
  readonly node = el("button", {
    class: "button quiet unseen",
    title: "which modules attended without being seen, and why",
    attrs: { type: "button", hidden: true, "aria-haspopup": "dialog" },
    on: { click: () => this.dialog.showModal() },
  });
  private reasons = el("dl", { class: "reasons" });
  readonly dialog = dialog(
    "Not seen",
    el("p", {}, "These modules attended, but not in a way that could be followed: no map here shows them."),
    this.reasons,
  );

  show(run: OpenRun): void {
    const missed = Object.keys(run.info.unseen).length;
    this.node.hidden = !missed;
    this.node.textContent = `${missed.toLocaleString("en")} not seen`;
    const groups = run
      .unseenByReason()
      .map(([why, names]) => [
        el("dt", {}, names.length > 1 ? `${why} (${names.length.toLocaleString("en")})` : why),
        ...names.map((name) => el("dd", {}, name)),
      ]);
    this.reasons.replaceChildren(...groups.flat());
    if (!missed) this.dialog.close();
  }
}
