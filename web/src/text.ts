// The text itself, shaded by what a token looks at, who looks at it, what it received, or rollout.

import { show } from "./colors";
import type { Context } from "./context";
import { debounced, eachFrame, el } from "./dom";
import { aborted, sentence } from "./source";
import type { Shade } from "./state";
import { GLUED, NEW_LINE, SPECIAL } from "./tokens";

const BLOCK = 512;
const SINK = 0.3;
const TOP = 8;

const TABS: { shade: Shade; name: string; title: string }[] = [
  { shade: "looks", name: "looks at", title: "what the chosen token attends to" },
  { shade: "looked", name: "looked at by", title: "who attends to the chosen token" },
  { shade: "received", name: "received", title: "how much every token received in this head" },
  { shade: "rollout", name: "rollout", title: "which tokens fed the chosen one, through all layers (R)" },
];

export class TextView {
  readonly node: HTMLElement;
  private tabs = el("div", { class: "tabs small", attrs: { role: "tablist", "aria-label": "shade the text by" } });
  private about = el("p", { class: "about", attrs: { "aria-live": "off" } });
  private body = el("div", {
    class: "text-body",
    attrs: { tabindex: 0, role: "group", "aria-label": "the text; arrow keys move the chosen token" },
  });
  private scroller = el("div", { class: "text-scroll" }, this.body);
  private ruler = el("canvas", { class: "ruler", attrs: { "aria-hidden": "true" } });
  private table = el("table", { class: "top-keys" });
  private find = el("input", {
    class: "find",
    attrs: { type: "search", placeholder: "find a token", "aria-label": "find a token", hidden: true },
  });
  private blocks: HTMLElement[] = [];
  private shades: Float32Array | null = null;
  // What they are the shades of; what is chosen may be something else by now.
  private of: { shade: Shade; layer: number; q: number[]; k: number | null } = {
    shade: "looks",
    layer: 0,
    q: [],
    k: null,
  };
  private most = 1;
  private skipFirst = false;
  private seen = new IntersectionObserver((entries) => this.appear(entries), {
    root: this.scroller,
    rootMargin: "600px 0px",
  });
  private reshade = debounced(40, () => void this.load());
  private redraw = eachFrame(() => this.drawRuler());
  private asked = 0;

  constructor(private context: Context) {
    this.node = el(
      "section",
      { class: "text", attrs: { "aria-label": "Text", id: "text" } },
      el("h2", {}, "Text"),
      this.tabs,
      this.about,
      this.find,
      el("div", { class: "text-frame" }, this.scroller, this.ruler),
      this.table,
    );
    for (const { shade, name, title } of TABS) {
      const tab = el("button", { title, attrs: { type: "button", role: "tab", "data-shade": shade } }, name);
      tab.addEventListener("click", () => context.store.push({ shade }));
      this.tabs.append(tab);
    }
    this.listen();
    context.run.on(() => this.rebuild());
    context.tokens.on(() => this.fill());
    context.hover.on((hover, before) => {
      if (hover?.q !== before?.q || hover?.k !== before?.k) {
        this.mark();
        this.reshade();
      }
    });
    context.store.on(["layer", "head", "q", "k", "shade", "run"], (state, before) => {
      this.mark();
      void this.load();
      if (state.q !== before.q && state.q.length) this.reveal(state.q[state.q.length - 1]);
    });
    context.dark.on(() => this.paint());
    new ResizeObserver(() => this.redraw()).observe(this.scroller);
    this.scroller.addEventListener("scroll", () => this.redraw());
    this.mark();
  }

  focus(): void {
    this.body.focus();
  }

  openFind(): void {
    this.find.hidden = false;
    this.find.focus();
    this.find.select();
  }

  private rebuild(): void {
    const run = this.context.run.value;
    this.seen.disconnect();
    this.blocks = [];
    this.shades = null;
    this.table.replaceChildren();
    if (!run) return this.body.replaceChildren();
    const count = Math.ceil(run.tokens.length / BLOCK);
    for (let i = 0; i < count; i++) {
      const block = el("div", { class: "block", attrs: { "data-block": i } });
      // A guess until it is drawn: forty tokens of text take about six lines of this width.
      block.style.minHeight =
        count > 1 ? `${Math.round((Math.min(BLOCK, run.tokens.length - i * BLOCK) / 8) * 26)}px` : "";
      this.blocks.push(block);
    }
    // Those in view when a growing text gets longer are drawn at once: it must not blink.
    const drawn = [...this.body.children].map((block) => block.childElementCount > 0);
    for (const [i, block] of this.blocks.entries()) if (drawn[i] || i === 0) this.drawBlock(block);
    this.body.replaceChildren(...this.blocks);
    for (const block of this.blocks) this.seen.observe(block);
    void this.load();
  }

  // Tokens have arrived: what is drawn is drawn again with them.
  private fill(): void {
    for (const block of this.blocks) if (block.childElementCount) this.drawBlock(block);
    this.mark();
    this.drawTable();
  }

  private appear(entries: IntersectionObserverEntry[]): void {
    for (const entry of entries) {
      const block = entry.target as HTMLElement;
      if (entry.isIntersecting) {
        if (!block.childElementCount) this.drawBlock(block);
      } else if (this.blocks.length > 4 && block.childElementCount) {
        block.style.minHeight = `${block.offsetHeight}px`;
        block.replaceChildren();
      }
    }
  }

  private drawBlock(block: HTMLElement): void {
    const run = this.context.run.value;
    if (!run) return;
    const first = Number(block.dataset.block) * BLOCK;
    const stop = Math.min(first + BLOCK, run.tokens.length);
    const parts: (Node | string)[] = [];
    for (let i = first; i < stop; i++) {
      const kind = run.tokens.kind(i);
      const text = run.tokens.text(i);
      if (kind & NEW_LINE) parts.push(el("br"));
      else if (i && !(kind & GLUED)) parts.push(" ");
      const name = kind & SPECIAL ? "t chip" : kind & 2 ? "t chip hex" : "t";
      const shown = kind & SPECIAL ? text : text.replace(/\n/g, "⏎\n").replace(/\t/g, "⇥\t");
      const span = el("span", { class: name, attrs: { "data-t": i } }, shown || "∅");
      parts.push(span);
    }
    block.replaceChildren(...parts);
    block.style.minHeight = "";
    this.paintBlock(block);
    this.markBlock(block);
  }

  private async load(): Promise<void> {
    const run = this.context.run.value;
    const { shade, layer, head } = this.context.state;
    for (const tab of this.tabs.children)
      tab.setAttribute("aria-selected", String((tab as HTMLElement).dataset.shade === shade));
    if (!run || layer >= run.info.layers.length) return;
    const { queries: q, key: k } = this.context;
    const now = ++this.asked;
    const info = run.layer(layer);
    let values: Float32Array | null = null;
    let problem = "";
    const spinner = window.setTimeout(() => now === this.asked && this.node.classList.add("loading"), 150);
    try {
      if (shade === "looks" && q.length) values = await run.row(layer, head, q);
      else if (shade === "looked") {
        const key = k ?? (q.length ? q[q.length - 1] : null);
        if (key !== null && key < info.keys) values = await run.column(layer, head, key);
      } else if (shade === "received") values = (await run.tracks(layer, head)).subarray(info.queries);
      else if (shade === "rollout" && q.length) values = await run.rollout(q);
    } catch (error) {
      if (!aborted(error)) problem = sentence(error);
    }
    clearTimeout(spinner);
    if (now !== this.asked) return;
    this.node.classList.remove("loading");
    this.shades = values;
    this.of = { shade, layer, q, k };
    this.measure();
    this.say(problem);
    this.paint();
    this.drawTable();
  }

  private measure(): void {
    this.most = 0;
    this.skipFirst = false;
    const values = this.shades;
    if (!values) return;
    const { shade } = this.of;
    let total = 0;
    for (const value of values) if (value > 0) total += value;
    // Else texts of causal models look blank: nearly all goes to their first token.
    this.skipFirst = shade !== "looked" && total > 0 && values[0] / total > SINK && values.length > 2;
    for (let i = this.skipFirst ? 1 : 0; i < values.length; i++) if (values[i] > this.most) this.most = values[i];
  }

  private say(problem: string): void {
    const run = this.context.run.value!;
    const { shade, layer, q, k } = this.of;
    const name = (i: number) => run.tokens.label(i);
    const queries = q.map(name).join(" + ");
    const key = k ?? (q.length ? q[q.length - 1] : null);
    const words: Record<Shade, string> = {
      looks: q.length ? `what “${queries}” looks at` : "Point at a token, or click one, to see what it looks at.",
      looked:
        key !== null ? `who looks at “${run.keyTokens(layer).label(key)}”` : "Point at a token to see who looks at it.",
      received: "how much each token received",
      rollout: q.length
        ? `what fed “${queries}”, through all layers: heuristic, not proof of cause`
        : "Pin a token, then press R.",
    };
    const sink =
      this.skipFirst && this.shades
        ? `; first token ${Math.round((100 * this.shades[0]) / total(this.shades))} %, not shaded`
        : "";
    this.about.textContent = problem || words[shade] + sink;
    this.about.classList.toggle("problem", problem !== "");
  }

  private paint(): void {
    for (const block of this.blocks) if (block.childElementCount) this.paintBlock(block);
    this.redraw();
  }

  private strength(i: number): number {
    const values = this.shades;
    if (!values || i >= values.length || !this.most || (i === 0 && this.skipFirst)) return 0;
    return values[i] > 0 ? Math.min(1, (values[i] / this.most) ** 0.6) : 0;
  }

  private paintBlock(block: HTMLElement): void {
    for (const span of block.children as HTMLCollectionOf<HTMLElement>) {
      const i = Number(span.dataset.t ?? -1);
      if (i < 0) continue;
      const strength = this.strength(i);
      span.style.setProperty("--s", strength < 0.06 ? "0" : strength.toFixed(3));
    }
  }

  private mark(): void {
    for (const block of this.blocks) if (block.childElementCount) this.markBlock(block);
  }

  private markBlock(block: HTMLElement): void {
    const { q, k } = this.context.state;
    const hover = this.context.hover.value;
    for (const span of block.children as HTMLCollectionOf<HTMLElement>) {
      const i = Number(span.dataset.t ?? -1);
      if (i < 0) continue;
      span.classList.toggle("query", q.includes(i));
      span.classList.toggle("key", k === i);
      span.classList.toggle("hover-query", hover?.q === i);
      span.classList.toggle("hover-key", hover?.k === i);
    }
  }

  private drawTable(): void {
    const run = this.context.run.value;
    const { shade } = this.of;
    if (!run || !this.shades) return this.table.replaceChildren();
    const values = this.shades;
    const order = topOf(values, TOP);
    const most = values[order[0]] || 1;
    const caption = {
      looks: "strongest keys",
      looked: "strongest queries",
      received: "received most",
      rollout: "fed it most",
    }[shade];
    const rows = order.map((i) => {
      const bar = el("span", { class: "bar" });
      bar.style.width = `${(100 * values[i]) / most}%`;
      const row = el(
        "tr",
        { attrs: { "data-t": i } },
        el("td", { class: "place" }, i.toLocaleString("en")),
        el("th", { attrs: { scope: "row" } }, run.tokens.element(i, 20)),
        el("td", { class: "bars" }, el("span", { class: "track" }, bar)),
        el("td", { class: "number" }, show(values[i])),
      );
      row.addEventListener("pointerenter", () => this.context.hover.set(this.point(i, true)));
      row.addEventListener("pointerleave", () => this.context.hover.set(null));
      row.addEventListener("click", () =>
        shade === "looked" ? this.context.pin(i, this.context.state.k) : this.context.pinKey(i),
      );
      return row;
    });
    this.table.replaceChildren(
      el("caption", {}, caption),
      el(
        "thead",
        { class: "visually-hidden" },
        el(
          "tr",
          {},
          ...["position", "token", "share", "weight"].map((name) => el("th", { attrs: { scope: "col" } }, name)),
        ),
      ),
      el("tbody", {}, ...rows),
    );
  }

  // A row of the table points at a key, and keeps the query that is chosen.
  private point(i: number, fromTable: boolean) {
    const { q, k, shade } = this.context.state;
    if (fromTable && shade === "looked") return { q: i, k: k ?? q[0] ?? null, cells: null, from: "table" };
    return fromTable ? { q: null, k: i, cells: null, from: "table" } : { q: i, k: null, cells: null, from: "text" };
  }

  private drawRuler(): void {
    const run = this.context.run.value;
    const ratio = window.devicePixelRatio || 1;
    const height = this.scroller.clientHeight;
    const width = 10;
    this.ruler.width = width * ratio;
    this.ruler.height = height * ratio;
    const context = this.ruler.getContext("2d")!;
    const values = this.shades;
    if (!run || !height) return;
    context.fillStyle = getComputedStyle(this.node).getPropertyValue("--accent");
    const count = run.tokens.length;
    const device = height * ratio;
    if (values) {
      for (let y = 0; y < device; y++) {
        const first = Math.floor((y / device) * count);
        const stop = Math.max(Math.floor(((y + 1) / device) * count), first + 1);
        let most = 0;
        for (let i = first; i < stop && i < count; i++) most = Math.max(most, this.strength(i));
        if (most < 0.06) continue;
        context.globalAlpha = most;
        context.fillRect(0, y, width * ratio, 1);
      }
    }
    context.globalAlpha = 1;
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    if (scrollHeight > clientHeight + 4) {
      context.strokeStyle = getComputedStyle(this.node).getPropertyValue("--ink2");
      context.lineWidth = ratio;
      context.strokeRect(
        0.5,
        (scrollTop / scrollHeight) * device,
        width * ratio - 1,
        (clientHeight / scrollHeight) * device,
      );
    }
  }

  reveal(i: number): void {
    const block = this.blocks[Math.floor(i / BLOCK)];
    if (!block) return;
    if (!block.childElementCount) this.drawBlock(block);
    const span = block.querySelector<HTMLElement>(`[data-t="${i}"]`);
    if (!span) return;
    const box = span.getBoundingClientRect();
    const frame = this.scroller.getBoundingClientRect();
    if (box.top < frame.top + 8 || box.bottom > frame.bottom - 8)
      this.scroller.scrollTop += box.top - frame.top - frame.height / 2;
  }

  private listen(): void {
    const token = (event: Event) => {
      const span = (event.target as HTMLElement).closest<HTMLElement>("[data-t]");
      return span ? Number(span.dataset.t) : null;
    };
    let tapped = -1;
    this.body.addEventListener("pointerover", (event) => {
      const i = token(event);
      if (event.pointerType === "touch") return;
      this.context.hover.set(i === null ? null : this.point(i, false));
    });
    this.body.addEventListener("pointerleave", () => this.context.hover.set(null));
    this.body.addEventListener("click", (event) => {
      const i = token(event);
      if (i === null) return;
      const touch = (event as PointerEvent).pointerType === "touch";
      if (touch && tapped !== i) {
        tapped = i;
        this.context.hover.set(this.point(i, false));
        return;
      }
      tapped = -1;
      if (touch) this.context.hover.set(null);
      if (event.altKey) this.context.pinKey(i);
      else this.context.pin(i, null, event.shiftKey);
    });
    this.body.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("blur", () => this.context.hover.value?.from === "text" && this.context.hover.set(null));
    this.ruler.addEventListener("pointerdown", (event) => {
      const move = (moved: PointerEvent) => {
        const box = this.ruler.getBoundingClientRect();
        this.scroller.scrollTop =
          ((moved.clientY - box.top) / box.height) * this.scroller.scrollHeight - this.scroller.clientHeight / 2;
      };
      this.ruler.setPointerCapture(event.pointerId);
      move(event);
      this.ruler.addEventListener("pointermove", move);
      this.ruler.addEventListener("pointerup", () => this.ruler.removeEventListener("pointermove", move), {
        once: true,
      });
    });
    this.find.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.find.hidden = true;
        this.body.focus();
      } else if (event.key === "Enter") this.findNext(event.shiftKey ? -1 : 1);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  private key(event: KeyboardEvent): void {
    const run = this.context.run.value;
    if (!run) return;
    const now = this.context.hover.value?.q ?? this.context.state.q[this.context.state.q.length - 1] ?? 0;
    const line = this.lineStep(now, event.key === "ArrowUp" ? -1 : 1);
    const next = {
      ArrowRight: now + 1,
      ArrowLeft: now - 1,
      ArrowDown: line,
      ArrowUp: line,
      Home: 0,
      End: run.tokens.length - 1,
    }[event.key];
    if (next !== undefined) {
      const i = Math.min(Math.max(next, 0), run.tokens.length - 1);
      this.context.hover.set(this.point(i, false));
      this.reveal(i);
    } else if (event.key === "Enter") this.context.pin(now, null, event.shiftKey);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // The token above or below another one.
  private lineStep(i: number, by: number): number {
    const span = this.body.querySelector<HTMLElement>(`[data-t="${i}"]`);
    if (!span) return i + by;
    const from = span.getBoundingClientRect();
    let best = i + by;
    let near = Infinity;
    for (let j = i + by; j >= 0 && Math.abs(j - i) < 80; j += by) {
      const other = this.body.querySelector<HTMLElement>(`[data-t="${j}"]`)?.getBoundingClientRect();
      if (!other) break;
      const lines = Math.abs(other.top - from.top);
      if (lines < from.height / 2) continue;
      if (lines > from.height * 2.2) break;
      const gap = Math.abs(other.left - from.left);
      if (gap < near) {
        near = gap;
        best = j;
      }
    }
    return best;
  }

  private findNext(by: number): void {
    const run = this.context.run.value;
    const wanted = this.find.value.trim().toLowerCase();
    if (!run || !wanted) return;
    const last = this.context.state.q[this.context.state.q.length - 1] ?? -1;
    const count = run.tokens.length;
    for (let n = 1; n <= count; n++) {
      const i = (last + by * n + count * (n + 1)) % count;
      if (run.tokens.text(i).trim().toLowerCase().includes(wanted)) {
        this.context.pin(i, null);
        this.reveal(i);
        this.find.classList.remove("none");
        return;
      }
    }
    this.find.classList.add("none");
  }
}

function total(values: Float32Array): number {
  let sum = 0;
  for (const value of values) if (value > 0) sum += value;
  return sum || 1;
}

// The places of the largest, largest first; of equal ones the lower.
export function topOf(values: Float32Array, n: number): number[] {
  const best: number[] = [];
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (!(value > 0) || (best.length === n && value <= values[best[n - 1]])) continue;
    let at = best.length;
    while (at > 0 && values[best[at - 1]] < value) at--;
    best.splice(at, 0, i);
    if (best.length > n) best.pop();
  }
  return best;
}
