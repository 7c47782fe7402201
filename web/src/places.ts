// Going on to the next strong link of a head, and to the next place like the pinned one.

import type { components } from "./api";
import type { Context } from "./context";
import { el } from "./dom";
import { asked } from "./why";

type Link = [number, number, number];

export class Places {
  readonly nodes: HTMLElement[];
  private like: { of: string; links: Link[]; at: number } | null = null;
  private strong: { of: string; links: Link[] } | null = null;

  constructor(private context: Context) {
    const button = (name: string, title: string, act: () => void) =>
      el("button", { class: "button quiet", title, attrs: { type: "button" }, on: { click: act } }, name);
    this.nodes = [
      button("Next link", "the next strong link of this head (N)", () => void this.next()),
      button(
        "Like this",
        "the next place like the pinned one: its words, or its distance (A)",
        () => void this.alike(),
      ),
    ];
  }

  // By strength: after the pinned one, else the strongest.
  async next(): Promise<void> {
    const { of, links } = await this.links();
    if (!this.still(of)) return;
    if (!links.length) return this.context.say("this head has no link that is not a matter of course");
    const { q, k } = this.context.state;
    const now = links.findIndex(([query, key]) => query === q.at(-1) && key === k);
    this.go(links[(now + 1) % links.length], `${((now + 1) % links.length) + 1} of ${links.length}`);
  }

  // Those that are like the one from which it began, one after the other.
  async alike(): Promise<void> {
    const { q, k, layer, head } = this.context.state;
    const run = this.context.run.value;
    if (!run || !q.length || k === null) return this.context.say("pin a cell first: then there are places like it");
    const query = q.at(-1)!;
    const { like } = this;
    const of = `${run.asked}/${layer}/${head}`;
    if (like?.of === of && like.links[like.at]?.[0] === query && like.links[like.at]?.[1] === k) {
      like.at = (like.at + 1) % like.links.length;
      return this.go(like.links[like.at], `${like.at} of ${like.links.length - 1}`);
    }
    try {
      const links = await this.ask(`&q=${query}&k=${k}`);
      if (!this.still(of)) return;
      if (!links.length) return this.context.say("no other strong link of this head is like this one");
      this.like = { of, links: [[query, k, 0], ...links], at: 1 };
      this.go(links[0], `1 of ${links.length}`);
    } catch (error) {
      this.context.failed(error, () => void this.alike());
    }
  }

  private async links(): Promise<{ of: string; links: Link[] }> {
    const { layer, head } = this.context.state;
    const of = `${this.context.run.value?.asked}/${layer}/${head}`;
    if (this.strong?.of === of) return this.strong;
    try {
      this.strong = { of, links: await this.ask("") };
      return this.strong;
    } catch (error) {
      this.context.failed(error, () => void this.next());
      return { of: "", links: [] };
    }
  }

  private async ask(more: string): Promise<Link[]> {
    const run = this.context.run.value!;
    const { layer, head } = this.context.state;
    if (!run.source.file) {
      const link = more ? null : await run.source.link(run.asked, run.rev, layer, head);
      return link ? [link] : []; // a report holds the strongest alone
    }
    const path = `/api/runs/${run.asked}/links/${layer}/${head}?rev=${run.rev}${more}`;
    return (await asked<components["schemas"]["Links"]>(run.source, path)).links;
  }

  private still(of: string): boolean {
    const { layer, head } = this.context.state;
    return of === `${this.context.run.value?.asked}/${layer}/${head}`;
  }

  private go([q, k]: Link, which: string): void {
    this.context.store.push({ q: [q], k });
    this.context.say(`link ${which}`);
  }
}
