// The legend: colours and what they mean, how cells are pooled, and the controls for both. Nothing here asks the server.

import { onChange } from "./changes";
import { css, paper, type Rgb, rampColor, show, signedColor, weightAt } from "./colors";
import type { Context } from "./context";
import { el } from "./dom";
import type { Grid } from "./grid";
import type { Pool } from "./source";
import { MAPS } from "./state";

// What the colours show, by the reading.
const WHAT: Record<string, string> = { weights: "weight", norms: "carried", influence: "mattered" };

export class Legend {
  readonly node: HTMLElement;
  private ramp = el("canvas", { class: "ramp", attrs: { width: 180, height: 12, "aria-hidden": "true" } });
  private what = el("b", {});
  private lo = bound("lowest colour at");
  private least = el("span", { class: "least", attrs: { hidden: true } });
  private hi = bound("highest colour at");
  private scale = segmented("scale", ["log", "linear"], (name) => this.context.useScale(name as "log" | "linear"));
  private pool = segmented("pooling", ["mean", "max"], (name) =>
    this.context.store.push({ pool: name as "mean" | "max" }),
  );
  private maps: HTMLSelectElement;
  private note = el("span", { class: "note" });
  private swatches = el("span", { class: "swatches" });

  constructor(
    private context: Context,
    fit: () => void,
  ) {
    this.maps = el(
      "select",
      { attrs: { "aria-label": "colours" } },
      ...MAPS.map((name) => el("option", { attrs: { value: name } }, name)),
    );
    this.maps.addEventListener("change", () => context.store.push({ map: this.maps.value as (typeof MAPS)[number] }));
    this.lo.addEventListener("change", () => this.bounds());
    this.hi.addEventListener("change", () => this.bounds());
    this.node = el(
      "div",
      { class: "legend", attrs: { role: "group", "aria-label": "legend" } },
      el("span", { class: "scalebar" }, this.what, this.lo, this.least, this.ramp, this.hi),
      el(
        "button",
        {
          class: "button quiet",
          title: "set the bounds to what is visible, once (F)",
          attrs: { type: "button" },
          on: { click: fit },
        },
        "Fit",
      ),
      this.scale.node,
      this.pool.node,
      this.maps,
      this.swatches,
      this.note,
    );
    context.store.on(["scale", "pool", "map", "lo", "hi"], () => this.draw());
    onChange(context.dark, () => this.draw());
    onChange(context.subtracts, () => this.draw());
    onChange(context.run, () => this.draw());
    this.draw();
  }

  pooled(grid: Grid): void {
    this.note.textContent = poolingNote(
      grid,
      this.context.state.pool,
      this.context.run.value?.reading ? "value" : "weight",
    );
  }

  private bounds(): void {
    const { lo, hi, scale } = this.context.state;
    const low = Number(this.lo.value);
    const high = Number(this.hi.value);
    const linear = scale === "linear";
    if ((low > 0 || (linear && low === 0)) && high > low && high <= 1) this.context.store.push({ lo: low, hi: high });
    else {
      this.context.say(`bounds: 0 ${linear ? "≤" : "<"} lowest < highest ≤ 1`);
      this.lo.value = String(lo);
      this.hi.value = String(hi);
    }
  }

  private draw(): void {
    const { scale, pool, map, lo, hi } = this.context.state;
    this.scale.set(scale);
    this.pool.set(pool);
    this.maps.value = map;
    this.lo.value = number(lo);
    this.hi.value = number(hi);
    const reading = this.context.run.value?.reading ?? null;
    const diff = this.context.subtracts.value || reading?.signed === true;
    this.what.textContent = this.context.subtracts.value
      ? "difference"
      : WHAT[this.context.run.value?.info.of ?? "weights"];
    this.lo.disabled = this.hi.disabled = reading !== null; // up to the largest cell of any head
    if (reading) {
      this.lo.value = "0";
      this.hi.value = number(reading.most);
    }
    // A difference goes as far below 0 as above, in colours of its own.
    this.lo.hidden = this.maps.hidden = diff;
    this.least.hidden = !diff;
    this.least.textContent = `−${number(reading?.most ?? hi)}`;
    const look = this.context.scale(diff);
    const draw = this.ramp.getContext("2d")!;
    for (let x = 0; x < this.ramp.width; x++) {
      const t = x / (this.ramp.width - 1);
      draw.fillStyle = css(diff ? signedColor(look.dark, t) : rampColor(look, t));
      draw.fillRect(x, 0, 1, this.ramp.height);
    }
    this.ramp.title = this.context.subtracts.value
      ? "blue: the second more; orange: the first more"
      : diff
        ? "blue lowers what is asked about; orange raises it"
        : `middle: ${show(weightAt(look, 0.5))}`;
    const swatch = (title: string, text: string, color: Rgb) => {
      const square = el("i", { class: "swatch" });
      square.style.background = css(color);
      return el("span", { title }, square, text);
    };
    const masked = el("span", { title: "not visible to this query" }, el("i", { class: "swatch masked" }), "masked");
    const zero = swatch("a weight of exactly 0", "0", paper(look.dark));
    const floor = swatch(`above 0 and below ${show(lo)}`, `< ${show(lo)}`, rampColor(look, 0));
    const same = scale === "log" ? [`apart by less than ${show(lo)}`, `< ±${show(lo)}`] : ["no difference", "0"];
    this.swatches.replaceChildren(
      masked,
      ...(diff ? [swatch(same[0], same[1], signedColor(look.dark, 0.5))] : lo > 0 ? [zero, floor] : [zero]),
    );
  }
}

function bound(name: string): HTMLInputElement {
  return el("input", {
    class: "bound",
    attrs: { type: "text", inputmode: "decimal", size: 6, "aria-label": name, spellcheck: "false" },
  });
}

// A bound as it is typed: 0.25, or 1e-5.
export function number(x: number): string {
  return x >= 0.001 || x === 0 ? String(Number(x.toPrecision(3))) : x.toExponential();
}

// How a pixel is made of cells, at this zoom.
export function poolingNote(grid: Grid, pool: Pool, what = "weight"): string {
  if (!grid.pooled) return `one cell, one ${what}`;
  const [rows, columns] = [2 ** grid.lq, 2 ** grid.lk];
  if (pool === "max") return `largest of ${rows} × ${columns}. M = mean`;
  return `mean of ${rows} × ${columns}: one ${what} of 1 shows as ${(1 / (rows * columns)).toPrecision(2)}. M = max`;
}

// A few choices side by side, one of them on.
export function segmented(name: string, choices: string[], choose: (choice: string) => void) {
  const node = el("div", { class: "segmented", attrs: { role: "radiogroup", "aria-label": name } });
  const buttons = choices.map((choice) => {
    const button = el(
      "button",
      { attrs: { type: "button", role: "radio" }, on: { click: () => choose(choice) } },
      choice,
    );
    node.append(button);
    return button;
  });
  node.addEventListener("keydown", (event) => {
    const now = buttons.findIndex((button) => button.getAttribute("aria-checked") === "true");
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    const next = (now + by + choices.length) % choices.length;
    choose(choices[next]);
    buttons[next].focus();
    event.preventDefault();
    event.stopPropagation();
  });
  return {
    node,
    set(choice: string) {
      buttons.forEach((button, i) => {
        const on = choices[i] === choice;
        button.setAttribute("aria-checked", String(on));
        button.tabIndex = on ? 0 : -1;
      });
    },
  };
}
