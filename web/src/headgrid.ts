// A grid of layers and heads, each head a colour: one of them is a click, or arrows and Enter, away.

import { el } from "./dom";
import type { OpenRun } from "./run";

export interface HeadCell {
  name: string; // in words
  color: string | null; // null: hatched
  most: boolean; // to be marked
}

export class HeadGrid {
  readonly node: HTMLElement;
  private cursor: [number, number] = [0, 0];
  private chosen: [number, number] = [0, 0];
  private counts: number[] = [];

  // `id` begins the ids of its cells; `open` is told of a head, and whether it is to be compared.
  constructor(
    private id: string,
    label: string,
    private open: (layer: number, head: number, compare: boolean) => void,
  ) {
    this.node = el("div", { class: "link-grid", attrs: { role: "grid", "aria-label": label, tabindex: 0 } });
    this.node.addEventListener("click", (event) => {
      const cell = (event.target as HTMLElement).closest<HTMLElement>("[data-h]");
      if (cell) this.choose(Number(cell.dataset.l), Number(cell.dataset.h), event.ctrlKey || event.metaKey);
    });
    this.node.addEventListener("keydown", (event) => this.key(event));
    this.node.addEventListener("focus", () => this.mark());
    this.node.addEventListener("blur", () => this.mark());
  }

  clear(): void {
    this.counts = [];
    this.node.replaceChildren();
  }

  // Where arrows go on from.
  at(layer: number, head: number): void {
    this.cursor = [layer, head];
  }

  draw(run: OpenRun, cells: HeadCell[][], chosen: [number, number]): void {
    this.chosen = chosen;
    this.counts = cells.map((heads) => heads.length);
    const rows = run.info.layers.map((info, l) =>
      el(
        "div",
        { class: "link-row", attrs: { role: "row" } },
        el("span", { class: "layer-name", title: info.name, attrs: { role: "rowheader" } }, String(info.number)),
        ...cells[l].map(({ name, color, most }, h) => {
          const attrs = { role: "gridcell", "data-l": l, "data-h": h, id: `${this.id}-${l}-${h}` };
          const cell = el("span", { class: "link-cell", title: name, attrs });
          cell.append(el("span", { class: "visually-hidden" }, name));
          if (color) cell.style.background = color;
          else cell.classList.add("masked");
          cell.classList.toggle("most", most);
          return cell;
        }),
      ),
    );
    this.node.style.setProperty("--heads", String(Math.max(...this.counts)));
    const most = Math.max(...this.counts);
    const names = Array.from({ length: most }, (_, h) => el("span", {}, String(h)));
    const heading = el("div", { class: "link-row link-heads", attrs: { "aria-hidden": "true" } }, el("span"), ...names);
    this.node.replaceChildren(heading, ...rows);
    this.mark();
  }

  private choose(layer: number, head: number, compare: boolean): void {
    this.cursor = [layer, head];
    this.open(layer, head, compare);
  }

  private mark(): void {
    const focused = document.activeElement === this.node;
    for (const cell of this.node.querySelectorAll<HTMLElement>(".link-cell")) {
      const [l, h] = [Number(cell.dataset.l), Number(cell.dataset.h)];
      cell.setAttribute("aria-selected", String(l === this.chosen[0] && h === this.chosen[1]));
      const here = l === this.cursor[0] && h === this.cursor[1];
      cell.classList.toggle("cursor", here && focused);
      if (here) this.node.setAttribute("aria-activedescendant", cell.id);
    }
  }

  private key(event: KeyboardEvent): void {
    const steps: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    };
    const step = steps[event.key];
    if (step && this.counts.length) {
      const l = Math.min(Math.max(this.cursor[0] + step[0], 0), this.counts.length - 1);
      this.cursor = [l, Math.min(Math.max(this.cursor[1] + step[1], 0), this.counts[l] - 1)];
      this.mark();
      this.node.querySelector(".cursor")?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter") this.choose(...this.cursor, event.ctrlKey || event.metaKey);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
