// The Text panel: the text shaded by what a token looks at, who looks at it, what it received, or rollout.

import { setAside } from "./aside";
import { onChange } from "./changes";
import { show } from "./colors";
import type { Context, Hover } from "./context";
import { clamp, debounced, eachFrame, el, forTouch, icon, retryButton } from "./dom";
import { FindBar } from "./findbar";
import { ImageView } from "./image";
import { NAMES as READ } from "./readings";
import { Ruler } from "./ruler";
import type { OpenRun } from "./run";
import { Shading } from "./shading";
import { aborted, sentence } from "./source";
import type { Shade } from "./state";
import { TextBody } from "./textbody";
import type { Reading } from "./whystate";

const TOP = 8;

const TABS: { shade: Shade; name: string; title: string }[] = [
  { shade: "looks", name: "looks at", title: "what the chosen token attends to" },
  { shade: "looked", name: "looked at by", title: "who attends to the chosen token" },
  { shade: "received", name: "received", title: "how much every token received in this head" },
  { shade: "rollout", name: "rollout", title: "which tokens fed the chosen one, through all layers (R)" },
];

const UNKEPT = "q and k were not kept: watch with keep_qk=True to see what a token looks at.";

const CAPTIONS: Record<Shade, string> = {
  looks: "strongest keys",
  looked: "strongest queries",
  received: "received most",
  rollout: "fed it most",
};

export class TextView {
  readonly node: HTMLElement;
  private tabs = el("div", { class: "tabs small", attrs: { role: "tablist", "aria-label": "shade the text by" } });
  private about = el("p", { class: "about", attrs: { "aria-live": "off" } });
  private shading = new Shading(null, { shade: "looks", layer: 0, q: [], k: null });
  private body: TextBody;
  private ruler: Ruler;
  private table = el("table", { class: "top-keys" });
  private find: FindBar;
  private image: ImageView;
  private reshade = debounced(40, () => void this.load());
  private redraw = eachFrame(() => this.ruler.draw(this.context.run.value?.tokens.length ?? 0));
  private asked = 0;

  constructor(private context: Context) {
    const strength = (token: number) => (this.elsewhere ? 0 : this.shading.strength(token));
    this.find = new FindBar(context, {
      changed: () => this.body.mark(),
      reveal: (token) => this.body.reveal(token),
      left: () => this.focus(),
    });
    const against = (token: number) => this.shading.against(token);
    this.body = new TextBody(context, strength, (token) => this.find.has(token), against);
    this.ruler = new Ruler(this.body.scroller, strength, against);
    const heading = el("h2", {}, "Text");
    this.image = new ImageView(context, heading);
    this.node = el(
      "section",
      { class: "text", attrs: { "aria-label": "Text", id: "text" } },
      el("div", { class: "text-head" }, heading, this.findButton()),
      this.tabs,
      this.about,
      this.find.node,
      this.image.node,
      el("div", { class: "text-frame" }, this.body.scroller, this.ruler.node),
      this.table,
    );
    for (const { shade, name, title } of TABS) {
      const tab = el("button", { title, attrs: { type: "button", role: "tab", "data-shade": shade } }, name);
      tab.addEventListener("click", () => context.store.push({ shade }));
      this.tabs.append(tab);
    }
    this.listen();
    onChange(context.run, () => this.rebuild());
    onChange(context.tokens, () => {
      this.body.fill();
      this.rename();
      this.drawTable();
      this.find.refresh();
    });
    onChange(context.hover, (hover, before) => {
      if (hover?.q !== before?.q || hover?.k !== before?.k) {
        this.body.mark();
        this.reshade();
      }
    });
    context.store.on(["layer", "head", "q", "k", "shade", "run", "aside"], (state, before) => {
      this.body.mark();
      void this.load();
      if (state.q !== before.q) this.showPins();
      else if (state.k !== before.k && state.k !== null) this.body.reveal(state.k, state.q.at(-1));
    });
    onChange(context.again, () => void this.load());
    onChange(context.portraits, () => this.shading.aside !== this.aside && void this.load());
    onChange(context.dark, () => this.paint());
    new ResizeObserver(() => this.redraw()).observe(this.body.scroller);
    this.body.scroller.addEventListener("scroll", () => this.redraw());
    this.ruler.node.addEventListener("pointerdown", () => this.body.release());
  }

  // Whether what is shaded are tokens of a memory, which are not those of this text.
  private get elsewhere(): boolean {
    const { shade, layer } = this.shading.of;
    return (shade === "looks" || shade === "received") && Boolean(this.context.run.value?.layer(layer).cross);
  }

  private get aside(): boolean {
    const { run, state } = this.context;
    return state.aside && run.value !== null && setAside(run.value, state.layer, state.head, state.shade) > 0;
  }

  focus(): void {
    this.body.node.focus();
  }

  openFind(): void {
    this.find.open();
  }

  private findButton(): HTMLElement {
    const title = "find words in the text (/)";
    return el(
      "button",
      {
        class: "icon-button",
        title,
        attrs: { type: "button", "aria-label": title },
        on: { click: () => this.openFind() },
      },
      icon("find"),
    );
  }

  private rebuild(): void {
    this.shading = new Shading(null, this.shading.of);
    this.table.replaceChildren();
    this.body.rebuild();
    this.showPins();
    this.find.refresh();
    if (this.context.run.value) void this.load();
  }

  // What is pinned is in view, however it was pinned.
  private showPins(): void {
    const { q, k } = this.context.state;
    const token = q.at(-1) ?? k;
    if (token === null) this.body.release();
    else this.body.reveal(token, q.length ? k : null);
  }

  private async load(): Promise<void> {
    const run = this.context.run.value;
    const { shade, layer } = this.context.state;
    for (const tab of this.tabs.children)
      tab.setAttribute("aria-selected", String((tab as HTMLElement).dataset.shade === shade));
    if (!run || layer >= run.info.layers.length) return;
    const { queries: q, key: k } = this.context;
    const now = ++this.asked;
    let values: Float32Array | null = null;
    let problem: unknown = null;
    const spinner = window.setTimeout(() => now === this.asked && this.node.classList.add("loading"), 150);
    try {
      values = await this.values(q, k);
    } catch (error) {
      if (!aborted(error)) problem = error;
    }
    clearTimeout(spinner);
    if (now !== this.asked) return;
    this.node.classList.remove("loading");
    this.shading = new Shading(values, { shade, layer, q, k }, this.aside);
    this.node.classList.toggle("signed", run.reading?.signed === true && shade !== "rollout");
    const unkept = !run.layer(layer).exact && this.context.source.live && (shade === "looks" || shade === "looked");
    this.about.replaceChildren(problem !== null ? sentence(problem) : unkept && !values ? UNKEPT : this.words(run));
    if (problem !== null && this.context.curable(problem))
      this.about.append(
        " ",
        retryButton(() => this.context.retry()),
      );
    this.about.classList.toggle("problem", problem !== null);
    this.paint();
    this.drawTable();
  }

  private words(run: OpenRun): string {
    const { layer } = this.shading.of;
    const keys = run.keyTokens(layer);
    const words = this.shading.words(
      (i) => run.tokens.name(i),
      (i) => keys.name(i),
      run.layer(layer).cross,
    );
    return (run.reading ? `${READ[run.info.of as Reading]}: ` : "") + forTouch(words);
  }

  // The names of tokens may come after what they are shaded by.
  private rename(): void {
    const run = this.context.run.value;
    if (run && this.shading.values && !this.about.classList.contains("problem"))
      this.about.replaceChildren(this.words(run));
  }

  // What to shade by; null where nothing is chosen yet.
  private async values(q: number[], k: number | null): Promise<Float32Array | null> {
    const run = this.context.run.value!;
    const { shade, layer, head } = this.context.state;
    const info = run.layer(layer);
    if (shade === "received") return (await run.tracks(layer, head)).subarray(info.queries);
    if (shade === "looked") {
      const key = k ?? (info.cross ? null : (q.at(-1) ?? null));
      return key !== null && key < info.keys ? run.column(layer, head, key) : null;
    }
    if (!q.length) return null;
    return shade === "looks" ? run.row(layer, head, q) : run.rollout(q);
  }

  private paint(): void {
    this.body.paint();
    this.image.paint(this.shading);
    this.redraw();
  }

  private drawTable(): void {
    const run = this.context.run.value;
    const { values, of } = this.shading;
    if (!run || !values) return this.table.replaceChildren();
    const { shade } = of;
    const ofKeys = shade === "looks" || shade === "received";
    const tokens = ofKeys ? run.keyTokens(this.context.state.layer) : run.tokens; // those of a memory have other words
    const order = this.shading.top(TOP);
    const most = Math.abs(values[order[0]]) || 1;
    const rest = (i: number) => {
      const share = this.shading.ofRest(i);
      return share === null ? null : el("td", { class: "number" }, `${Math.round(100 * share)} %`);
    };
    const rows = order.map((i) => {
      const bar = el("span", { class: "bar" });
      bar.style.width = `${(100 * Math.abs(values[i])) / most}%`;
      bar.classList.toggle("against", values[i] < 0);
      const row = el(
        "tr",
        { attrs: { "data-t": i } },
        el("td", { class: "place" }, tokens.text(i) && i.toLocaleString("en")), // else its name is its place
        el("th", { attrs: { scope: "row" } }, tokens.element(i, 20)),
        el("td", { class: "bars" }, el("span", { class: "track" }, bar)),
        el("td", { class: "number" }, show(values[i])),
        rest(i),
      );
      row.addEventListener("pointerenter", () => this.context.point(this.point(i, true)));
      row.addEventListener("pointerleave", () => this.context.point(null));
      row.addEventListener("click", () =>
        shade === "looked" ? this.context.pin(i, this.context.state.k) : this.context.pinKey(i),
      );
      return row;
    });
    const names = ["position", "token", "share", "weight", ...(this.shading.skipsFirst ? ["of the rest"] : [])];
    const headings = names.map((name) => el("th", { attrs: { scope: "col" } }, name));
    this.table.replaceChildren(
      el("caption", {}, CAPTIONS[shade] + (this.shading.skipsFirst ? "; per cent are of the rest" : "")),
      el("thead", { class: "visually-hidden" }, el("tr", {}, ...headings)),
      el("tbody", {}, ...rows),
    );
  }

  // A row of the table points at a key, and keeps the query that is chosen.
  private point(i: number, fromTable: boolean): Hover {
    const { q, k, shade } = this.context.state;
    if (fromTable && shade === "looked") return { q: i, k: k ?? q[0] ?? null, cells: null, from: "table" };
    return fromTable ? { q: null, k: i, cells: null, from: "table" } : { q: i, k: null, cells: null, from: "text" };
  }

  private listen(): void {
    const token = (event: Event) => {
      const span = (event.target as HTMLElement).closest<HTMLElement>("[data-t]");
      return span ? Number(span.dataset.t) : null;
    };
    const { node } = this.body;
    let tapped = -1;
    node.addEventListener("pointerover", (event) => {
      const i = token(event);
      if (event.pointerType === "touch") return;
      this.context.point(i === null ? null : this.point(i, false));
    });
    node.addEventListener("pointerleave", () => this.context.point(null));
    node.addEventListener("click", (event) => {
      const i = token(event);
      if (i === null) return;
      const touch = (event as PointerEvent).pointerType === "touch";
      if (touch && tapped !== i) {
        tapped = i;
        this.context.point(this.point(i, false));
        return;
      }
      tapped = -1;
      if (touch) this.context.point(null);
      if (event.altKey) this.context.pinKey(i);
      else this.context.pin(i, null, event.shiftKey);
    });
    node.addEventListener("keydown", (event) => this.key(event));
    node.addEventListener("blur", () => this.context.hover.value?.from === "text" && this.context.point(null));
  }

  private key(event: KeyboardEvent): void {
    const run = this.context.run.value;
    if (!run) return;
    const now = this.context.hover.value?.q ?? this.context.state.q.at(-1) ?? 0;
    const last = run.tokens.length - 1;
    const steps: Record<string, () => number> = {
      ArrowRight: () => now + 1,
      ArrowLeft: () => now - 1,
      ArrowDown: () => this.body.lineStep(now, 1),
      ArrowUp: () => this.body.lineStep(now, -1),
      Home: () => 0,
      End: () => last,
    };
    if (event.key in steps) {
      const i = clamp(steps[event.key](), 0, last);
      this.context.point(this.point(i, false));
      this.body.reveal(i);
    } else if (event.key === "Enter") this.context.pin(now, null, event.shiftKey);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
