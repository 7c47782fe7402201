// What all views share: the state, the open run, what is pointed at, and what may be done from anywhere.

import { batch, signal } from "@preact/signals-core";
import { carried } from "./carrier";
import { opening, readingScale, rescaled, type Scale, type ScaleName } from "./colors";
import { EmbeddedSource, embeddedData } from "./embedded";
import { fitted } from "./fitted";
import { Loader } from "./loader";
import { sayLooked } from "./looked";
import type { Hover, Link, Notice } from "./pointed";
import { OpenRun } from "./run";
import { HttpSource, isRun, Refused, type Source, sentence } from "./source";
import { bare, START, type State, Store, same } from "./state";
import { store, stored } from "./storage";

export type { Hover, Link, Notice };

export class Context {
  readonly source: Source;
  readonly loader: Loader;
  readonly run = signal<OpenRun | null>(null);
  readonly other = signal<OpenRun | null>(null);
  readonly hover = signal<Hover | null>(null);
  readonly dark = signal(false);
  readonly portraits = signal(0); // counts arrivals
  readonly tokens = signal(0);
  readonly notice = signal<Notice>({ text: "", again: null });
  readonly again = signal(0); // counts how often someone asked to try again: every view does what it could not do
  readonly link = signal<Link | null>(null);
  readonly busy = signal(false);
  readonly subtracts = signal(false); // whether the map shows the difference of two heads
  readonly following = signal(false); // whether the newest token of a growing run is chosen as it comes
  readonly way = carried(); // to the kernel of a notebook, if this is a widget
  readonly store = new Store(this.way !== null);
  private opening = 0;
  private comes: { id: string; here: Promise<void> } | null = null; // the run that is being opened

  constructor() {
    const data = embeddedData();
    this.source = data ? new EmbeddedSource(data) : new HttpSource(this.way);
    this.loader = new Loader(this.source);
    const system = matchMedia("(prefers-color-scheme: dark)");
    const chosen = stored("theme");
    const apply = () => {
      this.dark.value = (stored("theme") ?? (system.matches ? "dark" : "light")) === "dark";
      document.documentElement.dataset.theme = this.dark.value ? "dark" : "light";
    };
    if (chosen) document.documentElement.dataset.theme = chosen;
    system.addEventListener("change", apply);
    apply();
    this.store.on(["run"], ({ run }) => {
      if (run && run !== this.run.peek()?.id) void this.open(run, !this.way && bare(this.addressed().state));
    });
    this.store.on(["layer", "head"], () => this.findLink());
    this.store.on(["other"], () => void this.openOther());
    sayLooked(this);
  }

  get state(): State {
    return this.store.now;
  }

  scale(difference = false): Scale {
    const { scale, lo, hi, map } = this.state;
    const chosen = { name: scale, lo, hi, map, dark: this.dark.value, difference };
    return this.run.value?.reading ? readingScale(chosen, this.run.value.reading) : chosen;
  }

  useScale(name: ScaleName): void {
    this.store.push(rescaled(name, this.state.lo, this.run.value?.longest ?? 1));
  }

  switchTheme(): void {
    store("theme", this.dark.value ? "light" : "dark");
    this.dark.value = !this.dark.value;
    document.documentElement.dataset.theme = this.dark.value ? "dark" : "light";
  }

  // Open a run, and make the state fit it. `fresh` takes the head and the link that are most worth a look; what is
  // given is shown as it says, as far as it can be.
  async open(id: string, fresh = false, given: Partial<State> = {}): Promise<void> {
    const open = this.run.value;
    if (open && open.id === id && !fresh) return;
    const now = ++this.opening;
    let arrived = () => {};
    this.comes = { id, here: new Promise((done) => (arrived = done)) };
    this.busy.value = true;
    try {
      const info = await this.source.run(id);
      if (now !== this.opening) return;
      if (!isRun(info)) throw new Error(`this run is ${info.state}`);
      const run = this.known(new OpenRun(this.source, info));
      const portraits = this.summarise(run);
      // Long maps of which nothing was computed yet are not waited for.
      if (fresh) await Promise.race([portraits, wait(2000)]).catch(() => undefined);
      if (now !== this.opening) return;
      // Before they are there nobody knows whose link it is to be.
      const link = fresh && run.portraits ? this.firstLink(run) : null;
      const early = await Promise.race([link, wait(800)]); // most are there by then, and nothing moves afterwards
      if (now !== this.opening) return;
      // All of it at once: no view may see this run with the head of the one before.
      batch(() => {
        const { state, notices } = fitted(run, given, this.source.live);
        if (fresh) this.choose(run, early, state);
        else if (given.run) this.store.replace(state);
        if (notices.length) this.say([this.notice.peek().text, ...notices].filter(Boolean).join("; "));
        this.run.value = run;
      });
      this.findLink();
      if (fresh && !early) void this.chooseLate(run, portraits, link, given);
    } catch (error) {
      this.failed(error, () => void this.open(id, fresh, given));
    } finally {
      if (now === this.opening) {
        this.busy.value = false;
        this.comes = null;
      }
      arrived();
    }
  }

  get showing(): string | null {
    return this.comes?.id ?? this.run.value?.id ?? null; // what is being opened, or is open
  }

  leave(): void {
    this.opening++;
    batch(() => {
      this.run.value = this.other.value = this.link.value = null;
      this.store.replace({ ...START, scale: this.state.scale, lo: this.state.lo });
    });
  }

  // All that is told of a run as a whole; returns when its portraits are there.
  private summarise(run: OpenRun): Promise<void> {
    const thumbs = run.loadThumbs().then((estimate) => this.told(run, estimate));
    const portraits = run.loadPortraits().then(() => this.told(run, !run.portraits!.complete));
    const texts = [run.tokens, run.memory].map((tokens) => tokens?.load(() => this.tokens.value++));
    Promise.all([thumbs, portraits, ...texts]).catch((error) =>
      this.failed(error, () => this.run.value === run && void this.summarise(run).catch(() => undefined)),
    );
    return portraits;
  }

  // Another reading of the run that is open: the same places, other numbers.
  async read(run: OpenRun): Promise<void> {
    const open = this.run.value;
    await Promise.all([run.loadThumbs(), run.loadPortraits(), run.tokens.load(() => undefined)]);
    if (this.run.value !== open) return;
    batch(() => {
      this.run.value = run;
      this.portraits.value++;
      this.tokens.value++;
    });
    this.findLink();
  }

  private known(run: OpenRun): OpenRun {
    this.store.numbers.set(run.id, run.info.layer_numbers); // addresses write the model's own
    return run;
  }

  private firstLink(run: OpenRun): Promise<Link | null> {
    const [layer, head] = run.portraits?.first ?? [0, 0];
    return run.source.link(run.asked, run.rev, layer, head).catch(() => null);
  }

  // A run that is being written has new rows: the same view, with more of them.
  async grow(id: string): Promise<void> {
    const coming = this.comes?.id === id;
    if (coming) await this.comes?.here; // as an address says, and not anew; there may be more of it by then
    const open = this.run.value;
    if (coming && open?.id !== id) return;
    if (!open || open.id !== id) return this.open(id, true);
    const info = await this.source.run(id);
    const passed = () => this.run.value !== open; // by other news of it, perhaps older
    if (passed()) return this.run.value?.id === id ? this.grow(id) : undefined;
    if (!isRun(info) || (info.revision === open.rev && info.growing === open.info.growing)) return;
    const run = this.known(new OpenRun(this.source, info));
    run.inherit(open);
    run
      .loadThumbs()
      .then((estimate) => this.told(run, estimate))
      .catch(() => undefined);
    const portraits = run
      .loadPortraits()
      .then(() => this.told(run, false))
      .catch(() => undefined);
    await run.tokens.load(() => undefined);
    // All layers are there: unless someone has begun to look around, the one to look at first may be another.
    const anew = open.info.growing && !info.growing && info.layers.length > open.info.layers.length;
    if (anew) await portraits;
    const link = anew && this.untouched() ? await this.firstLink(run) : null;
    if (passed()) return this.run.value?.id === id ? this.grow(id) : undefined;
    batch(() => {
      if (anew && this.untouched()) this.choose(run, link, {});
      this.run.value = run;
      this.tokens.value++;
      // The floor is that of the length, as who comes later sees it; unless someone chose another.
      const { scale, lo } = this.state;
      if (same({ scale, lo }, opening(open.longest))) this.store.replace(opening(run.longest));
      if (this.following.value) this.store.replace({ q: [info.layers[0].queries - 1], k: null });
    });
  }

  // What came after the first view: the head that the summaries name, and its link. However late, unless someone has
  // begun to look around.
  private async chooseLate(
    run: OpenRun,
    portraits: Promise<void>,
    link: Promise<Link | null> | null,
    given: Partial<State>,
  ): Promise<void> {
    const { layer, head, at } = this.state;
    const untouched = () => {
      const { state } = this;
      const pinned = state.q.length > 0 || state.k !== null || (at === null && state.at !== null);
      return this.run.value?.id === run.id && state.layer === layer && state.head === head && !pinned;
    };
    if (!link) await portraits.catch(() => undefined);
    const found = await (link ?? this.firstLink(run));
    if (!untouched()) return;
    if (!link) this.choose(run, found, fitted(run, given, this.source.live).state);
    else if (found) {
      this.store.replace({ q: [found[0]], k: found[1] });
      this.chosen = JSON.stringify(this.looked);
    }
  }

  private chosen: unknown = null; // what the page has chosen by itself

  private untouched(): boolean {
    return this.chosen === JSON.stringify(this.looked);
  }

  private get looked(): unknown {
    const { run, layer, head, q, k, at, view, other } = this.state;
    return { run, layer, head, q, k, at, view, other };
  }

  // The head to look at first, and its strongest link.
  private choose(run: OpenRun, link: Link | null, given: Partial<State>): void {
    const [layer, head] = run.portraits?.first ?? [0, 0];
    this.link.value = link;
    this.store.replace({
      run: run.id,
      layer,
      head,
      q: link ? [link[0]] : [],
      k: link ? link[1] : null,
      at: null,
      ...opening(run.longest),
      hi: 1,
      other: null,
      difference: false,
      path: null,
      ...given,
    });
    this.chosen = JSON.stringify(this.looked);
  }

  // Summaries have arrived; estimates are asked for again until they are exact.
  private told(run: OpenRun, estimate: boolean): void {
    if (this.run.value === run) this.portraits.value++;
    if (!estimate) return;
    window.setTimeout(() => {
      if (this.run.value !== run) return;
      run
        .loadThumbs()
        .then((again) => this.told(run, again))
        .catch(() => undefined);
      run
        .loadPortraits()
        .then(() => this.told(run, false))
        .catch(() => undefined);
    }, 5000);
  }

  private async openOther(): Promise<void> {
    const { other } = this.state;
    if (!other || other.run === this.other.value?.id) return;
    if (other.run === this.run.value?.id) {
      this.other.value = this.run.value;
      return;
    }
    try {
      const info = await this.source.run(other.run);
      if (!isRun(info)) throw new Error(`the run beside it is ${info.state}`);
      const run = this.known(new OpenRun(this.source, info));
      const texts = run.tokens.load(() => this.tokens.value++);
      this.other.value = run;
      await Promise.all([run.loadPortraits(), run.loadThumbs(), texts]);
      this.portraits.value++;
    } catch (error) {
      this.failed(error, () => this.store.replace({ other }));
      this.store.replace({ other: null });
    }
  }

  private findLink(): void {
    const run = this.run.value;
    const { layer, head } = this.state;
    if (!run || layer >= run.info.layers.length) return;
    run.source
      .link(run.asked, run.rev, layer, head)
      .then((link) => {
        if (this.run.value === run && this.state.layer === layer && this.state.head === head) this.link.value = link;
      })
      .catch(() => {
        this.link.value = null;
      });
  }

  openHead(layer: number, head: number): void {
    if (layer === this.state.layer && head === this.state.head) return;
    this.store.push({ layer, head });
  }

  moveHead(layers: number, heads: number): void {
    const run = this.run.value;
    if (!run) return;
    const layer = Math.min(Math.max(this.state.layer + layers, 0), run.info.layers.length - 1);
    const count = run.layer(layer).heads;
    this.openHead(layer, Math.min(Math.max(this.state.head + heads, 0), count - 1));
  }

  compareWith(layer: number, head: number, run?: string): void {
    const id = run ?? this.run.value?.id;
    if (id) this.store.push({ other: { run: id, layer, head }, view: "compare" });
  }

  // What the pointer is over, in whichever view; null when it has left.
  point(hover: Hover | null): void {
    this.hover.value = hover;
  }

  say(text: string, again: (() => void) | null = null): void {
    this.notice.value = { text, again };
  }

  // What could not be copied, to be copied by hand.
  give(text: string, given: string): void {
    this.notice.value = { text, given, again: null };
  }

  failed(error: unknown, again: () => void): void {
    this.say(sentence(error), this.curable(error) ? again : null);
  }

  // Whether trying again may help: a server may come back, a report will never hold more.
  curable(error: unknown): boolean {
    return this.source.live && !(error instanceof Refused && [400, 403, 404, 413, 422].includes(error.status));
  }

  // One Retry heals all that failed with it.
  retry(also: (() => void) | null = null): void {
    this.say("");
    this.loader.retry();
    also?.();
    this.again.value++;
  }

  // Hover previews, click pins, Esc releases.
  pin(q: number | null, k: number | null, add = false): void {
    const { state } = this;
    let queries = state.q;
    if (q !== null) {
      if (add) queries = state.q.includes(q) ? state.q.filter((x) => x !== q) : [...state.q, q];
      else queries = [q];
    }
    this.store.push({ q: queries.slice(-64), k: k ?? (add ? state.k : q === null ? state.k : null) });
  }

  pinKey(k: number): void {
    this.store.push({ k });
  }

  release(): void {
    this.point(null);
    if (this.state.q.length || this.state.k !== null) this.store.push({ q: [], k: null });
  }

  // The query that is shown: the one pointed at, else those pinned.
  get queries(): number[] {
    const hovered = this.hover.value?.q;
    return hovered !== null && hovered !== undefined ? [hovered] : this.state.q;
  }

  get key(): number | null {
    return this.hover.value?.k ?? this.state.k;
  }

  addressed(): { state: Partial<State>; notices: string[] } {
    return this.store.addressed();
  }
}

function wait(time: number): Promise<null> {
  return new Promise((done) => window.setTimeout(() => done(null), time));
}
