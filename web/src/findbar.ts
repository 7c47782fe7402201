// The line in which one types what to find in the text, how often it is there, and the way from one place to the next.

import type { Context } from "./context";
import { debounced, el, icon } from "./dom";
import { type Hit, Searched, step } from "./find";
import type { OpenRun } from "./run";

const MOST = 64; // as many queries as can be pinned

export class FindBar {
  readonly node: HTMLElement;
  hits: Hit[] = [];
  private marked = new Set<number>();
  private input = el("input", {
    class: "find",
    attrs: { type: "search", placeholder: "find words", "aria-label": "find words in the text", spellcheck: "false" },
  });
  private told = el("span", { class: "found", attrs: { role: "status", id: "found" } });
  private searched: { run: OpenRun; arrived: number; text: Searched } | null = null;
  private asTyped = el(
    "button",
    {
      class: "icon-button case",
      title: "capital letters as typed",
      attrs: { type: "button", "aria-label": "capital letters as typed", "aria-pressed": "false" },
    },
    "Aa",
  );
  private typed = debounced(60, () => this.search());

  constructor(
    private context: Context,
    private events: { changed: () => void; reveal: (token: number) => void; left: () => void },
  ) {
    const tool = (name: string, title: string, click: () => void) =>
      el(
        "button",
        { class: "icon-button", title, attrs: { type: "button", "aria-label": title }, on: { click } },
        icon(name),
      );
    this.input.setAttribute("aria-describedby", "found");
    this.node = el(
      "div",
      { class: "find-bar", attrs: { role: "search", hidden: true } },
      this.input,
      this.asTyped,
      tool("up", "previous place (Shift+Enter)", () => this.go(-1)),
      tool("down", "next place (Enter)", () => this.go(1)),
      tool("close", "close (Esc)", () => this.close()),
      this.told,
    );
    this.input.addEventListener("input", () => this.typed());
    this.asTyped.addEventListener("click", () => {
      this.asTyped.setAttribute("aria-pressed", String(this.asTyped.getAttribute("aria-pressed") !== "true"));
      this.searched = null;
      this.search();
    });
    this.node.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
      else if (event.key === "Enter" && event.target === this.input) this.go(event.shiftKey ? -1 : 1);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    context.store.on(["q"], () => this.tell());
  }

  open(): void {
    this.node.hidden = false;
    this.input.focus();
    this.input.select();
    this.search(false);
  }

  // Whether a token is part of what was found.
  has(token: number): boolean {
    return this.marked.has(token);
  }

  // Another run, or more of its tokens.
  refresh(): void {
    if (!this.node.hidden) this.search(false);
  }

  private close(): void {
    this.node.hidden = true;
    this.mark([]);
    this.events.left();
  }

  private go(by: 1 | -1): void {
    this.search(false);
    const hit = this.hits[step(this.hits, this.context.state.q, by)];
    if (!hit) return;
    this.context.store.push({ q: tokensOf(hit), k: null });
    this.events.reveal(hit[0]);
    this.tell();
  }

  private search(reveal = true): void {
    const run = this.context.run.value;
    if (!run) return;
    const arrived = this.context.tokens.value;
    if (this.searched?.run !== run || this.searched.arrived !== arrived)
      this.searched = {
        run,
        arrived,
        text: new Searched(run.tokens, this.asTyped.getAttribute("aria-pressed") === "true"),
      };
    this.mark(this.searched.text.find(this.input.value));
    this.tell();
    const near = this.hits[step(this.hits, this.context.state.q.slice(0, 1).map(before), 1)];
    if (reveal && near) this.events.reveal(near[0]);
  }

  private mark(hits: Hit[]): void {
    this.hits = hits;
    this.marked = new Set(hits.flatMap(tokensOf));
    this.events.changed();
  }

  // How many places, and which of them is pinned.
  private tell(): void {
    const wanted = this.input.value.trim();
    const { hits } = this;
    const { q } = this.context.state;
    const at = hits.findIndex((hit) => String(tokensOf(hit)) === String(q));
    const none = wanted !== "" && !hits.length;
    const count = hits.length.toLocaleString("en");
    const named = this.context.run.value?.tokens.named ?? true;
    this.input.setAttribute("aria-invalid", String(none));
    this.told.classList.toggle("none", none);
    this.told.textContent = !wanted
      ? ""
      : none
        ? named
          ? `“${wanted}” is not in the text`
          : "this run has no text, only positions"
        : at < 0
          ? `${count} found`
          : `${(at + 1).toLocaleString("en")} of ${count}`;
  }
}

function tokensOf([first, last]: Hit): number[] {
  return Array.from({ length: Math.min(last - first + 1, MOST) }, (_, i) => first + i);
}

function before(token: number): number {
  return token - 1;
}
