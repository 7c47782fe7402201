// Cut this: edits of a head, a cell, a row, a column or a rectangle. The run is done again beside the old one.

import type { components } from "./api";
import { onChange } from "./changes";
import type { Context } from "./context";
import { el } from "./dom";
import { dialog } from "./export";
import type { Cells } from "./grid";
import { waitFor } from "./orders";
import type { OpenRun } from "./run";
import { isRun, type OrderInfo } from "./source";
import { visible } from "./tokens";
import { asked, sent } from "./why";
import { type Edit, editWords } from "./whystate";

type Next = components["schemas"]["Next"];
type Written = components["schemas"]["Written"];
type Where = "head" | "cell" | "row" | "column" | "rectangle";

export class Edits {
  readonly button = el("button", {
    class: "button quiet",
    title: "cut, scale or boost what is looked at, and see what changes (C)",
    attrs: { type: "button", "aria-haspopup": "dialog" },
    on: { click: () => this.open() },
  });
  readonly chips = el("span", { class: "edit-chips" });
  readonly outcome = el("p", { class: "outcome", attrs: { role: "status", hidden: true } });
  readonly node: HTMLDialogElement;
  private actions = el("div", { class: "edit-actions" });
  private factor = el("input", {
    attrs: { type: "number", min: 0, max: 100, step: 0.1, value: 2, id: "edit-factor" },
  });
  told: { token: string; than: string } | null = null; // the tokens whose change is told
  private asking = 0;
  private done = "";

  // `rectangle` is what the map shows, if not all of it.
  constructor(
    private context: Context,
    private rectangle: () => Cells | null,
    private progress: (order: OrderInfo | null) => void,
    private refresh: () => Promise<unknown>,
  ) {
    this.node = dialog(
      "Change what it attends to",
      el("p", { class: "fine" }, "The text is run again with the change, beside the run as it is."),
      el(
        "p",
        { class: "fine" },
        "Ablated, a head gives nothing. What is cut is not looked at: the other weights of a row grow until they sum to 1. Scaling multiplies what a head gives; boosting multiplies weights, against the others of their row.",
      ),
      el("p", {}, el("label", { attrs: { for: "edit-factor" } }, "factor to scale or boost by "), this.factor),
      this.actions,
    );
    context.store.on(["edits"], () => void this.apply());
    context.store.on(["target"], () => void this.tell());
    onChange(context.run, () => void this.apply());
    this.draw();
  }

  open(): void {
    this.offer();
    this.node.showModal();
  }

  // Every place that can be meant, and what can be done there.
  private offer(): void {
    const run = this.context.run.value;
    if (!run) return;
    const { layer, head, q, k } = this.context.state;
    const info = run.layer(layer);
    const who = `${info.number}.${info.numbers[head] ?? head}`;
    const query = q.at(-1);
    const keys = run.keyTokens(layer);
    const name = (i: number, of = run.tokens) => `“${of.label(i)}” (${i})`;
    const places: [Where, string, string, string[]][] = [["head", run.name(layer, head), "", ["ablate", "scale"]]];
    if (query !== undefined && k !== null)
      places.push(["cell", `${name(query)} → ${name(k, keys)}`, `:q${query}:k${k}`, ["cut", "boost"]]);
    if (query !== undefined) places.push(["row", `all that ${name(query)} looks at`, `:q${query}`, ["cut"]]);
    if (k !== null) places.push(["column", `all who look at ${name(k, keys)}`, `:k${k}`, ["cut", "boost"]]);
    const seen = this.rectangle();
    if (seen) {
      const span = (a: number, b: number) => (b - a === 1 ? `${a}` : `${a}-${b - 1}`);
      const at = `:q${span(seen.q0, seen.q1)}:k${span(seen.k0, seen.k1)}`;
      places.push(["rectangle", `what the map shows, ${at.slice(1).replace(":", ", ")}`, at, ["cut", "boost"]]);
    }
    const button = (kind: string, text: string, at: string, heads: string) =>
      el(
        "button",
        { class: "button", attrs: { type: "button" }, on: { click: () => this.add(kind, heads, at) } },
        text,
      );
    this.actions.replaceChildren(
      ...places.map(([where, title, at, kinds]) =>
        el(
          "section",
          { attrs: { "data-where": where } },
          el("h3", {}, title),
          el(
            "div",
            {},
            ...kinds.map((kind) => button(kind, words(kind), at, who)),
            ...(where === "head" ? [] : [button("cut", "cut in every head", at, "*.*")]),
          ),
        ),
      ),
    );
  }

  private add(kind: string, who: string, at: string): void {
    const factor = Number(this.factor.value);
    const needs = kind === "scale" || kind === "boost";
    if (needs && !(factor >= 0 && factor <= 100 && (kind === "scale" || factor > 0)))
      return this.context.say("a factor from 0 to 100; a boost above 0");
    const what = `${kind}:${who}${at}${needs ? `:x${Number(factor.toFixed(4))}` : ""}`;
    this.node.close();
    const { edits } = this.context.state;
    if (!edits.some((edit) => edit.what === what)) this.context.store.push({ edits: [...edits, { what, on: true }] });
  }

  // Whether the model is at hand: a report has none, a notebook may have none.
  private get canRun(): boolean {
    const { source, run } = this.context;
    return source.live && run.value?.info.why_not === null;
  }

  private draw(): void {
    const { edits } = this.context.state;
    this.button.textContent = "Cut this";
    if (edits.length && this.context.run.value && !this.canRun) {
      const names = edits.map(({ what }) => editWords(what)).join("; ");
      return this.chips.replaceChildren(
        el("span", { class: "edit-chip fine" }, `${names}: not run here, an edit needs the model`),
      );
    }
    const put = (changed: Edit[]) => this.context.store.push({ edits: changed });
    this.chips.replaceChildren(
      ...edits.map((edit, i) => {
        const box = el("input", { attrs: { type: "checkbox", id: `edit-${i}` } });
        box.checked = edit.on;
        box.addEventListener("change", () =>
          put(edits.map((other, j) => (i === j ? { ...other, on: box.checked } : other))),
        );
        const name = editWords(edit.what);
        return el(
          "span",
          { class: "edit-chip" },
          el("label", { attrs: { for: `edit-${i}` } }, box, ` ${name}`),
          el(
            "button",
            {
              attrs: { type: "button", "aria-label": `remove: ${name}` },
              on: { click: () => put(edits.filter((_, j) => j !== i)) },
            },
            "×",
          ),
        );
      }),
    );
  }

  // The run with these edits, beside the run.
  private async apply(): Promise<void> {
    this.draw();
    const { context } = this;
    const run = context.run.value;
    const on = context.state.edits.filter((edit) => edit.on).map((edit) => edit.what);
    if (!run || run.info.edits.length) return; // one that is edited is not edited again
    const now = `${run.id} ${on.join()}`;
    if (now === this.done) return;
    const asking = ++this.asking;
    this.outcome.hidden = true;
    if (!on.length) {
      if (this.done.startsWith(`${run.id} `) && context.state.view === "compare")
        context.store.push({ other: null, view: "map" });
      this.done = now;
      return;
    }
    this.done = now;
    if (!this.canRun) return; // the list says so
    try {
      const body = { ...(await this.given(run)), model: run.info.model, edits: on };
      const { id } = await asked<{ id: string }>(context.source, "/api/runs", sent("POST", body));
      await this.finished(id, asking);
      if (asking !== this.asking) return;
      await this.refresh();
      const { layer, head } = context.state;
      // It has all layers, of which this run may have some.
      const numbers = context.store.numbers.get(id) ?? [];
      const same = Math.max(numbers.indexOf(run.layer(layer).number), 0);
      context.store.replace({ other: { run: id, layer: same, head }, view: "compare" });
      await this.tell();
    } catch (error) {
      if (asking === this.asking) context.failed(error, () => void this.apply());
      this.done = "";
    } finally {
      if (asking === this.asking) this.progress(null);
    }
  }

  // The tokens of a run once more: what was written is written again, though other tokens be likelier now.
  private async given(run: OpenRun): Promise<{ text: string; generate?: number; begun?: number[] }> {
    const { source } = this.context;
    const prompt = run.info.asked;
    if (typeof prompt !== "string") return { text: await source.text(run.id) };
    const { tokens } = await asked<Written>(source, `/api/runs/${run.id}/written`);
    return { text: prompt, generate: tokens.length, begun: tokens.map(({ id }) => id) };
  }

  private async finished(id: string, asking: number): Promise<void> {
    const found = await this.context.source.run(id);
    if (isRun(found) && !found.growing) return; // of one that grows, layers and next words are still to come
    const { done } = waitFor(this.context.source, id, (order) => asking === this.asking && this.progress(order));
    await done;
  }

  // What it does to the next token: "without layer 23 head 3: Mary 0.923 → 0.873, …".
  private async tell(): Promise<void> {
    const { context } = this;
    const [run, { other, edits, target }] = [context.run.value, context.state];
    const on = edits.filter((edit) => edit.on);
    if (!run || !other || !on.length || other.run === run.id || !context.source.live) return;
    const now = this.asking;
    try {
      const ask = (id: string, token: string, than: string) => {
        const after = target.after === null ? "" : `&after=${target.after}`;
        const words = `token=${encodeURIComponent(token)}&than=${encodeURIComponent(than)}`;
        return asked<Next>(context.source, `/api/runs/${id}/next?${words}${after}`);
      };
      const before = await ask(run.id, target.token, target.than);
      // Without another token: the one that comes next after the likeliest.
      const than = before.than?.text ?? before.tokens.find(({ id }) => id !== before.token.id)?.text ?? "";
      const was = before.than ? before : await ask(run.id, before.token.text, than);
      const is = await ask(other.run, before.token.text, than);
      if (now !== this.asking) return;
      const change = (a: Next["token"] | null, b: Next["token"] | null) =>
        a && b ? `${visible(a.text)} ${a.p.toFixed(3)} → ${b.p.toFixed(3)}` : "";
      const difference = `difference of their logits ${was.value.toFixed(2)} → ${is.value.toFixed(2)}`;
      this.outcome.hidden = false;
      this.told = { token: before.token.text, than };
      this.outcome.textContent = `${on.map(({ what }) => editWords(what)).join("; ")}: ${change(was.token, is.token)}, ${change(was.than, is.than)}; ${difference}`;
    } catch {
      this.outcome.hidden = true; // a model without tokens to predict: the maps say what changed
    }
  }
}

function words(kind: string): string {
  return { ablate: "ablate it", cut: "cut it", scale: "scale it", boost: "boost it" }[kind] ?? kind;
}
