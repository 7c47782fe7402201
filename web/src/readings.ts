// Which reading is shown: what was looked at, carried, or mattered. A reading of a run is a run beside it.

import { onChange } from "./changes";
import type { Context } from "./context";
import { el } from "./dom";
import { segmented } from "./legend";
import { type Waiting, waitFor } from "./orders";
import { OpenRun } from "./run";
import { isRun, type OrderInfo, type RunInfo, sentence } from "./source";
import { asked, sent } from "./why";
import type { Reading } from "./whystate";

export const NAMES: Record<Reading, string> = { weights: "looked at", norms: "carried", influence: "mattered" };
const OF = Object.fromEntries(Object.entries(NAMES).map(([of, name]) => [name, of])) as Record<string, Reading>;
const TITLES: Record<Reading, string> = {
  weights: "how much a query looks at a key",
  norms: "how much it carries from there: the weight times the size of what the key gives",
  influence: "how much that raises what is asked about; blue lowers it",
};

export class Readings {
  readonly node: HTMLElement;
  private choice = segmented("reading", Object.values(NAMES), (name) => this.choose(OF[name]));
  readonly about = el("span", { class: "reading-about", attrs: { role: "status" } });
  private aims = el("select", { class: "reading-aims", attrs: { "aria-label": "what for", hidden: true } });
  private asking = 0;
  private waiting: Waiting | null = null;

  // `progress` shows how an order goes, until null.
  constructor(
    private context: Context,
    private progress: (order: OrderInfo | null) => void,
  ) {
    this.node = el("span", { class: "readings" }, this.choice.node, this.aims);
    const buttons = [...this.choice.node.children] as HTMLElement[];
    Object.values(TITLES).forEach((title, i) => {
      buttons[i].title = title;
    });
    context.store.on(["of", "target", "run"], () => void this.apply());
    onChange(context.run, () => void this.apply());
    onChange(context.other, () => void this.beside());
    onChange(context.run, () => void this.beside());
    this.draw();
  }

  private choose(of: Reading): void {
    this.context.store.push({ of });
  }

  // The reading that the state names, made if it is not there.
  private async apply(): Promise<void> {
    const run = this.context.run.value;
    this.draw();
    if (!run || this.context.state.run !== run.id) return;
    const { of, target } = this.context.state;
    const now = JSON.stringify(run.info.of === "weights" ? [] : [run.info.of, run.info.aim]);
    const wanted = JSON.stringify(of === "weights" ? [] : [of, target]);
    const own = run.info.own.includes(of) && !target.token && !target.than && target.after === null;
    if (!this.context.source.live && of !== "weights") return this.held(run, of);
    if (run.info.of === of && (now === wanted || (own && run.info.aim === null) || of === "weights")) return;
    const asking = ++this.asking;
    this.waiting?.leave();
    this.waiting = null;
    try {
      const id = of === "weights" ? run.id : own ? `${run.id}_own_${of}` : `${await this.make(run)}_${of}`;
      if (asking !== this.asking) return;
      const info = await this.context.source.run(id);
      if (asking !== this.asking || !isRun(info)) return;
      const read = new OpenRun(this.context.source, info);
      read.inherit(run);
      await this.context.read(read);
    } catch (error) {
      if (asking !== this.asking) return;
      this.context.say(sentence(error));
      this.context.store.replace({ of: run.info.of as Reading });
    } finally {
      if (asking === this.asking) this.progress(null);
      this.draw();
    }
  }

  // A report: the reading for that target, or else one that it holds.
  private async held(run: OpenRun, of: Reading): Promise<void> {
    const { source, state } = this.context;
    const among = this.kept(of);
    const wanted = JSON.stringify(state.target);
    const info = among.find((one) => one.aim !== null && JSON.stringify(one.aim) === wanted) ?? among[0];
    if (!info) {
      this.context.say(`this report does not hold what was ${NAMES[of]}`);
      return this.context.store.replace({ of: "weights" });
    }
    if (info.id === run.info.id) return;
    const read = new OpenRun(source, info);
    read.inherit(run);
    await this.context.read(read);
    if (info.aim) this.context.store.replace({ target: info.aim });
    this.draw();
  }

  private kept(of: Reading): RunInfo[] {
    return (this.context.source.readings ?? []).filter((info) => info.of === of);
  }

  // An order for it; its id when it is done.
  private async make(run: OpenRun): Promise<string> {
    const { source, state } = this.context;
    if (run.info.why_not) throw new Error(`This reading needs gradients, and ${run.info.why_not}`);
    const { id } = await asked<{ id: string }>(source, `/api/runs/${run.id}/readings`, sent("POST", state.target));
    this.waiting = waitFor(source, id, this.progress);
    await this.waiting.done;
    this.waiting = null;
    return id;
  }

  // The run beside it is read the same way: two maps of different things are not compared.
  private async beside(): Promise<void> {
    const { run, other, source } = this.context;
    const [a, b] = [run.value, other.value];
    if (!a || !b || a.id === b.id) return;
    const aim = (one: OpenRun) => JSON.stringify(one.info.of === "weights" ? [] : [one.info.of, one.info.aim]);
    if (aim(a) === aim(b)) return;
    try {
      let id = b.id;
      if (a.info.of !== "weights") {
        const made = await asked<{ id: string }>(source, `/api/runs/${b.id}/readings`, sent("POST", a.info.aim));
        await waitFor(source, made.id, this.progress).done;
        id = `${made.id}_${a.info.of}`;
      }
      const info = await source.run(id);
      if (!isRun(info) || run.value !== a || other.value !== b) return;
      const read = new OpenRun(source, info);
      await Promise.all([read.loadThumbs(), read.loadPortraits(), read.tokens.load(() => undefined)]);
      if (run.value === a && other.value === b) other.value = read;
    } catch (error) {
      this.context.say(`the run beside it cannot be read this way: ${sentence(error)}`);
    } finally {
      this.progress(null);
    }
  }

  // A report offers what it holds, and of several targets those.
  private drawHeld(): void {
    const { of, target } = this.context.state;
    const buttons = [...this.choice.node.children] as HTMLElement[];
    Object.keys(NAMES).forEach((name, i) => {
      buttons[i].hidden = name !== "weights" && !this.kept(name as Reading).length;
    });
    this.node.hidden = buttons.every((button, i) => i === 0 || button.hidden);
    const aims = of === "weights" ? [] : this.kept(of).flatMap(({ aim }) => (aim ? [aim] : []));
    this.aims.hidden = !aims.length;
    this.aims.replaceChildren(
      ...aims.map((aim, i) => el("option", { attrs: { value: i, selected: same(aim, target) } }, aimWords(aim))),
    );
    this.aims.onchange = () => this.context.store.push({ target: aims[Number(this.aims.value)] });
  }

  private draw(): void {
    const run = this.context.run.value;
    const { of } = this.context.state;
    this.choice.set(NAMES[of]);
    if (!this.context.source.live) this.drawHeld();
    const { value, aim } = run?.info ?? {};
    this.about.textContent =
      run?.info.of === "influence" && aim && value !== null && value !== undefined ? `= ${value.toFixed(2)}` : "";
  }
}

// "looks at", as the reading has it.
export function verb(of: string, single: boolean): string {
  if (of === "norms") return single ? " carries from " : " carry from ";
  if (of === "influence") return ", from ";
  return single ? " looks at " : " look at ";
}

// The same of the strongest of all; `after` that of the first token, which is set aside.
export function mostOf(of: string, single: boolean, after: boolean): string {
  const most = after ? "most, after the first token," : "most";
  if (of === "norms") return `${single ? " carries" : " carry"} ${most} from `;
  if (of === "influence") return `, ${most} from `;
  return `${single ? " looks" : " look"} ${most} at `;
}

function same(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

export function aimWords({ token, than, after }: { token: string; than: string; after: number | null }): string {
  const name = (text: string) => `“${text.trim() || text}”`;
  const what = token ? name(token) : "the next token";
  return `for ${what}${than ? ` instead of ${name(than)}` : ""}${after === null ? "" : `, after ${after}`}`;
}

// What the cells of a reading are: "mattered for “Mary” instead of “John”".
export function readingWords({ info: { of, aim } }: OpenRun): string {
  return `${NAMES[of as Reading]}${of === "influence" && aim ? ` ${aimWords(aim)}` : ""}`;
}
