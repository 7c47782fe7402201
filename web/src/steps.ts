// The worked example for the chosen query, with the real numbers: q, k, v, score, weight, weighted value, sum.

import { onChange } from "./changes";
import { copyShown } from "./clipboard";
import { css, show, signedColor } from "./colors";
import type { Context } from "./context";
import { debounced, el, problem } from "./dom";
import { type StepsColumn, type StepsTable, sentence } from "./source";

const FOLD = 64;

export class StepsView {
  readonly node = el("div", { class: "steps" });
  private visible = false;
  private top = 16;
  private drawn: StepsTable | null = null;
  private asked = 0;
  private later = debounced(60, () => void this.load());

  constructor(private context: Context) {
    onChange(context.run, () => this.later());
    onChange(context.tokens, () => this.later());
    onChange(context.again, () => this.later());
    context.store.on(["layer", "head", "q", "k", "run"], (state, before) => {
      if (state.q !== before.q || state.layer !== before.layer || state.head !== before.head) this.top = 16;
      this.later();
    });
    onChange(context.dark, () => this.drawn && this.visible && this.draw(this.drawn));
    onChange(context.hover, (hover) => {
      for (const row of this.node.querySelectorAll<HTMLElement>("tr[data-k]"))
        row.classList.toggle("on", hover !== null && Number(row.dataset.k) === hover.k);
    });
  }

  show(visible: boolean): void {
    this.visible = visible;
    if (visible) void this.load();
  }

  private async load(): Promise<void> {
    const run = this.context.run.value;
    const { layer, head, q, k } = this.context.state;
    if (!run || !this.visible || layer >= run.info.layers.length) return;
    if (!this.context.source.live) return this.empty("A report has no steps: open the run in sightline serve.");
    if (!run.layer(layer).exact)
      return this.empty("The steps need q and k, which were not kept: watch with keep_qk=True.");
    if (!q.length) {
      const link = this.context.link.value;
      return this.empty(
        "Pin a query, or a cell of the map, to see how its numbers come about.",
        link ? ["Pin the strongest link", () => this.context.pin(link[0], link[1])] : null,
      );
    }
    const query = q[q.length - 1];
    const now = ++this.asked;
    const spinner = window.setTimeout(() => now === this.asked && this.node.classList.add("loading"), 150);
    try {
      const table = await run.source.steps(run.id, run.rev, layer, head, query, this.top, k);
      if (now === this.asked) this.draw(table);
    } catch (error) {
      if (now === this.asked)
        this.empty(
          problem(sentence(error)),
          this.context.curable(error) ? ["Retry", () => this.context.retry()] : null,
        );
    } finally {
      clearTimeout(spinner);
      if (now === this.asked) this.node.classList.remove("loading");
    }
  }

  // A narrow screen shows of each key its weight, and the rest below it when asked for.
  private unfold(): HTMLElement {
    const name = "the numbers of this key";
    const button = el(
      "button",
      { class: "unfold", title: name, attrs: { type: "button", "aria-label": name, "aria-expanded": "false" } },
      "+",
    );
    button.addEventListener("click", (event) => {
      const open = button.closest("tr")!.classList.toggle("open");
      button.setAttribute("aria-expanded", String(open));
      button.textContent = open ? "−" : "+";
      event.stopPropagation();
    });
    return button;
  }

  private empty(text: string | Node, action: [string, () => void] | null = null): void {
    this.drawn = null;
    this.node.replaceChildren(
      el(
        "div",
        { class: "empty" },
        el("p", {}, text),
        action
          ? el("button", { class: "button", attrs: { type: "button" }, on: { click: action[1] } }, action[0])
          : null,
      ),
    );
  }

  private draw(table: StepsTable): void {
    this.drawn = table;
    const run = this.context.run.value!;
    const { layer, head, k } = this.context.state;
    const keys = run.keyTokens(layer);
    // q and k share one range of colours, the values another: both can be read against their own kind.
    const most: Most = {
      q: largest(table, "k", table.q),
      v: largest(table, "v", table.sum ?? []),
      dark: this.context.dark.value,
    };
    const columns = table.columns.filter((column) => column.name !== "q" && column.name !== "sum");
    const head_row = el(
      "tr",
      {},
      el("th", { attrs: { scope: "col" } }, "key"),
      ...columns.map((column) =>
        el(
          "th",
          { attrs: { scope: "col" }, class: column.kind },
          column.heading,
          el("span", { class: "symbol" }, pretty(column.symbol)),
        ),
      ),
    );
    const rows = table.lines.map((line) => {
      const name =
        line.key === null
          ? el("span", { class: "others" }, line.label)
          : el(
              "span",
              {},
              keys.element(line.key, 20),
              el("span", { class: "position" }, ` ${line.key.toLocaleString("en")}`),
            );
      const row = el(
        "tr",
        { attrs: { "data-k": line.key }, class: line.hidden ? "hidden-key" : line.key === k ? "pinned" : "" },
        el("th", { attrs: { scope: "row" } }, name, this.unfold()),
        ...columns.map((column) => {
          const made = cell(column, line[column.name], most);
          made.dataset.label = `${column.heading} ${pretty(column.symbol)}`;
          return made;
        }),
      );
      if (line.key !== null) {
        const key = line.key;
        row.addEventListener("pointerenter", () => this.context.point({ q: null, k: key, cells: null, from: "steps" }));
        row.addEventListener("pointerleave", () => this.context.point(null));
        row.addEventListener("click", () => this.context.pinKey(key));
      }
      return row;
    });
    const python = el(
      "pre",
      { class: "python", attrs: { tabindex: 0, "aria-label": "this cell as Python" } },
      el("code", {}, table.python ?? ""),
    );
    const copy = el("button", { class: "button", attrs: { type: "button" } }, "Copy as Python");
    copy.addEventListener("click", () => void copyShown(this.context, python));
    const more = table.lines.some((line) => line.key === null) && this.top < 512;
    this.node.replaceChildren(
      el(
        "header",
        { class: "steps-head" },
        el(
          "h2",
          { class: "plain" },
          "The output of ",
          el("q", {}, run.tokens.element(table.query, 24)),
          `, step by step: ${run.name(layer, head)}`,
        ),
        el(
          "p",
          { class: "fine" },
          `the weights sum to ${show(table.total)}`,
          table.difference === null
            ? ""
            : `; the sum differs from the model’s own output by at most ${show(table.difference)}`,
        ),
      ),
      el(
        "div",
        { class: "steps-q" },
        el("span", { class: "label" }, "q ", el("span", { class: "symbol" }, pretty("q_i"))),
        vector(table.q, most.q, most.dark),
      ),
      el(
        "div",
        { class: "steps-scroll", attrs: { tabindex: 0, role: "region", "aria-label": "worked table" } },
        el("table", { class: "steps-table" }, el("thead", {}, head_row), el("tbody", {}, ...rows)),
      ),
      table.sum
        ? el(
            "div",
            { class: "steps-q" },
            el("span", { class: "label" }, "sum ", el("span", { class: "symbol" }, pretty("z_i"))),
            vector(table.sum, most.v, most.dark),
          )
        : el(
            "p",
            { class: "fine" },
            this.context.run.value?.info.edits.length
              ? "Of a run with edits the table ends with the weights, as they are with the edits."
              : "The values were not kept and the model is not at hand: the table ends with the weights.",
          ),
      table.projection
        ? el(
            "div",
            { class: "steps-q" },
            el("span", { class: "label" }, "after the output projection, with all heads"),
            vector(table.projection, largestOf(table.projection), most.dark),
          )
        : "",
      el(
        "footer",
        { class: "steps-foot" },
        more
          ? el(
              "button",
              {
                class: "button",
                attrs: { type: "button" },
                on: {
                  click: () => {
                    this.top = Math.min(512, this.top * 4);
                    void this.load();
                  },
                },
              },
              "More keys",
            )
          : null,
        copy,
        el(
          "span",
          { class: "fine" },
          table.python_key === undefined ? "" : `the weight of ${keys.name(table.python_key)} as Python`,
        ),
      ),
      python,
    );
  }
}

interface Most {
  q: number;
  v: number;
  dark: boolean;
}

function cell(column: StepsColumn, value: unknown, most: Most): HTMLElement {
  if (value === null || value === undefined)
    return el("td", { class: column.kind }, column.name === "masked_score" ? "−∞" : "");
  if (Array.isArray(value))
    return el("td", { class: "vector" }, vector(value as number[], column.name === "k" ? most.q : most.v, most.dark));
  const number = value as number;
  return el(
    "td",
    { class: column.kind, title: String(number) },
    column.kind === "weight" ? show(number) : number.toFixed(3).replace("-", "−"),
  );
}

// A vector as coloured cells: blue below 0, orange above; its numbers are in the title.
function vector(values: number[], most: number, dark: boolean): HTMLElement {
  const shown = values.slice(0, FOLD);
  const canvas = el("canvas", {
    class: "vector-cells",
    attrs: {
      width: shown.length,
      height: 1,
      role: "img",
      "aria-label": `vector of ${values.length}: ${values
        .slice(0, 8)
        .map((x) => x.toFixed(2))
        .join(", ")}${values.length > 8 ? ", …" : ""}`,
    },
  });
  canvas.title = values
    .slice(0, 256)
    .map((x) => x.toFixed(3))
    .join("  ");
  const context = canvas.getContext("2d")!;
  shown.forEach((x, i) => {
    context.fillStyle = css(signedColor(dark, 0.5 + 0.5 * Math.max(-1, Math.min(1, x / (most || 1)))));
    context.fillRect(i, 0, 1, 1);
  });
  canvas.style.width = `${Math.min(shown.length * 4, 192)}px`;
  return values.length > FOLD
    ? el("span", {}, canvas, el("span", { class: "fine" }, ` +${values.length - FOLD}`))
    : canvas;
}

function largest(table: StepsTable, name: string, beside: number[]): number {
  const vectors = table.lines.map((line) => line[name]).filter(Array.isArray) as number[][];
  return Math.max(largestOf(beside), ...vectors.map(largestOf));
}

function largestOf(values: number[]): number {
  return values.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
}

function pretty(symbol: string): string {
  return symbol
    .replace(/_ij/g, "ᵢⱼ")
    .replace(/_i/g, "ᵢ")
    .replace(/_j/g, "ⱼ")
    .replace(/(?<=[a-zᵢⱼ])\.(?=[a-z])/g, "·")
    .replace(/ \* /g, " ");
}
