// The strips beside the axes of a map: the entropy of each query, and what each key received.

import { drawStrip, running } from "./axes";
import { el } from "./dom";
import type { Grid } from "./grid";
import type { HeadRef } from "./painter";
import { Later } from "./source";

interface Track {
  sums: Float64Array;
  most: number;
}

export class Strips {
  readonly entropy = strip("entropy", "entropy of each query");
  readonly received = strip("received", "received by each key");
  private tracks: [Track, Track] | null = null;
  private of: HeadRef | null = null;

  constructor(private arrived: () => void) {}

  load(head: HeadRef): void {
    this.tracks = null;
    this.of = head;
    void this.ask(head);
  }

  again(): void {
    if (this.of && !this.tracks) void this.ask(this.of);
  }

  draw(grid: Grid, dark: boolean): void {
    const ink = dark ? "#8b8799" : "#8a8696";
    const [entropy, received] = this.tracks ?? [null, null];
    drawStrip(this.entropy, entropy?.sums ?? null, grid, true, entropy?.most ?? 0, ink);
    drawStrip(this.received, received?.sums ?? null, grid, false, received?.most ?? 0, ink);
  }

  private async ask(head: HeadRef): Promise<void> {
    try {
      const both = await head.run.tracks(head.layer, head.head);
      if (this.of !== head) return;
      const { queries } = head.run.layer(head.layer);
      this.tracks = [track(both.subarray(0, queries)), track(both.subarray(queries))];
      this.arrived();
    } catch (error) {
      // Still being computed: the strips stay empty until it is there.
      if (error instanceof Later && this.of === head) window.setTimeout(() => this.of === head && this.ask(head), 2000);
    }
  }
}

function strip(name: string, title: string): HTMLCanvasElement {
  return el("canvas", { class: `strip ${name}`, title, attrs: { "aria-hidden": "true" } });
}

function track(values: Float32Array): Track {
  return { sums: running(values), most: values.reduce((a, b) => Math.max(a, b), 0) };
}
