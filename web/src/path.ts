// Follow a token: its strongest sources through the layers, as a path that can be walked.

import { onChange } from "./changes";
import { show } from "./colors";
import type { Context } from "./context";
import { el, problem, retryButton } from "./dom";
import { strongestButton } from "./invite";
import { Seen } from "./listening";
import { sentence } from "./source";
import { same } from "./state";
import { followed, LEAST, type PathStep, turned } from "./why";
import type { Walk } from "./whystate";

export class PathView {
  readonly node: HTMLElement;
  private about = el("p", { class: "summary", attrs: { role: "status" } });
  private list = el("ol", { class: "path" });
  private seen: Seen;
  private steps: PathStep[] = [];
  private origin: number | null = null;
  private taken: Walk["taken"] = [];
  private asking = 0;

  constructor(private context: Context) {
    this.node = el("div", { class: "path-view" }, this.about, this.list);
    const load = (anew: boolean) => void this.load(anew);
    this.seen = new Seen(context, ["q", "path"], [], load, () => this.draw());
    onChange(context.link, () => this.seen.now && !context.state.q.length && load(false));
    context.store.on(["layer", "head", "k"], () => this.mark()); // what has the focus keeps it
  }

  show(now: boolean): void {
    this.seen.show(now);
  }

  // A new token is followed from the top; a step of the path that is shown is not a new token.
  private async load(anew: boolean): Promise<void> {
    const run = this.context.run.value;
    const { q, layer, path: walk } = this.context.state;
    if (!run) return;
    const query = q.at(-1) ?? null;
    if (query === null) {
      this.origin = null;
      this.list.replaceChildren();
      this.about.replaceChildren(
        "Pin a token to see where it has it from, layer by layer.",
        ...strongestButton(this.context),
      );
      return;
    }
    if (!anew && this.origin !== null && this.on(query) && (walk ? same(walk, this.walk) : !this.taken.length))
      return this.mark();
    const now = ++this.asking;
    try {
      const among = walk && walk.from < run.tokens.length ? await followed(run, layer, walk) : [];
      const stays = among.some((step) => step.query === query);
      const steps = stays ? among : await followed(run, layer, { from: query, taken: [] });
      if (now !== this.asking) return;
      this.origin = stays ? walk!.from : query;
      this.taken = stays ? walk!.taken : [];
      this.steps = steps;
      this.draw();
    } catch (error) {
      if (now !== this.asking) return;
      this.steps = [];
      this.list.replaceChildren();
      this.about.replaceChildren(problem(sentence(error)), " ");
      if (this.context.curable(error)) this.about.append(retryButton(() => this.context.retry()));
    }
  }

  private on(query: number | undefined): boolean {
    return this.steps.some((step) => step.query === query);
  }

  private get walk(): Walk | null {
    return this.origin === null ? null : { from: this.origin, taken: this.taken };
  }

  private draw(): void {
    const run = this.context.run.value;
    if (!run || this.origin === null) return;
    const { tokens } = run;
    const goes = this.steps.filter((step) => step.goes).length;
    // What a reading calls much depends on the text; weights sum to 1.
    const enough = run.info.of === "weights" ? LEAST : `${100 * LEAST} % of the largest from that token in the layer`;
    this.about.replaceChildren(
      "From the last layer down: ",
      el("q", {}, tokens.element(this.origin)),
      goes
        ? `, by links of at least ${enough} that are neither to the first token nor to itself; where there is none, it stays. Choose a source to walk there.`
        : " has no strong source anywhere.",
    );
    this.list.replaceChildren(
      ...this.steps.map((step, i) => {
        const sources = step.sources.map(([head, key, weight], rank) =>
          el(
            "button",
            {
              class: "chip-button source",
              title: `${run.name(step.layer, head)}: ${tokens.name(step.query)} to ${tokens.name(key)}`,
              attrs: { type: "button", "data-h": head, "data-k": key },
              on: { click: () => void this.walkTo(i, rank) },
            },
            `H${run.layer(step.layer).numbers[head]} `,
            tokens.element(key),
            el("b", {}, ` ${show(weight)}`),
          ),
        );
        return el(
          "li",
          { class: step.goes ? "goes" : "stays", attrs: { "data-l": step.layer, "data-q": step.query } },
          el("span", { class: "layer-name" }, String(run.layer(step.layer).number)),
          el("span", { class: "here" }, tokens.element(step.query)),
          el("span", { class: "sources" }, ...(step.goes ? sources : sources.slice(0, 2))),
        );
      }),
    );
    this.mark();
  }

  // Look at a link; one that the path did not take is taken from here on.
  private async walkTo(i: number, rank: number): Promise<void> {
    const run = this.context.run.value;
    const step = this.steps[i];
    if (!run || !step || this.origin === null) return;
    const [head, key] = step.sources[rank];
    const goes = step.goes && rank === 0;
    const above = this.taken.filter(([number]) =>
      this.steps.slice(0, i).some((s) => run.layer(s.layer).number === number),
    );
    if (!goes) this.taken = [...above, [run.layer(step.layer).number, key]];
    this.context.store.push({ layer: step.layer, head, q: [step.query], k: key, path: this.walk });
    this.node.dispatchEvent(new CustomEvent("opened", { bubbles: true }));
    if (goes) return;
    const now = ++this.asking;
    const steps = await turned(run, this.steps, i, rank);
    if (now !== this.asking) return;
    this.steps = steps;
    this.draw();
  }

  private mark(): void {
    const { layer, head, q, k, path: walk } = this.context.state;
    // The address leads to this path, from wherever on it one stands.
    const walked = this.origin === q.at(-1) && !this.taken.length ? null : this.walk;
    if (this.seen.now && this.on(q.at(-1)) && !same(walk, walked)) this.context.store.replace({ path: walked });
    for (const item of this.list.children as HTMLCollectionOf<HTMLElement>) {
      const here = Number(item.dataset.l) === layer && q.includes(Number(item.dataset.q));
      for (const source of item.querySelectorAll<HTMLElement>(".source"))
        source.setAttribute(
          "aria-pressed",
          String(here && Number(source.dataset.h) === head && Number(source.dataset.k) === k),
        );
    }
  }
}
