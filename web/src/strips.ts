// The strips beside the axes of a map: the entropy of each query, and what each key received. Beside the difference of two
// heads they are differences too.

import { drawStrip, running } from "./axes";
import { css, signedColor } from "./colors";
import { el } from "./dom";
import type { Grid } from "./grid";
import type { HeadRef } from "./painter";
import { Later } from "./source";

interface Track {
  sums: Float64Array;
  most: number;
}

const NAMES = ["entropy of each query", "received by each key"];

export class Strips {
  readonly entropy = strip("entropy");
  readonly received = strip("received");
  private tracks: [Track, Track] | null = null;
  private of: HeadRef[] = [];

  constructor(private arrived: () => void) {}

  load(heads: HeadRef[]): void {
    if (heads.length === this.of.length && heads.every((head, i) => sameHead(head, this.of[i]))) return;
    this.tracks = null;
    this.of = heads;
    const [a, b] = heads.map(({ run, layer, head }) => run.short(layer, head));
    [this.entropy, this.received].forEach((canvas, i) => {
      canvas.title = b ? `${NAMES[i]}, ${a} − ${b}: orange where the first has more` : NAMES[i];
    });
    void this.ask(heads);
  }

  again(): void {
    if (this.of.length && !this.tracks) void this.ask(this.of);
  }

  draw(grid: Grid, dark: boolean): void {
    const ink = dark ? "#8b8799" : "#8a8696";
    const [above, below] = this.of.length > 1 ? [1, 0].map((t) => css(signedColor(dark, t))) : [ink, ink];
    const [entropy, received] = this.tracks ?? [null, null];
    drawStrip(this.entropy, entropy?.sums ?? null, grid, true, entropy?.most ?? 0, above, below);
    drawStrip(this.received, received?.sums ?? null, grid, false, received?.most ?? 0, above, below);
  }

  private async ask(heads: HeadRef[]): Promise<void> {
    try {
      const [a, b] = await Promise.all(heads.map(({ run, layer, head }) => run.tracks(layer, head)));
      if (this.of !== heads) return;
      const { queries } = heads[0].run.layer(heads[0].layer);
      const both = b ? a.map((value, i) => value - b[i]) : a;
      this.tracks = [track(both.subarray(0, queries)), track(both.subarray(queries))];
      this.arrived();
    } catch (error) {
      // Still being computed: the strips stay empty until it is there.
      if (error instanceof Later && this.of === heads)
        window.setTimeout(() => this.of === heads && this.ask(heads), 2000);
    }
  }
}

function sameHead(a: HeadRef, b: HeadRef): boolean {
  return a.run === b.run && a.layer === b.layer && a.head === b.head;
}

function strip(name: string): HTMLCanvasElement {
  return el("canvas", { class: `strip ${name}`, attrs: { "aria-hidden": "true" } });
}

function track(values: Float32Array): Track {
  return { sums: running(values), most: values.reduce((a, b) => Math.max(a, Math.abs(b) || 0), 0) };
}
