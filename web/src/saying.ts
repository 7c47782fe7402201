// The sentence over the views: they (10) looks at kids (2): 0.814. Beside it is the switch of the first token.

import { AsideSwitch, setAside } from "./aside";
import { onChange } from "./changes";
import { show, showAbout } from "./colors";
import type { Context } from "./context";
import { debounced, el, forTouch } from "./dom";
import { aimWords, mostOf, verb } from "./readings";
import type { OpenRun } from "./run";
import { topOf } from "./shading";

// Whatever is chosen alone is said with what it looks at most; `first` is passed over where it is set aside.
interface Link {
  queries: number[];
  key: number;
  value: number;
  about: boolean; // whether the value is an estimate
  first: boolean;
}

export class Saying {
  readonly node: HTMLElement;
  private sentence = el("p", { class: "sentence", attrs: { id: "sentence" } });
  private asked = 0;

  constructor(private context: Context) {
    this.node = el("div", { class: "sentence-line" }, this.sentence, new AsideSwitch(context).node);
    const tell = debounced(30, () => void this.tell());
    context.store.on(["layer", "head", "q", "k", "run", "aside"], tell);
    onChange(context.hover, tell);
    onChange(context.tokens, tell);
    onChange(context.portraits, tell);
    onChange(context.again, tell);
  }

  private async tell(): Promise<void> {
    const { context } = this;
    const run = context.run.value;
    const { layer, head, q, k } = context.state;
    if (!run || layer >= run.info.layers.length) return;
    const now = ++this.asked;
    const hover = context.hover.value;
    const hovered = hover?.q !== null && hover?.q !== undefined;
    const queries = hovered ? [hover.q!] : q;
    const chosen = hover?.k ?? (hovered && hover.from !== "map" ? null : k);
    const key = chosen !== null && chosen < run.keyTokens(layer).length ? chosen : null;
    const plain = queries.length && key !== null ? [verb(run.info.of, queries.length === 1)] : null;
    this.draw(run, [...names(run, queries), ...(plain ?? []), ...(key === null ? [] : named(run, layer, key))]);
    if (!queries.length && key === null) return;
    try {
      const link = await this.link(run, layer, head, queries, key);
      if (now !== this.asked) return;
      if (!link) return plain ? undefined : this.draw(run, unknown(run, layer, queries, key));
      const { of, aim } = run.info;
      const single = link.queries.length === 1;
      const how = queries.length && key !== null ? verb(of, single) : mostOf(of, single, link.first);
      const parts = [...names(run, link.queries), how, ...named(run, layer, link.key), ": "];
      if (!queries.length) parts.unshift("of all, ");
      const number = link.about ? showAbout(link.value) : show(link.value);
      this.draw(run, parts, number, of === "influence" && aim ? ` ${aimWords(aim)}` : "");
    } catch {
      // the sentence stands without its number
    }
  }

  // What was chosen of it, and its number; of a query alone its strongest key, of a key alone who looks at it most.
  private async link(run: OpenRun, layer: number, head: number, q: number[], k: number | null): Promise<Link | null> {
    if (this.context.source.live && !run.layer(layer).exact) return null;
    let [queries, key, first] = [q, k, false];
    if (!queries.length) queries = topOf(await run.column(layer, head, key!), 1);
    if (!queries.length) return null;
    const row = await run.row(layer, head, queries);
    if (key === null) {
      const [best, next] = topOf(row, 2);
      first = best === 0 && next !== undefined && this.context.state.aside && setAside(run, layer, head) > 0;
      key = first ? next : (best ?? null);
    }
    if (key === null) return null;
    const held = queries.map((query) => this.context.source.held?.(layer, head, query, key, run.asked));
    const about = !held.every((one) => !one || one.exact);
    // A report does not hold every weight.
    if (held.includes(null) || (about && !(q.length && k !== null))) return null; // who knows whether it is the most
    return { queries, key, value: row[key], about, first };
  }

  private draw(run: OpenRun, parts: (Node | string)[], number = "", aim = ""): void {
    const { layer, head } = this.context.state;
    if (!parts.length) parts.push(forTouch("Point at the map or at a token."));
    const weight = el("b", { class: "weight" }, number);
    const link = el("span", { class: "link" }, ...parts, weight);
    if (aim) link.append(el("span", { class: "aim" }, aim));
    this.sentence.replaceChildren(link, " ", el("span", { class: "where" }, run.name(layer, head)));
  }
}

function names(run: OpenRun, queries: number[]): (Node | string)[] {
  const parts = queries.slice(0, 4).flatMap((query, i) => [...(i ? [" + "] : []), ...run.tokens.placed(query)]);
  return queries.length > 4 ? [...parts, ` + ${queries.length - 4} more`] : parts;
}

// Of a run that was watched without q and k, and of a report that does not hold this.
function unknown(run: OpenRun, layer: number, queries: number[], key: number | null): (Node | string)[] {
  if (!queries.length) return [...named(run, layer, key!), ": who looks at it is not known here"];
  return [...names(run, queries), `: what ${queries.length > 1 ? "they look" : "it looks"} at is not known here`];
}

function named(run: OpenRun, layer: number, key: number): HTMLElement[] {
  return run.keyTokens(layer).placed(key);
}
