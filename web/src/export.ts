// Taking the view away: a picture with axes, legend and caption, or the exact numbers of what is visible.

import { colorOf, css, hatchColors, paper, rampColor, show, signedColor } from "./colors";
import type { Context } from "./context";
import { el, shortened, svg } from "./dom";
import { type Cells, single, ticks } from "./grid";
import type { Links } from "./links";
import type { MapView } from "./mapview";
import { readingWords } from "./readings";
import { sentence } from "./source";

const CELLS_AS_SHAPES = 10_000;

export class ExportDialog {
  readonly node: HTMLDialogElement;
  private list = el("div", { class: "export-list" });
  private ratio = el(
    "select",
    { attrs: { "aria-label": "size of the picture" } },
    ...[1, 2, 3, 4].map((n) => el("option", { attrs: { value: n, selected: n === 2 } }, `${n} ×`)),
  );

  constructor(
    private context: Context,
    private view: () => MapView | null,
    private links: () => Links,
  ) {
    this.node = dialog("Export", this.list);
  }

  open(): void {
    const run = this.context.run.value;
    const view = this.view();
    const { layer, head } = this.context.state;
    if (!run) return;
    const items: HTMLElement[] = [];
    const item = (name: string, about: string, act: () => void, extra: HTMLElement | null = null) =>
      el(
        "li",
        {},
        el("button", { class: "button", attrs: { type: "button" }, on: { click: act } }, name),
        el("span", {}, about),
        extra,
      );
    if (this.context.state.view === "links")
      items.push(
        item("SVG", "the links as a drawing", () =>
          this.save("links.svg", "image/svg+xml", new XMLSerializer().serializeToString(this.links().drawing())),
        ),
      );
    if (view) {
      // On a phone the map may not have been looked at yet.
      const seen = view.grid.width > 0;
      const { queries, keys } = run.layer(layer);
      const cells = seen ? view.grid.visible() : { q0: 0, q1: queries, k0: 0, k1: keys };
      const range = `queries ${cells.q0} to ${cells.q1 - 1}, keys ${cells.k0} to ${cells.k1 - 1}`;
      const count = (cells.q1 - cells.q0) * (cells.k1 - cells.k0);
      const shapes = count <= CELLS_AS_SHAPES ? "the same, every cell a shape" : "the same, cells as one image";
      items.push(
        ...(seen
          ? [
              item("PNG", "what is visible, with axes, legend and caption", () => void this.png(view), this.ratio),
              item("SVG", shapes, () => this.svgFile(view)),
            ]
          : [note("PNG, SVG", "pictures of the map: look at it first")]),
      );
      if (run.layer(layer).exact) {
        const what = run.reading ? `exact numbers, ${readingWords(run)}` : "exact weights";
        const rows = `${cells.q0}:${cells.q1}`;
        const cols = `${cells.k0}:${cells.k1}`;
        const fetchFile = (format: string) => () =>
          this.fetch(this.context.source.exportAddress(run.asked, format, layer, head, rows, cols));
        items.push(
          count <= 1_000_000
            ? item("CSV", `${what}, ${range}`, fetchFile("csv"))
            : note("CSV", `${count.toLocaleString("en")} cells are visible; at most 1,000,000 fit: zoom in`),
        );
        items.push(
          count <= 16 << 20
            ? item("npz", `${what} for NumPy, ${range}`, fetchFile("npz"))
            : note("npz", "more than 64 MiB are visible: zoom in"),
        );
      }
    }
    if (this.context.source.live)
      items.push(
        item("HTML", "the run as one page that needs no server", () =>
          this.fetch(this.context.source.exportAddress(run.asked, "html", layer, head, "", "")),
        ),
      );
    this.list.replaceChildren(el("ul", {}, ...items));
    this.node.showModal();
  }

  private async png(view: MapView): Promise<void> {
    const ratio = Number(this.ratio.value);
    const { node, width, height } = this.drawing(view);
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(node))}`;
    await image.decode();
    const canvas = el("canvas", { attrs: { width: width * ratio, height: height * ratio } });
    const draw = canvas.getContext("2d")!;
    draw.scale(ratio, ratio);
    draw.drawImage(image, 0, 0);
    canvas.toBlob((blob) => blob && this.save("map.png", "image/png", blob), "image/png");
  }

  private svgFile(view: MapView): void {
    this.save("map.svg", "image/svg+xml", new XMLSerializer().serializeToString(this.drawing(view).node));
  }

  // The visible part of a map with its axes, legend and caption. Text stays text.
  private drawing(view: MapView): { node: SVGSVGElement; width: number; height: number } {
    const { canvas, grid, look } = view.picture();
    const { scale } = look;
    const [{ run, layer, head }, less] = look.heads;
    const { dark } = scale;
    const ink = dark ? "#ecebf1" : "#1c1b1f";
    const [left, top, foot] = [120, 96, 70];
    const cells = grid.visible();
    const mapWidth = Math.min(grid.right, grid.width) - Math.max(grid.ox, 0);
    const mapHeight = Math.min(grid.bottom, grid.height) - Math.max(grid.oy, 0);
    const width = Math.ceil(Math.max(left + mapWidth + 40, 460));
    const height = Math.ceil(top + mapHeight + foot);
    const node = svg("svg", {
      xmlns: "http://www.w3.org/2000/svg",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      "font-family": "sans-serif",
      "font-size": 12,
    });
    node.append(svg("rect", { width, height, fill: css(paper(dark)) }));
    const shift = { x: left - Math.max(grid.ox, 0), y: top - Math.max(grid.oy, 0) };
    const count = (cells.q1 - cells.q0) * (cells.k1 - cells.k0);
    if (count <= CELLS_AS_SHAPES && !grid.pooled) node.append(this.hatch(dark), this.shapes(view, cells, shift));
    else {
      const part = el("canvas", { attrs: { width: Math.round(mapWidth), height: Math.round(mapHeight) } });
      const ratio = canvas.width / grid.width;
      const draw = part.getContext("2d")!;
      draw.imageSmoothingEnabled = false;
      draw.drawImage(
        canvas,
        Math.max(grid.ox, 0) * ratio,
        Math.max(grid.oy, 0) * ratio,
        mapWidth * ratio,
        mapHeight * ratio,
        0,
        0,
        part.width,
        part.height,
      );
      node.append(
        svg("image", {
          x: left,
          y: top,
          width: mapWidth,
          height: mapHeight,
          href: part.toDataURL("image/png"),
          "image-rendering": "pixelated",
        }),
      );
    }
    const keys = run.keyTokens(layer);
    const rows = grid.ch >= 12 ? sequence(cells.q0, cells.q1) : ticks(cells.q0, cells.q1, grid.ch, 40);
    const columns = grid.cw >= 12 ? sequence(cells.k0, cells.k1) : ticks(cells.k0, cells.k1, grid.cw, 60);
    for (const q of rows) {
      const y = grid.y(q) + grid.ch / 2 + shift.y + 4;
      node.append(
        svg(
          "text",
          { x: left - 8, y, "text-anchor": "end", fill: ink },
          grid.ch >= 12 ? run.tokens.label(q) : `${q} ${run.tokens.label(q)}`,
        ),
      );
    }
    for (const k of columns) {
      const x = grid.x(k) + grid.cw / 2 + shift.x;
      node.append(
        svg(
          "text",
          { x, y: top - 8, transform: `rotate(-60 ${x} ${top - 8})`, fill: ink },
          grid.cw >= 12 ? keys.label(k) : `${k} ${keys.label(k)}`,
        ),
      );
    }
    const axis = (text: string, y: number) => svg("text", { x: 8, y, fill: ink, "font-weight": "bold" }, text);
    node.append(axis("keys → across", top - 26), axis("queries ↓ down", top - 8));
    const steps = 64;
    for (let i = 0; i < steps; i++) {
      const t = i / (steps - 1);
      node.append(
        svg("rect", {
          x: left + i * 2.5,
          y: height - 48,
          width: 3,
          height: 10,
          fill: css(scale.difference ? signedColor(dark, t) : rampColor(scale, t)),
        }),
      );
    }
    const low = scale.difference ? `−${show(scale.hi)}` : show(scale.lo);
    node.append(svg("text", { x: left, y: height - 26, fill: ink, "font-size": 11 }, low));
    node.append(
      svg("text", { x: left + 160, y: height - 26, fill: ink, "font-size": 11, "text-anchor": "end" }, show(scale.hi)),
    );
    const minus = less ? ` − ${less.run.name(less.layer, less.head)}` : "";
    const pooled = grid.pooled ? `, ${this.context.state.pool} of ${2 ** grid.lq} × ${2 ** grid.lk}` : "";
    node.append(svg("text", { x: left + 172, y: height - 38, fill: ink, "font-size": 11 }, `${scale.name}${pooled}`));
    node.append(
      svg(
        "text",
        { x: left, y: height - 8, fill: ink, "font-size": 11 },
        `${run.info.model ?? ""} ${run.name(layer, head)}${minus}${run.reading ? `, ${readingWords(run)}` : ""}: ${shortened(run.info.title, 70)}`,
      ),
    );
    return { node, width, height };
  }

  private shapes(view: MapView, cells: Cells, shift: { x: number; y: number }): SVGGElement {
    const group = svg("g", { "shape-rendering": "crispEdges" });
    const { grid, look } = view.picture();
    for (let q = cells.q0; q < cells.q1; q++)
      for (let k = cells.k0; k < cells.k1; k++) {
        const bin = grid.bin(q, k);
        const value = single(bin) ? view.valueAt(bin)?.value : undefined;
        const color = value === undefined ? null : colorOf(look.scale, value);
        if (value === undefined) continue;
        group.append(
          svg("rect", {
            x: (grid.x(k) + shift.x).toFixed(2),
            y: (grid.y(q) + shift.y).toFixed(2),
            width: grid.cw.toFixed(2),
            height: grid.ch.toFixed(2),
            fill: color ? css(color) : "url(#masked)",
          }),
        );
      }
    return group;
  }

  // Hatched, as on the page: what is masked is not what is 0.
  private hatch(dark: boolean): SVGPatternElement {
    const [ground, lines] = hatchColors(dark);
    const size = { width: 8, height: 8 };
    return svg(
      "pattern",
      { id: "masked", patternUnits: "userSpaceOnUse", ...size },
      svg("rect", { ...size, fill: ground }),
      svg("path", { d: "M-8 8 0 0M0 8 8 0M8 8 16 0", stroke: lines }),
    );
  }

  // A file that the server makes. In a notebook no link leads to it: its bytes come as a message.
  private fetch(address: string): void {
    if (!this.context.way) return download(address, "");
    const { source } = this.context;
    source.file!(address)
      .then(async (answer) => {
        const name = /filename="?([^";]+)/.exec(answer.headers.get("content-disposition") ?? "")?.[1] ?? "sightline";
        const found = URL.createObjectURL(await answer.blob());
        download(found, name);
        window.setTimeout(() => URL.revokeObjectURL(found), 10_000);
      })
      .catch((error) => this.context.say(sentence(error)));
  }

  private save(name: string, type: string, content: Blob | string): void {
    const run = this.context.run.value!;
    const { layer, head } = this.context.state;
    const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
    const { number, numbers } = run.layer(layer);
    download(address, `sightline-${run.id.slice(0, 8)}-layer${number}-head${numbers[head]}-${name}`);
    window.setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }
}

// A file the browser saves; the page stays where it is.
function download(address: string, name: string): void {
  el("a", { attrs: { href: address, download: name } }).click();
}

function note(name: string, text: string): HTMLElement {
  return el("li", { class: "note" }, el("b", {}, name), el("span", {}, text));
}

function sequence(first: number, stop: number): number[] {
  return Array.from({ length: stop - first }, (_, i) => first + i);
}

export function dialog(title: string, ...content: HTMLElement[]): HTMLDialogElement {
  const close = el(
    "button",
    { class: "icon-button", title: "close", attrs: { type: "button", "aria-label": "close" } },
    "×",
  );
  const node = el(
    "dialog",
    { class: "dialog", attrs: { "aria-label": title } },
    el("header", {}, el("h2", {}, title), close),
    ...content,
  );
  close.addEventListener("click", () => node.close());
  node.addEventListener("click", (event) => event.target === node && node.close());
  return node;
}
