// Exact effects of all heads: each is taken out once, and what the target loses by that is beside the first-order figure.

import type { components } from "./api";
import { colorOf, css, type Scale, show } from "./colors";
import type { Context } from "./context";
import { el, retryButton } from "./dom";
import { HeadGrid } from "./headgrid";
import { segmented } from "./legend";
import { Seen } from "./listening";
import { TakenBack, type Waiting, waitFor, where } from "./orders";
import { aimWords } from "./readings";
import type { OpenRun } from "./run";
import { type OrderInfo, sentence } from "./source";
import { asked, sent } from "./why";
import type { Target } from "./whystate";

type Table = components["schemas"]["Effects"];
const TOP = 5;
const FIGURES = {
  exact: "what is lost without the head, by running the text without it",
  "first order": "what its gradient says of the same: quick, and not always right",
};
const NO_MODEL = "its model is not at hand"; // how the server begins to say so

export class EffectsView {
  readonly node: HTMLElement;
  private about = el("p", { class: "summary", attrs: { role: "status" } });
  private order = el("p", { class: "effects-order" });
  private aims = el("select", { class: "effects-aims", attrs: { "aria-label": "what for", hidden: true } });
  private best = el("div", { class: "link-best" });
  private grid = new HeadGrid("effect", "effects, layers and heads", (...head) => this.open(...head));
  private choice = segmented("figures", Object.keys(FIGURES), (name) => this.choose(name));
  private shown = "exact";
  private seen: Seen;
  private wanted = ""; // what the table is of, or will be
  private table: Table | null = null;
  private asking = 0;
  private waiting: Waiting | null = null;

  constructor(private context: Context) {
    Object.values(FIGURES).forEach((title, i) => {
      (this.choice.node.children[i] as HTMLElement).title = title;
    });
    const parts = [this.aims, this.about, this.order, this.best, this.choice.node, this.grid.node];
    this.node = el("div", { class: "every-head effects" }, ...parts);
    this.choice.node.hidden = true;
    const [load, draw] = [() => void this.load(), () => this.draw()];
    this.seen = new Seen(context, ["effects", "target"], ["layer", "head"], load, draw);
  }

  show(now: boolean): void {
    this.seen.show(now);
  }

  // What the address asks for, and nothing before it is seen: it takes as long as many runs.
  private async load(): Promise<void> {
    const run = this.context.run.value;
    const { effects, target } = this.context.state;
    if (!run || this.context.state.run !== run.id) return;
    if (!this.context.source.live) return this.held();
    const now = JSON.stringify([run.id, target, effects]);
    if (now === this.wanted) return this.draw();
    this.leave();
    this.wanted = now;
    this.table = null;
    this.draw();
    const why = this.whyNot(run);
    if (why) return this.say(why);
    if (!effects) return this.offer(run);
    const asking = this.asking;
    try {
      const { source } = this.context;
      const path = `/api/runs/${run.id}/effects`;
      const { id } = await asked<{ id: string }>(source, path, sent("POST", target));
      if (asking !== this.asking) return void source.close(id).catch(() => undefined);
      this.waiting = waitFor(source, id, (order) => this.tell(order));
      await this.waiting.done;
      this.waiting = null;
      const given = new URLSearchParams();
      if (target.token) given.set("token", target.token);
      if (target.than) given.set("than", target.than);
      if (target.after !== null) given.set("after", String(target.after));
      const table = await asked<Table>(source, `${path}?${given}`);
      if (asking !== this.asking) return;
      this.table = table;
      this.grid.at(this.context.state.layer, this.context.state.head);
      this.draw();
    } catch (error) {
      if (asking !== this.asking) return;
      this.waiting = null;
      if (error instanceof TakenBack) return this.context.store.replace({ effects: false });
      this.wanted = "";
      this.say(sentence(error));
      this.order.replaceChildren(retryButton(() => void this.load()));
    }
  }

  // A report: what it holds for that target, or else for another one.
  private held(): void {
    const { source, state, store } = this.context;
    const tables = source.kept?.().effects ?? [];
    const of = ({ token, than, after }: Target) => JSON.stringify([token, than, after]);
    this.table = tables.find((one) => of(one) === of(state.target)) ?? tables[0] ?? null;
    if (!this.table)
      this.say("This report holds no effects of heads, and has no model to find them: sightline serve has.");
    this.aims.hidden = tables.length < 2;
    this.aims.replaceChildren(
      ...tables.map((one, i) => el("option", { attrs: { value: i, selected: one === this.table } }, aimWords(one))),
    );
    this.aims.onchange = () => {
      const { token, than, after } = tables[Number(this.aims.value)];
      store.push({ target: { token, than, after } });
    };
    this.grid.at(state.layer, state.head);
    this.draw();
  }

  private leave(): void {
    this.asking++;
    this.waiting?.leave();
    this.waiting = null;
    this.order.replaceChildren();
  }

  private whyNot(run: OpenRun): string | null {
    const { way } = this.context;
    const why = run.info.why_not;
    if (!why?.startsWith(NO_MODEL)) return why && `Heads cannot be taken out here: ${why}.`;
    return way
      ? "Heads are taken out of the model, and this widget was given none: explorer(seen, model=model)."
      : "Heads are taken out of the model, and this server has it not: sightline serve --model its/folder.";
  }

  private offer(run: OpenRun): void {
    const heads = run.info.layers.reduce((sum, layer) => sum + layer.heads, 0);
    this.say(
      `What each head did ${aimWords(this.context.state.target)}: every one of ${heads} is taken out once, and the text is run without it.`,
    );
    const start = el("button", { class: "button primary", attrs: { type: "button" } }, "Exact effects of all heads");
    start.addEventListener("click", () => this.context.store.push({ effects: true }));
    this.order.replaceChildren(start);
  }

  private tell(order: OrderInfo): void {
    if (!["queued", "running"].includes(order.state)) return;
    if (!this.order.querySelector("progress")) {
      const cancel = el("button", { class: "button quiet", attrs: { type: "button" } }, "Cancel");
      cancel.addEventListener("click", () => void this.context.source.close(order.id).catch(() => undefined));
      const bar = el("progress", { attrs: { "aria-label": "heads taken out" } });
      this.order.replaceChildren(bar, el("span", { class: "effects-where" }), cancel);
    }
    const bar = this.order.querySelector("progress")!;
    bar.max = order.total || 1;
    bar.value = order.done;
    this.order.querySelector(".effects-where")!.textContent = ` ${where(order)} `;
    this.say(`What each head did ${aimWords(this.context.state.target)}:`);
  }

  private say(text: string): void {
    this.about.textContent = text;
  }

  private draw(): void {
    const run = this.context.run.value;
    const { table } = this;
    const there = this.seen.now && run && table && table.exact.length === run.info.layers.length;
    this.choice.node.hidden = !there;
    if (!there) {
      this.grid.clear();
      return this.best.replaceChildren();
    }
    const { layer, head } = this.context.state;
    this.order.replaceChildren();
    this.say(
      `What each head did ${aimWords(table)}, ${table.value.toFixed(2)} with all of them. Orange raised it, blue lowered it.`,
    );
    const all = table.exact.flatMap((heads, l) => heads.map((value, h) => ({ l, h, value })));
    all.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    this.best.replaceChildren(
      ...all.slice(0, TOP).map(({ l, h, value }) =>
        el(
          "button",
          {
            class: "chip-button",
            title: `without it ${show(table.value - value)}; first order ${show(table.influence[l][h])}`,
            attrs: { type: "button" },
            on: { click: () => this.open(l, h, false) },
          },
          run.short(l, h),
          el("b", {}, ` ${show(value)}`),
        ),
      ),
    );
    const most = Math.abs(all[0]?.value ?? 0) || 1;
    const scale: Scale = { ...this.context.scale(), name: "linear", lo: 0, hi: most, difference: true };
    const words = (l: number, h: number) =>
      `${run.name(l, h)}: exact ${show(table.exact[l][h])}, first order ${show(table.influence[l][h])}`;
    // One scale for both figures: changing between them shows where they disagree.
    const values = this.shown === "exact" ? table.exact : table.influence;
    const cells = values.map((heads, l) =>
      heads.map((value, h) => ({
        name: words(l, h),
        color: css(colorOf(scale, value)!),
        most: l === all[0].l && h === all[0].h,
      })),
    );
    this.choice.set(this.shown);
    this.grid.draw(run, cells, [layer, head]);
  }

  private choose(name: string): void {
    this.shown = name;
    this.draw();
  }

  private open(layer: number, head: number, compare: boolean): void {
    if (compare) return this.context.compareWith(layer, head);
    this.context.openHead(layer, head);
    this.node.dispatchEvent(new CustomEvent("opened", { bubbles: true }));
  }
}
