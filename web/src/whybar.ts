// The bar of "why": which reading, what for, what is changed; and where to go next.

import { onChange } from "./changes";
import type { Second } from "./compare";
import type { Context } from "./context";
import { el } from "./dom";
import { Edits } from "./edits";
import type { Cells } from "./grid";
import { Marks } from "./marks";
import { where } from "./orders";
import { Places } from "./places";
import { CopyPython } from "./python";
import { Readings } from "./readings";
import type { inBoth, Shortcuts } from "./shortcuts";
import type { OrderInfo } from "./source";
import { TargetChoice } from "./target";

export interface Around {
  rectangle: () => Cells | null; // what the map shows, if not all of it
  second: () => Second | null; // what is beside it, if two maps are shown
  refresh: () => Promise<unknown>; // there is a new run
}

export class WhyBar {
  readonly node: HTMLElement;
  readonly marks: Marks;
  readonly places: Places;
  private readings: Readings;
  private target: TargetChoice;
  private edits: Edits;
  private python: CopyPython;
  private progress = el("span", { class: "why-progress", attrs: { role: "status", hidden: true } });

  constructor(
    private context: Context,
    { rectangle, second, refresh }: Around,
  ) {
    const tell = (order: OrderInfo | null) => this.tell(order);
    this.marks = new Marks(context);
    this.places = new Places(context);
    this.readings = new Readings(context, tell);
    this.target = new TargetChoice(context);
    this.edits = new Edits(context, rectangle, tell, refresh);
    const told = () => (context.state.view === "compare" && !this.edits.outcome.hidden ? this.edits.told : null);
    this.python = new CopyPython(context, { rectangle, second, told });
    this.node = el(
      "div",
      { class: "why-bar", attrs: { role: "group", "aria-label": "ask why" } },
      el(
        "div",
        { class: "why-line", attrs: { role: "presentation" } },
        this.readings.node,
        this.target.button,
        this.readings.about,
        this.edits.button,
        el("span", { class: "spring" }),
        ...this.places.nodes,
        this.python.button,
        this.marks.button,
      ),
      this.edits.chips,
      this.progress,
      this.edits.outcome,
    );
    context.store.on(["of"], () => this.fit());
    onChange(context.run, () => this.fit());
    this.fit();
  }

  // What keys do.
  shortcuts(both: typeof inBoth): Shortcuts {
    return {
      ...both("n", () => void this.places.next()),
      ...both("a", () => void this.places.alike()),
      ...both("b", () => this.marks.open()),
      ...(this.edits.button.hidden ? {} : both("c", () => this.edits.open())),
    };
  }

  get dialogs(): HTMLElement[] {
    return [this.marks.node, this.target.node, this.edits.node, this.python.node];
  }

  // What this page cannot do is not offered: a report has no model, a notebook may have none at hand.
  private fit(): void {
    const { source, run } = this.context;
    const model = source.live && run.value !== null && run.value.info.why_not === null;
    this.target.button.hidden = !model;
    this.edits.button.hidden = !model || (run.value?.info.edits.length ?? 0) > 0;
    this.python.button.hidden = !source.live;
  }

  private tell(order: OrderInfo | null): void {
    this.progress.hidden = order === null || ["done", "failed", "cancelled"].includes(order.state);
    if (!order || this.progress.hidden) return;
    const cancel = el(
      "button",
      {
        class: "button quiet",
        attrs: { type: "button" },
        on: { click: () => void this.context.source.close(order.id) },
      },
      "Cancel",
    );
    this.progress.replaceChildren(`${where(order)} `, cancel);
  }
}
