// What happens when a run is there that someone asked for: an example opens at what to look for, a changed text beside the
// one it was.

import { onChange } from "./changes";
import type { Composer, Example, Order } from "./composer";
import { example } from "./composer";
import type { Context } from "./context";
import { el } from "./dom";
import { aligned } from "./pairs";
import type { OpenRun } from "./run";

interface Before {
  run: OpenRun;
  layer: number;
  head: number;
  q: number[];
  k: number | null;
}

export class Arrival {
  // What to look for, until it is dismissed or another run is looked at.
  readonly hint = el("div", { class: "hint", attrs: { hidden: true, role: "note" } });
  private waiting = new Map<string, { order: Order; before: Before | null; done?: boolean }>();

  constructor(
    private context: Context,
    private composer: () => Composer,
  ) {
    context.store.on(["run"], () => (this.hint.hidden = true));
    onChange(context.run, (run) => {
      // After all others have heard of the new run.
      if (run && this.waiting.get(run.id)?.done) window.setTimeout(() => this.here(run.id), 0);
    });
  }

  expect(id: string, order: Order): void {
    const run = this.context.run.value;
    const { layer, head, q, k } = this.context.state;
    const before = run && order.edits === run.id ? { run, layer, head, q, k } : null;
    this.waiting.set(id, { order, before });
  }

  // The run is open: go to what it was made for.
  here(id: string): void {
    const wanted = this.waiting.get(id);
    const run = this.context.run.value;
    if (!wanted) return;
    wanted.done = true;
    if (run?.id !== id) return; // it is still being opened
    this.waiting.delete(id);
    const { order, before } = wanted;
    if (before && before.run.id === id) return this.context.say("the text is the same: there is nothing to compare");
    const place = order.example && this.placeOf(order.example);
    if (before) this.beside(run, before, place);
    else if (place) this.context.store.push({ ...place, view: "map", at: null });
    if (order.example) this.tell(order.example, id);
  }

  private placeOf({ layer, head, q, k }: Example) {
    return { layer, head, q: [q], k };
  }

  // The same head, and what was pinned where its letters are now.
  private beside(
    run: OpenRun,
    before: Before,
    given: { layer: number; head: number; q: number[]; k: number } | null,
  ): void {
    const layer = Math.min(before.layer, run.info.layers.length - 1);
    const head = Math.min(before.head, run.layer(layer).heads - 1);
    const way = aligned(before.run.tokens, run.tokens);
    const place = given ?? {
      layer,
      head,
      q: before.q.map((q) => way[q] ?? null).filter((q) => q !== null),
      k: before.k === null ? null : (way[before.k] ?? null),
    };
    const other = { run: before.run.id, layer: given?.layer ?? before.layer, head: given?.head ?? before.head };
    this.context.store.push({ ...place, at: null, view: "compare", other });
  }

  private tell(one: Example, id: string): void {
    const dismiss = el("button", { class: "button quiet", attrs: { type: "button" } }, "Dismiss");
    dismiss.addEventListener("click", () => (this.hint.hidden = true));
    const control = one.control ? example(one.control) : null;
    const next = control
      ? el("button", { class: "button", attrs: { type: "button" } }, "Run the swapped text beside it")
      : null;
    next?.addEventListener("click", () => void this.composer().runExample(control!, id));
    this.hint.replaceChildren(el("b", {}, one.name), el("span", {}, `${one.about} ${one.found}`), next ?? "", dismiss);
    this.hint.hidden = false;
  }
}
