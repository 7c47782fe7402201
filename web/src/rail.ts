// The tabs of the Heads rail: all heads; the path of a token through the layers; one link in every head; effects.

import { onChange } from "./changes";
import type { Context } from "./context";
import { el } from "./dom";
import { EffectsView } from "./effects";
import { EveryHead } from "./everyhead";
import { PathView } from "./path";
import { RAIL, type RailTab } from "./whystate";

const NAMES: Record<RailTab, [string, string]> = {
  heads: ["Heads", "every head, ranked"],
  path: ["Path", "where the pinned token has it from, layer by layer"],
  link: ["This link", "what is pinned, in every head"],
  effects: ["Effects", "what is lost without each head"],
};

export class Rail {
  private tabs = el("div", { class: "tabs small rail-tabs", attrs: { role: "tablist", "aria-label": "heads" } });
  private panels: Record<RailTab, HTMLElement>;
  private link: EveryHead;
  private path: PathView;
  private effects: EffectsView;

  constructor(
    private context: Context,
    private node: HTMLElement,
  ) {
    this.link = new EveryHead(context);
    this.path = new PathView(context);
    this.effects = new EffectsView(context);
    const own = el("div", { class: "rail-panel rail-heads" });
    own.append(...node.children);
    this.panels = { heads: own, path: this.path.node, link: this.link.node, effects: this.effects.node };
    for (const tab of RAIL) {
      const [name, title] = NAMES[tab];
      const attrs = { type: "button", role: "tab", id: `rail-tab-${tab}`, "data-rail": tab };
      const button = el("button", { title, attrs: { ...attrs, "aria-controls": `rail-${tab}` } }, name);
      button.addEventListener("click", () => context.store.push({ rail: tab }));
      this.tabs.append(button);
      const panel = this.panels[tab];
      panel.id = `rail-${tab}`;
      panel.classList.add("rail-panel");
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", `rail-tab-${tab}`);
    }
    node.append(this.tabs, ...RAIL.map((tab) => this.panels[tab]));
    node.addEventListener("opened", () => this.node.dispatchEvent(new CustomEvent("chosen", { bubbles: true })));
    context.store.on(["rail"], () => this.show());
    onChange(context.run, () => this.show());
    this.show();
  }

  private show(): void {
    const { rail } = this.context.state;
    for (const tab of RAIL) this.panels[tab].hidden = tab !== rail;
    for (const button of this.tabs.children as HTMLCollectionOf<HTMLElement>) {
      const on = button.dataset.rail === rail;
      button.setAttribute("aria-selected", String(on));
      button.tabIndex = on ? 0 : -1;
    }
    this.link.show(rail === "link");
    this.path.show(rail === "path");
    this.effects.show(rail === "effects");
  }
}
