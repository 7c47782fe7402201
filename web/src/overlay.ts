// What lies over the tiles: the diagonal, the pins and the crosshair.

import { blank } from "./dom";
import type { Cells, Grid } from "./grid";
import type { MapLook } from "./mapview";
import type { LayerInfo } from "./source";

const LONG = 32; // up to as many tokens the cells themselves are seen on every screen
const SEEN = 8; // from as many pixels on they are seen on a longer map as well, when one has come near

// On a whole map by its length alone, so that every screen shows the same; nearer, while cells are small.
export function hasDiagonal({ cross, queries, keys }: LayerInfo, whole: boolean, cell: number): boolean {
  return !cross && Math.max(queries, keys) > LONG && (whole || cell < SEEN);
}

export function drawOverlay(
  canvas: HTMLCanvasElement,
  grid: Grid,
  look: MapLook,
  hovered: Cells | null,
  whole: boolean,
): void {
  const ratio = window.devicePixelRatio || 1;
  const context = blank(canvas, Math.round(grid.width * ratio), Math.round(grid.height * ratio));
  context.save();
  context.scale(ratio, ratio);
  context.beginPath();
  context.rect(grid.ox, grid.oy, grid.keys * grid.cw, grid.queries * grid.ch);
  context.clip();
  const head = look.heads[0];
  const layer = head?.run.layer(head.layer);
  if (look.diagonal && layer && hasDiagonal(layer, whole, grid.cw))
    diagonal(context, grid, layer.keys - layer.queries, look.scale.dark);
  for (const q of look.q) band(context, grid, q, true, look.scale.dark);
  if (look.k !== null) band(context, grid, look.k, false, look.scale.dark);
  if (look.k !== null) for (const q of look.q) ring(context, grid, q, look.k, look.scale.dark);
  if (hovered) crosshair(context, grid, hovered);
  context.restore();
}

function diagonal(context: CanvasRenderingContext2D, grid: Grid, offset: number, dark: boolean): void {
  context.strokeStyle = dark ? "rgba(255,255,255,.35)" : "rgba(20,20,30,.35)";
  context.lineWidth = 1;
  context.setLineDash([4, 4]);
  context.beginPath();
  context.moveTo(grid.x(offset), grid.y(0));
  context.lineTo(grid.x(grid.queries + offset), grid.y(grid.queries));
  context.stroke();
  context.setLineDash([]);
}

// A pinned row or column: two thin lines, so that the cells between them stay as they are.
function band(context: CanvasRenderingContext2D, grid: Grid, i: number, row: boolean, dark: boolean): void {
  context.strokeStyle = dark ? "rgba(165,180,252,.9)" : "rgba(67,56,202,.85)";
  context.lineWidth = 1;
  const start = row ? grid.y(i) : grid.x(i);
  const size = Math.max(row ? grid.ch : grid.cw, 1);
  for (const place of size < 4 ? [start + size / 2] : [start, start + size]) {
    context.beginPath();
    const at = Math.round(place) + 0.5;
    if (row) {
      context.moveTo(0, at);
      context.lineTo(grid.width, at);
    } else {
      context.moveTo(at, 0);
      context.lineTo(at, grid.height);
    }
    context.stroke();
  }
}

// Black and white together are seen on every colour.
function twice(context: CanvasRenderingContext2D, draw: () => void): void {
  context.lineWidth = 3;
  context.strokeStyle = "rgba(0,0,0,.75)";
  draw();
  context.lineWidth = 1;
  context.strokeStyle = "#fff";
  draw();
}

function ring(context: CanvasRenderingContext2D, grid: Grid, q: number, k: number, dark: boolean): void {
  const width = Math.max(grid.cw, 9);
  const height = Math.max(grid.ch, 9);
  const x = grid.x(k) + grid.cw / 2 - width / 2;
  const y = grid.y(q) + grid.ch / 2 - height / 2;
  // Whole at the edges of the map too.
  const [left, top] = [Math.max(x, grid.ox + 3), Math.max(y, grid.oy + 3)];
  const right = Math.min(x + width, grid.ox + grid.keys * grid.cw - 3);
  const bottom = Math.min(y + height, grid.oy + grid.queries * grid.ch - 3);
  twice(context, () => context.strokeRect(left, top, right - left, bottom - top));
  context.strokeStyle = dark ? "#a5b4fc" : "#4338ca";
  context.lineWidth = 2;
  context.strokeRect(left - 2, top - 2, right - left + 4, bottom - top + 4);
}

function crosshair(context: CanvasRenderingContext2D, grid: Grid, cells: Cells): void {
  const x = grid.x(cells.k0);
  const y = grid.y(cells.q0);
  const width = Math.max((cells.k1 - cells.k0) * grid.cw, 1);
  const height = Math.max((cells.q1 - cells.q0) * grid.ch, 1);
  const [cx, cy] = [x + width / 2, y + height / 2];
  twice(context, () => {
    context.beginPath();
    context.moveTo(0, cy);
    context.lineTo(x - 2, cy);
    context.moveTo(x + width + 2, cy);
    context.lineTo(grid.width, cy);
    context.moveTo(cx, 0);
    context.lineTo(cx, y - 2);
    context.moveTo(cx, y + height + 2);
    context.lineTo(cx, grid.height);
    context.stroke();
  });
  if (width >= 4) twice(context, () => context.strokeRect(x, y, width, height));
}
