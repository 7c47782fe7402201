// Bookmarks: places with a sentence. They are in the address, with the run on the server, and in a saved folder.

import type { components } from "./api";
import { onChange } from "./changes";
import type { Context } from "./context";
import { el } from "./dom";
import { dialog } from "./export";
import type { OpenRun } from "./run";
import { asked, sent } from "./why";
import type { Mark } from "./whystate";

export class Marks {
  readonly button = el("button", {
    class: "button quiet marks-button",
    attrs: { type: "button", "aria-haspopup": "dialog" },
    on: { click: () => this.open() },
  });
  readonly node: HTMLDialogElement;
  private list = el("ul", { class: "marks-list" });
  private text = el("input", { attrs: { type: "text", maxlength: 300, "aria-label": "a sentence for this place" } });
  private add = el("button", { class: "button primary", attrs: { type: "submit" } }, "Mark this place");
  private known = "";

  constructor(private context: Context) {
    const form = el("form", { class: "marks-form" }, this.text, this.add);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.keep();
    });
    this.node = dialog("Bookmarks", form, this.list);
    context.store.on(["marks"], () => this.draw());
    onChange(context.run, (run) => void this.load(run));
    onChange(context.tokens, () => this.draw());
    this.draw();
  }

  open(): void {
    this.text.value = this.words();
    this.draw();
    this.node.showModal();
    this.text.focus();
    this.text.select();
  }

  // Those of the address go first; those with the run are added to them.
  private async load(run: OpenRun | null): Promise<void> {
    if (!run || run.id === this.known) return;
    const first = this.known === "";
    this.known = run.id;
    const given = first ? this.context.state.marks : [];
    let held: Mark[] = this.context.source.kept?.().marks ?? [];
    try {
      if (this.context.source.file) {
        const path = `/api/runs/${run.id}/bookmarks`;
        held = (await asked<components["schemas"]["Marks"]>(this.context.source, path)).marks;
      }
    } catch {
      // those of the address are there all the same
    }
    if (this.context.run.value?.id !== run.id) return;
    const seen = new Set(given.map((mark) => JSON.stringify(order(mark))));
    const all = [...given, ...held.filter((mark) => !seen.has(JSON.stringify(order(mark))))];
    if (all.length || this.context.state.marks.length) this.context.store.replace({ marks: all });
  }

  // What is pinned, as one would say it.
  private words(): string {
    const run = this.context.run.value;
    const { layer, head, q, k } = this.context.state;
    if (!run) return "";
    const who = run.name(layer, head);
    if (!q.length) return who;
    const from = run.tokens.label(q.at(-1)!);
    return k === null ? `${from} in ${who}` : `${from} looks at ${run.keyTokens(layer).label(k)} in ${who}`;
  }

  private keep(): void {
    const run = this.context.run.value;
    if (!run) return;
    const { layer, head, q, k, marks } = this.context.state;
    const info = run.layer(layer);
    const text = this.text.value.trim() || this.words();
    const mark = { layer: info.number, head: info.numbers[head] ?? head, q: q.at(-1) ?? null, k, text };
    this.put([...marks, mark]);
  }

  private put(marks: Mark[]): void {
    const run = this.context.run.value;
    this.context.store.push({ marks });
    if (!run || !this.context.source.file) return; // a report keeps them in its address
    this.context.source
      .file(`/api/runs/${run.id}/bookmarks`, sent("PUT", { marks }))
      .catch((error) => this.context.failed(error, () => this.put(marks)));
  }

  private go({ layer, head, q, k }: Mark): void {
    const run = this.context.run.value;
    if (!run) return;
    const place = run.info.layers.findIndex((info) => info.number === layer);
    if (place < 0) return this.context.say(`this run has no layer ${layer}`);
    const info = run.layer(place);
    const at = info.numbers.indexOf(head);
    if (at < 0) return this.context.say(`layer ${layer} of this run has no head ${head}`);
    const fits = q !== null && q < info.queries;
    this.node.close();
    this.context.store.push({
      layer: place,
      head: at,
      q: fits ? [q] : [],
      k: k !== null && k < info.keys ? k : null,
    });
  }

  private draw(): void {
    const { marks } = this.context.state;
    this.button.replaceChildren(`☆ ${marks.length ? marks.length : "Mark"}`);
    this.button.setAttribute("aria-label", `bookmarks: ${marks.length}`);
    this.button.title = "bookmark this place, or go to one (B)";
    this.list.replaceChildren(
      ...(marks.length
        ? marks.map((mark, i) =>
            el(
              "li",
              {},
              el(
                "button",
                { class: "mark", attrs: { type: "button" }, on: { click: () => this.go(mark) } },
                el("bdi", {}, mark.text),
                el("span", { class: "fine" }, ` layer ${mark.layer} head ${mark.head}`),
              ),
              el(
                "button",
                {
                  class: "icon-button",
                  attrs: { type: "button", "aria-label": `remove: ${mark.text}` },
                  on: { click: () => this.put(marks.filter((_, other) => other !== i)) },
                },
                "×",
              ),
            ),
          )
        : [el("li", { class: "fine" }, "No bookmarks yet: mark the place that is pinned.")]),
    );
  }
}

function order({ layer, head, q, k, text }: Mark): unknown[] {
  return [layer, head, q, k, text];
}
