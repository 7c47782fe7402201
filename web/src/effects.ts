// Exact effects of all heads: each is taken out once, and what the target loses by that is beside the first-order figure.

import type { components } from "./api";
import { onChange } from "./changes";
import { colorOf, css, type Scale, show } from "./colors";
import type { Context } from "./context";
import { el, retryButton } from "./dom";
import { HeadGrid } from "./headgrid";
import { aimWords } from "./readings";
import type { OpenRun } from "./run";
import { type OrderInfo, sentence } from "./source";
import { asked, sent } from "./why";

type Table = components["schemas"]["Effects"];
const TOP = 5;

export class EffectsView {
  readonly node: HTMLElement;
  private about = el("p", { class: "summary", attrs: { role: "status" } });
  private order = el("p", { class: "effects-order" });
  private best = el("div", { class: "link-best" });
  private exact: HeadGrid;
  private first: HeadGrid;
  private grids: HTMLElement;
  private visible = false;
  private wanted = ""; // what the table is of, or will be
  private table: Table | null = null;
  private asking = 0;
  private stop: (() => void) | null = null;

  constructor(private context: Context) {
    const open = (layer: number, head: number, compare: boolean) => this.open(layer, head, compare);
    this.exact = new HeadGrid("effect", "exact effects, layers and heads", open);
    this.first = new HeadGrid("first-order", "first-order figures, layers and heads", open);
    const column = (name: string, title: string, grid: HeadGrid) => el("div", {}, el("h3", { title }, name), grid.node);
    this.grids = el(
      "div",
      { class: "effects-grids", attrs: { hidden: true } },
      column("exact", "what is lost without the head, by running the text without it", this.exact),
      column("first order", "what its gradient says of the same: quick, and not always right", this.first),
    );
    this.node = el("div", { class: "every-head effects" }, this.about, this.order, this.best, this.grids);
    context.store.on(["effects", "target", "run"], () => void this.load());
    context.store.on(["layer", "head"], () => this.draw());
    onChange(context.run, () => void this.load());
    onChange(context.dark, () => this.draw());
    onChange(context.again, () => void this.load());
  }

  show(visible: boolean): void {
    this.visible = visible;
    if (visible) void this.load();
  }

  // What the address asks for, and nothing before it is seen: it takes as long as many runs.
  private async load(): Promise<void> {
    const run = this.context.run.value;
    const { effects, target } = this.context.state;
    if (!this.visible || !run || this.context.state.run !== run.id) return;
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
      await this.done(id, asking);
      const given = new URLSearchParams();
      if (target.token) given.set("token", target.token);
      if (target.than) given.set("than", target.than);
      if (target.after !== null) given.set("after", String(target.after));
      const table = await asked<Table>(source, `${path}?${given}`);
      if (asking !== this.asking) return;
      this.table = table;
      this.exact.at(this.context.state.layer, this.context.state.head);
      this.first.at(this.context.state.layer, this.context.state.head);
      this.draw();
    } catch (error) {
      if (asking !== this.asking) return;
      this.wanted = "";
      this.say(sentence(error));
      this.order.replaceChildren(retryButton(() => void this.load()));
    }
  }

  // Waits for an order, and says how far it is.
  private done(id: string, asking: number): Promise<void> {
    const { source } = this.context;
    return new Promise((done, failed) => {
      const close = source.events(id, (order) => {
        if (asking !== this.asking) return;
        if (["done", "failed", "cancelled"].includes(order.state)) this.stop = null;
        if (order.state === "done") done();
        else if (order.state === "failed") failed(new Error(`${order.problem?.error}: ${order.problem?.got}`));
        else if (order.state === "cancelled") this.context.store.replace({ effects: false });
        else this.tell(order);
      });
      this.stop = () => {
        close();
        void source.close(id).catch(() => undefined); // nobody waits for it any more
      };
    });
  }

  private leave(): void {
    this.asking++;
    this.stop?.();
    this.stop = null;
    this.order.replaceChildren();
  }

  private whyNot(run: OpenRun): string | null {
    const { source, way } = this.context;
    if (!source.live) return "A report has no model to take heads out of: sightline serve has.";
    if (way) return "In a notebook: sl.effects(model, ids, target) takes every head out.";
    return run.info.why_not && `Heads cannot be taken out here: ${run.info.why_not}`;
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
    const where =
      order.state === "queued"
        ? `waiting, place ${order.position}`
        : `${order.stage} ${order.done} of ${order.total || "…"}`;
    if (!this.order.querySelector("progress")) {
      const cancel = el("button", { class: "button quiet", attrs: { type: "button" } }, "Cancel");
      cancel.addEventListener("click", () => void this.context.source.close(order.id).catch(() => undefined));
      const bar = el("progress", { attrs: { "aria-label": "heads taken out" } });
      this.order.replaceChildren(bar, el("span", { class: "effects-where" }), cancel);
    }
    const bar = this.order.querySelector("progress")!;
    bar.max = order.total || 1;
    bar.value = order.done;
    this.order.querySelector(".effects-where")!.textContent = ` ${where} `;
    this.say(`What each head did ${aimWords(this.context.state.target)}:`);
  }

  private say(text: string): void {
    this.about.textContent = text;
  }

  private draw(): void {
    const run = this.context.run.value;
    const { table } = this;
    const there = this.visible && run && table && table.exact.length === run.info.layers.length;
    this.grids.hidden = !there;
    if (!there) return this.best.replaceChildren();
    const { layer, head, target } = this.context.state;
    this.order.replaceChildren();
    this.say(
      `What each head did ${aimWords(target)}, ${table.value.toFixed(2)} with all of them. Orange raised it, blue lowered it.`,
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
    const cells = (values: number[][]) =>
      values.map((heads, l) =>
        heads.map((value, h) => ({
          name: words(l, h),
          color: css(colorOf(scale, value)!),
          most: l === all[0].l && h === all[0].h,
        })),
      );
    this.grids.style.setProperty("--heads", String(Math.max(...table.exact.map((heads) => heads.length))));
    this.exact.draw(run, cells(table.exact), [layer, head]);
    this.first.draw(run, cells(table.influence), [layer, head]);
  }

  private open(layer: number, head: number, compare: boolean): void {
    if (compare) return this.context.compareWith(layer, head);
    this.context.openHead(layer, head);
    this.node.dispatchEvent(new CustomEvent("opened", { bubbles: true }));
  }
}
