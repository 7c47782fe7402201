// The page: header, Heads, the centre with its tabs, Text; and the keyboard.

import { onChange } from "./changes";
import "leaflet/dist/leaflet.css";
import "./style.css";
import { copied } from "./clipboard";
import { Compare } from "./compare";
import { Context } from "./context";
import { debounced, el, retryButton } from "./dom";
import { ExportDialog } from "./export";
import { Header } from "./header";
import { Heads } from "./heads";
import { Help } from "./help";
import { Links } from "./links";
import { MapCentre } from "./mapcentre";
import type { MapView } from "./mapview";
import { NoticeLine } from "./notice";
import { Rail } from "./rail";
import { readFirst, reportNote } from "./reportnote";
import { Saying } from "./saying";
import { type Shortcuts, shortcuts } from "./shortcuts";
import { sentence } from "./source";
import { bare, NAMES, type Panel, VIEWS, type View } from "./state";
import { StepsView } from "./steps";
import { TextView } from "./text";
import { Tour } from "./tour";
import { Wall } from "./wall";
import { WhyBar } from "./whybar";
import { WrittenView } from "./written";

class App {
  private context = new Context();
  private live = el("div", { class: "visually-hidden", attrs: { "aria-live": "polite", role: "status" } });
  private notice = new NoticeLine(this.context);
  private saying = new Saying(this.context);
  private say = debounced(300, (text: string) => (this.live.textContent = text));
  private help = new Help(() => this.tour.start(), this.context.way === null && this.context.source.live);
  private tour = new Tour(
    (panel) => this.choosePanel(panel),
    () => this.here(),
  );
  private header = new Header(this.context, {
    share: () => void this.share(),
    export: () => this.exports.open(),
    help: () => this.help.open(),
    tour: () => this.tour.start(),
  });
  private heads = new Heads(this.context);
  readonly rail = new Rail(this.context, this.heads.node);
  private wall = new Wall(this.context);
  private written = new WrittenView(this.context, (id) => this.header.await(id));
  private why = new WhyBar(this.context, {
    rectangle: () => this.map.part(),
    second: () => this.compare.second(),
    refresh: () => this.header.refresh(),
  });
  private text = new TextView(this.context);
  private map = new MapCentre(this.context, this.say);
  private links = new Links(this.context);
  private steps = new StepsView(this.context);
  private compare = new Compare(this.context, () => this.header.runs, this.say);
  private exports = new ExportDialog(
    this.context,
    () => this.activeMap(),
    () => this.links,
  );
  private tabs = el("div", { class: "tabs", attrs: { role: "tablist", "aria-label": "views" } });
  private views = el("div", { class: "views" });
  private centre = el("div", { class: "centre", attrs: { id: "centre" } }, this.tabs, this.views);
  private panels = el("nav", { class: "panels", attrs: { "aria-label": "views" } });
  private root = el("div", { class: "app empty" });

  async start(): Promise<void> {
    const host = document.getElementById("app")!;
    for (const view of VIEWS) this.tabs.append(this.tab(view));
    const views = [this.map, this.links, this.steps, this.compare, this.wall, this.written];
    this.views.append(...views.map((view) => view.node));
    this.panels.append(...this.panelButtons());
    const skip = el("a", { class: "skip", attrs: { href: "#centre" } }, "skip to the map");
    skip.addEventListener("click", (event) => {
      event.preventDefault();
      this.map.view.surface.focus();
    });
    const handle = el(
      "button",
      { class: "rail-handle", attrs: { type: "button", "aria-expanded": "false", "aria-controls": "heads" } },
      "Heads",
    );
    handle.addEventListener("click", () => this.openRail(!this.root.classList.contains("rail-open")));
    this.heads.node.addEventListener("chosen", () => this.headChosen());
    const all = el(
      "main",
      { class: "main" },
      el("h1", { class: "visually-hidden" }, "Sightline explorer"),
      this.saying.node,
      this.why.node,
      handle,
      this.heads.node,
      this.centre,
      this.text.node,
    );
    this.root.append(
      skip,
      this.header.node,
      this.header.progress,
      this.header.composerNode,
      this.header.hint,
      this.header.pending,
      all,
      this.panels,
      this.notice.node,
      this.live,
      this.header.unseen.dialog,
      this.help.node,
      this.exports.node,
      ...this.why.dialogs,
      this.tour.node,
    );
    host.replaceChildren(this.root);
    if (!this.context.source.live) this.frozen();
    this.root.classList.toggle("framed", this.context.way !== null);
    this.follow();
    document.addEventListener("keydown", (event) => this.key(event));
    this.showPanel("text");
    this.showView();
    try {
      await this.header.load();
      await this.arrive();
    } catch (error) {
      this.fail(sentence(error));
    }
  }

  // A report: it says what it holds and what it lacks.
  private frozen(): void {
    this.root.classList.add("frozen");
    this.header.node.after(reportNote(this.context.source));
  }

  // An address is opened as it says, what cannot be is put right; one of a run alone as a first visit is.
  private async arrive(): Promise<void> {
    const { state, notices } = this.context.addressed();
    const known = this.header.runs.some((run) => run.id === state.run);
    if (state.run && !known) notices.push("the run of this address is not here");
    if (notices.length) this.context.say(notices.join("; "));
    if (state.run && known) await this.context.open(state.run, bare(state), state);
    else if (this.header.runs.length) await this.context.open(this.header.runs[0].id, true);
    else this.header.invite();
    if (!state.of) await readFirst(this.context, !state.run);
  }

  private follow(): void {
    const { context } = this;
    onChange(context.run, (run) => this.root.classList.toggle("empty", !run));
    onChange(context.busy, (busy) => this.root.classList.toggle("busy", busy));
    context.store.on(["view"], () => this.showView());
  }

  private tab(view: View): HTMLElement {
    return el(
      "button",
      {
        attrs: { type: "button", role: "tab", id: `tab-${view}`, "aria-controls": `view-${view}`, "data-view": view },
        on: { click: () => this.context.store.push({ view }) },
      },
      NAMES[view],
    );
  }

  private showView(): void {
    const { view } = this.context.state;
    const nodes: Record<View, HTMLElement> = {
      map: this.map.node,
      links: this.links.node,
      steps: this.steps.node,
      compare: this.compare.node,
      wall: this.wall.node,
      written: this.written.node,
    };
    this.root.dataset.view = view;
    for (const name of VIEWS) {
      nodes[name].hidden = name !== view;
      nodes[name].id = `view-${name}`;
      nodes[name].setAttribute("role", "tabpanel");
      nodes[name].setAttribute("aria-labelledby", `tab-${name}`);
    }
    if (view === "compare") this.compare.node.append(this.map.legend.node);
    else this.map.node.append(this.map.legend.node);
    for (const tab of this.tabs.children as HTMLCollectionOf<HTMLElement>) {
      const on = tab.dataset.view === view;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
    }
    // On a phone the map has a panel of its own, whoever chose the view.
    const panel = this.root.dataset.more === "true" ? "more" : this.root.dataset.panel;
    if (panel === (view === "map" ? "more" : "centre")) this.showPanel(view === "map" ? "centre" : "more");
    this.map.view.rest(view !== "map");
    this.links.show(view === "links");
    this.steps.show(view === "steps");
    this.compare.show(view === "compare");
    this.wall.show(view === "wall");
    this.written.show(view === "written");
  }

  private panelButtons(): HTMLElement[] {
    const names: [Panel, string][] = [
      ["text", "Text"],
      ["centre", "Map"],
      ["heads", "Heads"],
      ["more", "More"],
    ];
    return names.map(([panel, name]) =>
      el(
        "button",
        { attrs: { type: "button", "data-panel": panel }, on: { click: () => this.choosePanel(panel) } },
        name,
      ),
    );
  }

  // On a phone one panel at a time; "More" are the views beside the map.
  private showPanel(panel: Panel): void {
    this.root.dataset.panel = panel === "more" ? "centre" : panel;
    this.root.dataset.more = String(panel === "more");
    for (const button of this.panels.children as HTMLCollectionOf<HTMLElement>)
      button.setAttribute("aria-current", String(button.dataset.panel === panel));
    this.tabs.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }

  private choosePanel(panel: Panel): void {
    const { view } = this.context.state;
    this.showPanel(panel);
    if (panel === "centre" && view !== "map") this.context.store.replace({ view: "map" });
    if (panel === "more" && view === "map") this.context.store.replace({ view: "links" });
  }

  // How to come back to the view and panel of now.
  private here(): () => void {
    const { view } = this.context.state;
    const { panel } = this.panels.querySelector<HTMLElement>("[aria-current=true]")!.dataset;
    return () => {
      this.showPanel(panel as Panel);
      this.context.store.replace({ view });
    };
  }

  // On a phone a tap on a head opens its map.
  private headChosen(): void {
    this.openRail(false);
    if (!matchMedia("(max-width: 899px)").matches) return;
    if (this.context.state.view === "compare") this.showPanel("more");
    else this.choosePanel("centre");
  }

  private openRail(open: boolean): void {
    this.root.classList.toggle("rail-open", open);
    this.root.querySelector(".rail-handle")?.setAttribute("aria-expanded", String(open));
    if (open) this.heads.focus();
  }

  private activeMap(): MapView | null {
    const { view } = this.context.state;
    if (view === "map") return this.map.view;
    return view === "compare" ? (this.compare.views[0] ?? null) : null;
  }

  private async share(): Promise<void> {
    const address = this.context.store.address();
    if (await copied(address)) return this.context.say("the address of this view is copied");
    this.context.give("There is no clipboard here: the address is marked, copy it.", address);
  }

  private fail(text: string): void {
    const retry = retryButton(() => location.reload());
    this.root.append(el("div", { class: "down", attrs: { role: "alert" } }, el("p", {}, text), retry));
  }

  private key(event: KeyboardEvent): void {
    const target = event.target instanceof HTMLElement ? event.target : document.body;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, dialog[open]"))
      return;
    if (event.key === "Escape") {
      if (this.root.classList.contains("rail-open")) this.openRail(false);
      else this.context.release();
      return;
    }
    const { context } = this;
    const map = this.activeMap();
    const onMap = target.closest(".surface") !== null || target === document.body;
    const arrows: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    };
    if (event.key in arrows && target.getAttribute("role") === "tab") return this.moveTab(event);
    if (event.key in arrows && onMap && map) {
      map.step(...arrows[event.key]);
      return event.preventDefault();
    }
    if (event.key === "Enter" && target.closest(".surface") && map) return map.pinCursor(event);
    if (event.key === "Backspace") {
      context.store.back();
      return event.preventDefault();
    }
    if (!this.help.keysOn) return;
    const act = this.shortcuts(map)[event.key];
    if (!act || !context.run.value) return;
    act();
    event.preventDefault();
  }

  private shortcuts(map: MapView | null): Shortcuts {
    return shortcuts(this.context, map, {
      go: (view) => this.go(view),
      heads: () => {
        this.showPanel("heads");
        this.openRail(true);
        this.heads.focus();
      },
      text: () => {
        this.showPanel("text");
        this.text.focus();
      },
      find: () => {
        this.showPanel("text");
        this.text.openFind();
      },
      help: () => this.help.open(),
      fit: () => this.map.fitColours(),
      export: () => this.exports.open(),
      more: (both) => this.why.shortcuts(both),
    });
  }

  private go(view: View): void {
    this.showPanel(view === "map" ? "centre" : "more");
    this.context.store.push({ view });
  }

  private moveTab(event: KeyboardEvent): void {
    const list = [...(event.target as HTMLElement).parentElement!.children] as HTMLElement[];
    const by = event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : -1;
    const next = list[(list.indexOf(event.target as HTMLElement) + by + list.length) % list.length];
    next.focus();
    next.click();
    event.preventDefault();
  }
}

void new App().start();
