// The bar at the top: which run, a new text, which head, and what can be done with the view.

import { Arrival } from "./beside";
import { mark } from "./brand";
import { onChange } from "./changes";
import { Composer, EXAMPLE, type Order } from "./composer";
import type { Context } from "./context";
import { el, icon, shortened } from "./dom";
import { toCome, where } from "./orders";
import { isOwn, setOwn } from "./ownorders";
import { isRun, type Limits, type OrderInfo, type RunShort, whole } from "./source";
import { Unseen } from "./unseen";

export class Header {
  readonly node: HTMLElement;
  readonly progress = el("div", { class: "progress", attrs: { hidden: true, role: "status" } });
  readonly pending = el("p", { class: "pending" }); // in place of the views, while the first run is still to come
  runs: RunShort[] = [];
  private limits: Limits | null = null;
  private runSelect = el("select", { class: "run-select", attrs: { "aria-label": "run" } });
  private layerSelect = el("select", { attrs: { "aria-label": "layer" } });
  private headSelect = el("select", { attrs: { "aria-label": "head" } });
  readonly unseen = new Unseen();
  private closed: Set<string> | null = null; // runs that made room for others, as far as that was said
  private composer: Composer;
  private arrival: Arrival;
  private editButton: HTMLButtonElement;
  private newButton: HTMLButtonElement;
  private closeButton: HTMLButtonElement;
  private stopEvents: (() => void) | null = null;

  constructor(
    private context: Context,
    actions: { share: () => void; export: () => void; help: () => void; tour: () => void },
  ) {
    this.composer = new Composer(
      (order) => this.start(order),
      () => this.toggleComposer(false),
    );
    this.arrival = new Arrival(context, () => this.composer);
    const tool = (name: string, title: string, click: () => void) =>
      el(
        "button",
        { class: `icon-button ${name}`, title, attrs: { type: "button", "aria-label": title }, on: { click } },
        icon(name),
      );
    this.newButton = el(
      "button",
      {
        class: "button primary",
        attrs: { type: "button", "aria-expanded": "false" },
        on: {
          click: () => {
            this.composer.anew();
            this.toggleComposer();
          },
        },
      },
      "New text",
    );
    this.editButton = tool("edit", "change the text of this run, and run it again", () => void this.edit());
    this.closeButton = tool("close", "close this run", () => void this.closeRun());
    this.node = el(
      "header",
      { class: "bar" },
      el(
        "a",
        {
          class: "brand",
          attrs:
            context.way || !context.source.live
              ? { "aria-label": "Sightline", role: "img" }
              : { href: "/", "aria-label": "Sightline" },
        },
        mark(),
        el("span", {}, "Sightline"),
      ),
      el("span", { class: "run-pick" }, this.runSelect, this.editButton, this.closeButton),
      this.newButton,
      el("span", { class: "spring" }),
      el("span", { class: "pick" }, this.unseen.node, this.layerSelect, this.headSelect),
      el(
        "span",
        { class: "tools" },
        tool("share", "copy the address of this view", actions.share),
        tool("export", "export (E)", actions.export),
        tool("theme", "light or dark", () => context.switchTheme()),
        el(
          "button",
          { class: "button quiet tour-button", attrs: { type: "button" }, on: { click: actions.tour } },
          "Tour",
        ),
        tool("help", "help and keys (?)", actions.help),
      ),
    );
    this.runSelect.addEventListener(
      "change",
      () =>
        // If it cannot be opened, the name of the run that is shown stays.
        void context.open(this.runSelect.value, true).then(() => this.refresh().catch(() => this.draw())),
    );
    this.layerSelect.addEventListener("change", () => {
      const layer = Number(this.layerSelect.value);
      const heads = context.run.value?.layer(layer).heads ?? 1;
      context.openHead(layer, Math.min(context.state.head, heads - 1));
    });
    this.headSelect.addEventListener("change", () =>
      context.openHead(context.state.layer, Number(this.headSelect.value)),
    );
    onChange(context.run, () => this.draw());
    context.store.on(["layer", "head"], () => this.draw());
  }

  get composerNode(): HTMLElement {
    return this.composer.node;
  }

  get hint(): HTMLElement {
    return this.arrival.hint;
  }

  async load(): Promise<void> {
    this.limits = await this.context.source.limits();
    this.composer.setLimits(this.limits);
    this.newButton.hidden = this.editButton.hidden = !this.limits.models.length;
    await this.refresh();
  }

  async refresh(): Promise<OrderInfo[]> {
    const { runs, orders, closed } = await this.context.source.runs();
    this.runs = runs;
    for (const run of runs) this.context.store.numbers.set(run.id, run.layer_numbers);
    this.draw();
    const news = closed.filter((run) => this.closed?.has(run.id) === false);
    this.closed = new Set(closed.map((run) => run.id));
    if (news.length) this.tellClosed(news);
    for (const order of orders) if (!this.stopEvents) this.follow(order.id);
    return orders;
  }

  // Nothing to look at yet: the text box takes the place of everything.
  invite(): void {
    this.composer.node.hidden = false;
    this.composer.node.classList.add("alone");
    this.composer.anew();
    this.composer.fill(EXAMPLE);
  }

  toggleComposer(show = this.composer.node.hidden): void {
    this.composer.node.hidden = !show;
    this.newButton.setAttribute("aria-expanded", String(show));
    (show ? this.composer : this.newButton).focus();
  }

  private draw(): void {
    const { run, state } = this.context;
    const open = run.value;
    document.title = open ? `${shortened(open.info.title, 40)} – Sightline` : "Sightline";
    this.runSelect.replaceChildren(
      ...this.runs.map((r) =>
        el(
          "option",
          { attrs: { value: r.id, selected: r.id === open?.id } },
          `${r.model ?? "run"}: ${shortened(r.title, 40) || r.origin} (${this.tokens(r).toLocaleString("en")})`,
        ),
      ),
    );
    this.runSelect.hidden = this.closeButton.hidden = !this.runs.length;
    const words = open?.tokens.length && !open.info.image?.alone; // a picture is no text to change
    this.editButton.hidden = !this.limits?.models.length || !words;
    if (!open) return;
    this.layerSelect.replaceChildren(
      ...open.info.layers.map((layer) =>
        el(
          "option",
          { title: layer.name, attrs: { value: layer.index, selected: layer.index === state.layer } },
          `Layer ${layer.number}${layer.cross ? " cross" : ""}`,
        ),
      ),
    );
    this.unseen.show(open);
    const layer = open.layer(state.layer);
    this.layerSelect.title = layer.name;
    this.headSelect.replaceChildren(
      ...layer.numbers.map((number, i) =>
        el("option", { attrs: { value: i, selected: i === state.head } }, `Head ${number}`),
      ),
    );
  }

  // A run that is being written has more of them than when the list came.
  private tokens(run: RunShort): number {
    const open = this.context.run.value;
    return open?.id === run.id ? open.info.tokens : run.tokens;
  }

  private async start(order: Order): Promise<void> {
    const { id } = await this.context.source.order(order.text, order.model, order.generate, order.image);
    this.arrival.expect(id, order);
    this.toggleComposer(false);
    this.await(id);
  }

  // What was ordered here is opened as soon as there is something of it.
  await(id: string): void {
    setOwn(id, true);
    this.follow(id);
  }

  // The text of the open run in the text box.
  private async edit(): Promise<void> {
    const open = this.context.run.value;
    if (!open) return;
    try {
      this.composer.edit(open.id, await this.context.source.text(open.id), open.info.model);
      this.toggleComposer(true);
    } catch (error) {
      this.context.failed(error, () => void this.edit());
    }
  }

  // How an order goes, until it is there. Somebody else's is not opened over what is looked at here.
  private follow(id: string): void {
    this.stopEvents?.();
    const wanted = () => isOwn(id) || [null, id].includes(this.context.showing);
    const stop = this.context.source.events(id, (order) => {
      this.show(order);
      if (order.state !== "running") this.missed = null;
      const some = order.stage === "generating" ? order.done > 1 : order.stage === "running" && order.done > 0;
      if (some && wanted()) void this.grow(id);
      if (order.state === "done") {
        this.stopEvents = null;
        this.progress.hidden = true;
        const opens = wanted();
        setOwn(id, false);
        if (opens) this.settle();
        const listed = this.refresh();
        if (opens) void listed.then(() => this.context.grow(id)).then(() => this.arrival.here(id));
      } else if (order.state === "failed" || order.state === "cancelled") {
        this.stopEvents = null;
        setOwn(id, false);
        if (this.context.run.value?.id === id) void this.leave();
        else if (!this.context.run.value) this.invite();
      }
    });
    this.stopEvents = stop;
  }

  private growing = false;
  private missed: string | null = null;

  // What was shown of a run that will never be whole is no more on the server.
  private async leave(): Promise<void> {
    await this.refresh();
    if (this.runs.length) await this.context.open(this.runs[0].id, true);
    else this.empty();
  }

  // Nothing is open any more.
  private empty(): void {
    this.context.leave();
    this.invite();
  }

  // The map of a text that is being generated, as far as it is written; or the layers that are done.
  private async grow(id: string): Promise<void> {
    if (this.growing) {
      this.missed = id; // the last news must not be the one that is passed over
      return;
    }
    this.growing = true;
    try {
      if (isRun(await this.context.source.run(id))) {
        this.settle();
        if (!this.runs.some((run) => run.id === id)) await this.refresh();
        await this.context.grow(id);
      }
    } catch {
      // the next piece of news asks again
    } finally {
      window.setTimeout(() => {
        this.growing = false;
        const { missed } = this;
        this.missed = null;
        if (missed) void this.grow(missed);
      }, 700);
    }
  }

  // There is something to look at: the text box gives way, unless someone has opened it for another text.
  private settle(): void {
    if (!this.composer.node.classList.contains("alone")) return;
    this.composer.node.classList.remove("alone");
    this.composer.node.hidden = true;
    this.newButton.setAttribute("aria-expanded", "false");
  }

  private show(order: OrderInfo): void {
    this.progress.hidden = false;
    const over = order.state === "failed" || order.state === "cancelled";
    const bar = el("progress", {
      attrs: {
        max: Math.max(order.total, 1),
        value: order.total ? order.done : null,
        "aria-label": "progress of the run",
      },
    });
    const problem = order.problem ? whole(order.problem) : "the run was taken back";
    const dismiss = () => {
      this.progress.hidden = true;
    };
    this.pending.textContent = toCome(order);
    this.progress.classList.toggle("problem", over);
    this.progress.replaceChildren(
      el("span", { class: "title" }, `${order.model}: ${shortened(order.title, 50)}`),
      over ? el("span", {}, problem) : bar,
      over ? "" : el("span", {}, where(order), order.stage === "running" && order.total ? " layers" : ""),
      order.stage === "generating" && !over ? this.followSwitch() : "",
      el(
        "button",
        {
          class: "button quiet",
          attrs: { type: "button" },
          on: { click: over ? dismiss : () => void this.context.source.close(order.id) },
        },
        over ? "Dismiss" : "Cancel",
      ),
    );
  }

  // What made room is not lost without a word: it is said until it is dismissed.
  private tellClosed(runs: RunShort[]): void {
    this.offerUndo(`Closed to make room, as the server keeps ${this.limits?.runs} runs: `, runs);
  }

  private offerUndo(why: string, runs: { id: string; model: string | null; title: string; origin: string }[]): void {
    const dismiss = () => {
      this.progress.hidden = true;
    };
    const names = runs.map((run) => `${run.model ?? "run"}: ${shortened(run.title, 50) || run.origin}`);
    const button = (name: string, click: () => void) =>
      el("button", { class: "button quiet", attrs: { type: "button" }, on: { click } }, name);
    this.progress.hidden = false;
    this.progress.classList.remove("problem");
    this.progress.replaceChildren(
      el("span", { class: "whole" }, why, el("bdi", { class: "title" }, names.join("; "))),
      runs.length === 1 ? button("Undo", () => void this.reopen(runs[0].id)) : "",
      button("Dismiss", dismiss),
    );
  }

  // What was closed is open again.
  private async reopen(id: string): Promise<void> {
    this.progress.hidden = true;
    try {
      await this.context.source.reopen(id);
      await this.refresh();
      this.settle();
      await this.context.open(id, true);
    } catch (error) {
      this.context.failed(error, () => void this.reopen(id));
    }
  }

  private followSwitch(): HTMLElement {
    const box = el("input", { attrs: { type: "checkbox", id: "follow" } });
    box.checked = this.context.following.value;
    box.addEventListener("change", () => {
      this.context.following.value = box.checked;
    });
    return el("label", { class: "follow", attrs: { for: "follow" } }, box, " follow");
  }

  private async closeRun(): Promise<void> {
    const open = this.context.run.value;
    if (!open) return;
    this.closeButton.disabled = true; // until another run is open: it would close this one again
    try {
      await this.context.source.close(open.id);
      await this.refresh();
      if (this.runs.length) await this.context.open(this.runs[0].id, true);
      else this.empty();
      this.offerUndo("Closed: ", [open.info]);
    } catch (error) {
      this.context.failed(error, () => void this.closeRun());
    } finally {
      this.closeButton.disabled = false;
    }
  }
}
