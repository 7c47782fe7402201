// What a model wrote, token by token, with the probability of each and what it might have written instead.

import type { components } from "./api";
import { onChange } from "./changes";
import type { Context } from "./context";
import { el, problem, retryButton } from "./dom";
import { sentence } from "./source";
import { visible } from "./tokens";
import { asked, sent } from "./why";

type Written = components["schemas"]["Written"];
const EVERY = 700; // milliseconds between two looks at what is being written

export class WrittenView {
  readonly node: HTMLElement;
  private about = el("p", { class: "summary", attrs: { role: "status" } });
  private controls = el("div", { class: "written-controls" });
  private list = el("ol", { class: "written-list" });
  private shownFor = "";
  private visible = false;
  private timer = 0;
  private said: Promise<unknown> = Promise.resolve(); // to the server, of the pace
  private found: Written | null = null;

  // `follow` is told of the run that goes on from an alternative.
  constructor(
    private context: Context,
    private follow: (id: string) => void,
  ) {
    this.node = el("div", { class: "written" }, this.about, this.controls, this.list);
    onChange(context.run, () => {
      this.offer();
      void this.load();
    });
    onChange(context.again, () => void this.load());
    context.store.on(["q"], () => this.mark());
  }

  show(visible: boolean): void {
    this.visible = visible;
    this.offer();
    if (visible) void this.load();
    else clearTimeout(this.timer);
  }

  // Most runs are of texts that nobody wrote here: they have no such tab.
  private offer(): void {
    const tab = document.getElementById("tab-written");
    if (tab) tab.hidden = !this.visible && (this.context.run.value?.info.prompt ?? null) === null;
  }

  private async load(): Promise<void> {
    const run = this.context.run.value;
    clearTimeout(this.timer);
    if (!run || !this.visible) return;
    if ((run.info.prompt ?? null) === null) {
      this.list.replaceChildren();
      this.controls.replaceChildren();
      this.about.textContent = "Nothing was written here: give a causal model a text and some tokens to generate.";
      return;
    }
    try {
      const found = await this.ask(run.id);
      if (this.context.run.value?.id !== run.id) return;
      this.found = found;
      this.draw();
      if (found.writing) this.timer = window.setTimeout(() => void this.load(), EVERY);
    } catch (error) {
      this.about.replaceChildren(problem(sentence(error)), " ");
      if (this.context.curable(error)) this.about.append(retryButton(() => this.context.retry()));
    }
  }

  private async ask(id: string): Promise<Written> {
    const { source } = this.context;
    const held = source.kept?.().written;
    if (held) return { ...held, total: held.tokens.length, writing: false, paused: false };
    return asked(source, `/api/runs/${id}/written`);
  }

  private draw(): void {
    const { found } = this;
    const run = this.context.run.value;
    if (!found || !run) return;
    const { tokens, prompt, total, writing, paused } = found;
    this.about.textContent = `${prompt} tokens were given; ${tokens.length} ${writing ? `of ${total} ` : ""}are written${paused ? ", and it waits" : writing ? " so far" : ""}. Choose another token to go on from there.`;
    const button = (name: string, act: () => void) =>
      el("button", { class: "button", attrs: { type: "button" }, on: { click: act } }, name);
    const follow = el("input", { attrs: { type: "checkbox", id: "follow-written" } });
    follow.checked = this.context.following.value;
    follow.addEventListener("change", () => {
      this.context.following.value = follow.checked;
    });
    const state = `${run.id} ${writing} ${paused}`;
    if (state !== this.shownFor)
      this.controls.replaceChildren(
        ...(writing && !paused ? [button("Pause", () => void this.pace("pause"))] : []),
        ...(writing && paused
          ? [
              button("Step", () => void this.pace("step")),
              button("Go on", () => void this.pace("go")),
              button("Stop here", () => void this.pace("stop")),
            ]
          : []),
        ...(writing ? [el("label", { class: "follow" }, follow, " follow")] : []),
      );
    this.shownFor = state;
    const { source, way } = this.context;
    const live = source.live && (!way || run?.info.why_not === null); // a notebook may have no model at hand
    const items = tokens.map((token, i) => {
      const bar = el("span", { class: "bar" });
      bar.style.width = `${100 * token.p}%`;
      const others = token.others.map((other) =>
        el(
          "button",
          {
            class: "chip-button",
            title: `go on with ${visible(other.text)}`,
            attrs: { type: "button", disabled: !live },
            on: { click: () => void this.instead(i, other.id) },
          },
          el("bdi", {}, visible(other.text)),
          ` ${chance(other.p)}`,
        ),
      );
      return el(
        "li",
        { attrs: { "data-t": prompt + i } },
        el(
          "button",
          {
            class: "written-token",
            title: "pin it as the query",
            attrs: { type: "button" },
            on: { click: () => this.context.pin(prompt + i, null) },
          },
          el("bdi", {}, visible(token.text)),
        ),
        el("span", { class: "track" }, bar),
        el("b", {}, chance(token.p)),
        el("span", { class: "instead" }, ...others),
      );
    });
    const focus = (document.activeElement as HTMLElement | null)?.closest?.("li")?.dataset.t;
    if (this.list.childElementCount !== items.length || focus === undefined) this.list.replaceChildren(...items);
    this.mark();
    if (writing && this.context.following.value) this.list.lastElementChild?.scrollIntoView({ block: "nearest" });
  }

  private mark(): void {
    const { q } = this.context.state;
    for (const item of this.list.children as HTMLCollectionOf<HTMLElement>)
      item.classList.toggle("pinned", q.includes(Number(item.dataset.t)));
  }

  private async pace(what: string): Promise<void> {
    const run = this.context.run.value;
    if (!run) return;
    // One after another: what was said last is what holds.
    const { source } = this.context;
    const said = this.said.then(() => source.file!(`/api/runs/${run.id}/pace`, sent("POST", { do: what })));
    this.said = said.catch(() => undefined);
    try {
      await said;
      await this.load();
    } catch (error) {
      this.context.failed(error, () => void this.pace(what));
    }
  }

  // The same prompt, the tokens up to here, then the other one; as many are written as were asked for.
  private async instead(i: number, id: number): Promise<void> {
    const run = this.context.run.value;
    const { found } = this;
    if (!run?.info.model || !found) return;
    const begun = [...found.tokens.slice(0, i).map((token) => token.id), id];
    const text = run.info.asked ?? "";
    const generate = Math.max(found.total, begun.length);
    try {
      if (found.writing) await this.context.source.file!(`/api/runs/${run.id}/pace`, sent("POST", { do: "stop" }));
      const body = { text, model: run.info.model, generate, begun };
      const made = await asked<{ id: string }>(this.context.source, "/api/runs", sent("POST", body));
      this.follow(made.id);
    } catch (error) {
      this.context.failed(error, () => void this.instead(i, id));
    }
  }
}

export function chance(p: number): string {
  return p >= 0.9995 ? "1.000" : p >= 0.001 ? p.toFixed(3) : "< 0.001";
}
