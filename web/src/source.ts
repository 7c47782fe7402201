// Where numbers come from. Views know only this interface; the server is one carrier of it.

import type { components } from "./api";
import type { Ask } from "./carrier";

// What the server describes; raw numbers it does not.
type Shapes = components["schemas"];
export type LayerInfo = Shapes["Layer"];
export type RunInfo = Shapes["Run"];
export type RunShort = Shapes["RunInShort"];
export type OrderInfo = Shapes["Order"];
export type Limits = Shapes["Limits"];
export type Portraits = Shapes["Portraits"];
export type Measure = Shapes["Measure"];
export type TokenPage = Shapes["Tokens"];
export type CellPeek = Shapes["Cell"];
export type PatchPeek = Shapes["Patch"];
export type StepsColumn = Shapes["StepsColumn"];
export type StepsTable = Shapes["Steps"];
export type Problem = Shapes["Problem"];

export type Pool = "mean" | "max" | "sum";

export interface TileRef {
  run: string;
  rev: number;
  layer: number;
  head: number;
  lq: number;
  lk: number;
  y: number;
  x: number;
  pool: Pool;
}

export interface TileData {
  values: Float32Array | null; // null: the mask hides all of it
  estimate: boolean;
}

// A weight that is here without a server: right to the last digit, or about.
export interface Held {
  weight: number;
  exact: boolean;
}

export interface Kept {
  picture?: string; // a data: address
  shown?: string; // the reading that it was made of
  marks?: Shapes["Mark"][];
  effects?: Shapes["Effects"][]; // of all heads, each for a target
  written?: { prompt: number; tokens: Shapes["WrittenToken"][] };
}

// All that is known of a failure: what was met, what was expected, and what to do.
export function whole({ error, expected, got, try: hint }: Problem): string {
  const met = [got, expected && `expected ${expected}`].filter(Boolean).join("; ");
  return `${error}${met ? `: ${met}` : ""}${hint ? `. Try: ${hint}` : ""}`;
}

// What the server said, or that there was none.
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly problem: Problem,
    readonly retryAfter = 0,
  ) {
    super(problem.error);
  }
  get sentence(): string {
    const { error, try: hint } = this.problem;
    return hint ? `${error}. Try: ${hint}` : error;
  }
}

// Still being computed: it may be asked for again.
export class Later extends Error {
  override message = "this is still being computed; it will be there in a little while";
}

export interface Source {
  readonly live: boolean; // whether a server is behind it, with exact numbers
  floor?(layer: number, head: number, run?: string): [number, number] | null;
  held?(layer: number, head: number, q: number, k: number, run?: string): Held | null; // of a source that may not have all of them
  limits(): Promise<Limits>;
  runs(): Promise<Shapes["Runs"]>;
  run(id: string): Promise<RunInfo | OrderInfo>; // an order, until there is a run
  order(text: string, model: string, generate: number, image?: string): Promise<Shapes["Ordered"]>;
  close(id: string): Promise<void>;
  reopen(id: string): Promise<void>; // one that was closed a moment ago
  text(id: string): Promise<string>; // all of it
  look(id: string, by: string): Promise<void>; // who looks at a run: it makes room for no other
  events(id: string, told: (order: OrderInfo) => void): () => void;
  tokens(run: string, rev: number, from: number, to: number, memory: boolean): Promise<TokenPage>;
  portraits(run: string, rev: number): Promise<Portraits>;
  thumbs(run: string, rev: number): Promise<{ bytes: Uint8Array; estimate: boolean }>;
  tile(tile: TileRef, signal: AbortSignal): Promise<TileData>;
  row(run: string, rev: number, layer: number, head: number, q: number[], signal?: AbortSignal): Promise<Float32Array>;
  column(
    run: string,
    rev: number,
    layer: number,
    head: number,
    k: number[],
    signal?: AbortSignal,
  ): Promise<Float32Array>;
  tracks(run: string, rev: number, layer: number, head: number): Promise<Float32Array>;
  peek(
    run: string,
    rev: number,
    layer: number,
    head: number,
    rows: string,
    cols: string,
    signal?: AbortSignal,
  ): Promise<CellPeek | PatchPeek>;
  link(run: string, rev: number, layer: number, head: number): Promise<[number, number, number] | null>;
  rollout(run: string, rev: number, q: number[], signal?: AbortSignal): Promise<Float32Array>;
  steps(
    run: string,
    rev: number,
    layer: number,
    head: number,
    q: number,
    top: number,
    k: number | null,
  ): Promise<StepsTable>;
  exportAddress(run: string, format: string, layer: number, head: number, rows: string, cols: string): string;
  readonly readings?: RunInfo[]; // those that a report holds
  picture(run: string): Promise<string>; // the address of the picture that a vision model was given
  kept?(): Kept; // what a report holds beside its maps
  file?(address: string, options?: RequestInit): Promise<Response>; // what an address holds; a report has none
}

const POLL = 200; // milliseconds

export class HttpSource implements Source {
  readonly live = true;

  // In a notebook the kernel answers, through messages.
  constructor(private carried: Ask | null = null) {}

  private get fetch(): Ask {
    return this.carried ?? ((path, options) => window.fetch(path, options));
  }

  file(address: string, options: RequestInit = {}): Promise<Response> {
    return this.ask(address, options);
  }

  limits(): Promise<Limits> {
    return this.json("/api/limits");
  }
  runs(): Promise<Shapes["Runs"]> {
    return this.json("/api/runs");
  }
  run(id: string): Promise<RunInfo | OrderInfo> {
    return this.json(`/api/runs/${encodeURIComponent(id)}`);
  }
  order(text: string, model: string, generate: number, image?: string): Promise<Shapes["Ordered"]> {
    const body = JSON.stringify({ text, model, ...(generate ? { generate } : {}), ...(image ? { image } : {}) });
    return this.json("/api/runs", { method: "POST", body, headers: { "content-type": "application/json" } });
  }
  async close(id: string): Promise<void> {
    await this.ask(`/api/runs/${id}`, { method: "DELETE" });
  }
  async reopen(id: string): Promise<void> {
    await this.ask(`/api/runs/${id}/reopen`, { method: "POST" });
  }
  async text(id: string): Promise<string> {
    return (await this.json<Shapes["Text"]>(`/api/runs/${id}/text`)).text;
  }
  async look(id: string, by: string): Promise<void> {
    await this.ask(`/api/runs/${id}/look?by=${by}`, { method: "POST" });
  }
  events(id: string, told: (order: OrderInfo) => void): () => void {
    if (this.carried) return this.poll(id, told); // messages carry whole answers, no stream
    const stream = new EventSource(`/api/runs/${id}/events`);
    stream.onmessage = (event) => {
      const order = JSON.parse(event.data) as OrderInfo;
      if (["done", "failed", "cancelled"].includes(order.state)) stream.close();
      told(order);
    };
    return () => stream.close();
  }
  // The same by asking again and again.
  private poll(id: string, told: (order: OrderInfo) => void): () => void {
    let [over, before] = [false, ""];
    const tell = (order: OrderInfo) => {
      const now = JSON.stringify(order);
      if (!over && now !== before) told(order);
      before = now;
    };
    const ask = async () => {
      const order = (await this.runs()).orders.find((one) => one.id === id);
      if (order) return tell(order);
      const found = await this.run(id);
      const { title, model } = found;
      const done = { id, title, model: model ?? "", stage: "done", done: 1, total: 1, position: 0, problem: null };
      tell(isRun(found) ? { ...done, state: "done" } : found);
      // Orders of readings are not in the list.
      over = isRun(found) || !["queued", "running"].includes(found.state);
    };
    const again = () => {
      if (!over)
        ask().then(
          () => window.setTimeout(again, POLL),
          (error) => {
            // One that was taken back before its turn is not known any more.
            if (!(error instanceof Refused && error.status === 404)) return window.setTimeout(again, 10 * POLL);
            const gone = { id, title: "", model: "", stage: "", done: 0, total: 0, position: 0, problem: null };
            tell({ ...gone, state: "cancelled" });
            over = true;
          },
        );
    };
    again();
    return () => {
      over = true;
    };
  }
  tokens(run: string, rev: number, from: number, to: number, memory: boolean): Promise<TokenPage> {
    return this.json(`/api/runs/${run}/tokens?from=${from}&to=${to}&of=${memory ? "memory" : "text"}&rev=${rev}`);
  }
  portraits(run: string, rev: number): Promise<Portraits> {
    return this.json(`/api/runs/${run}/portraits?rev=${rev}`);
  }
  async thumbs(run: string, rev: number): Promise<{ bytes: Uint8Array; estimate: boolean }> {
    const answer = await this.ask(`/api/runs/${run}/thumbs?rev=${rev}`);
    const estimate = answer.headers.get("x-sightline-estimate") !== null;
    return { bytes: new Uint8Array(await answer.arrayBuffer()), estimate };
  }
  async tile(t: TileRef, signal: AbortSignal): Promise<TileData> {
    const path = `/api/runs/${t.run}/tiles/${t.layer}/${t.head}/${t.lq}/${t.lk}/${t.y}/${t.x}?pool=${t.pool}&rev=${t.rev}`;
    const answer = await this.ask(path, { signal });
    if (answer.status === 204) return { values: null, estimate: false };
    const estimate = answer.headers.get("x-sightline-estimate") !== null;
    return { values: new Float32Array(await answer.arrayBuffer()), estimate };
  }
  row(run: string, rev: number, layer: number, head: number, q: number[], signal?: AbortSignal): Promise<Float32Array> {
    return this.floats(`/api/runs/${run}/rows/${layer}/${head}?q=${q.join(",")}&rev=${rev}`, signal);
  }
  column(
    run: string,
    rev: number,
    layer: number,
    head: number,
    k: number[],
    signal?: AbortSignal,
  ): Promise<Float32Array> {
    return this.floats(`/api/runs/${run}/columns/${layer}/${head}?k=${k.join(",")}&rev=${rev}`, signal);
  }
  async tracks(run: string, rev: number, layer: number, head: number): Promise<Float32Array> {
    const answer = await this.ask(`/api/runs/${run}/tracks/${layer}/${head}?rev=${rev}`);
    if (answer.status === 202) throw new Later();
    return new Float32Array(await answer.arrayBuffer());
  }
  peek(
    run: string,
    rev: number,
    layer: number,
    head: number,
    rows: string,
    cols: string,
    signal?: AbortSignal,
  ): Promise<CellPeek | PatchPeek> {
    return this.json(`/api/runs/${run}/peek/${layer}/${head}?rows=${rows}&cols=${cols}&rev=${rev}`, { signal });
  }
  async link(run: string, rev: number, layer: number, head: number): Promise<[number, number, number] | null> {
    const found = await this.json<Shapes["Link"]>(`/api/runs/${run}/peek/${layer}/${head}?rev=${rev}`);
    return found.link;
  }
  rollout(run: string, rev: number, q: number[], signal?: AbortSignal): Promise<Float32Array> {
    return this.floats(`/api/runs/${run}/rollout?q=${q.join(",")}&rev=${rev}`, signal);
  }
  steps(
    run: string,
    rev: number,
    layer: number,
    head: number,
    q: number,
    top: number,
    k: number | null,
  ): Promise<StepsTable> {
    const key = k === null ? "" : `&k=${k}`;
    return this.json(`/api/runs/${run}/steps/${layer}/${head}?q=${q}&top=${top}${key}&rev=${rev}`);
  }
  exportAddress(run: string, format: string, layer: number, head: number, rows: string, cols: string): string {
    const rectangle = format === "html" ? "" : `&rows=${rows}&cols=${cols}`;
    return `/api/runs/${run}/export?format=${format}&layer=${layer}&head=${head}${rectangle}`;
  }

  async picture(run: string): Promise<string> {
    const address = `/api/runs/${run}/image`;
    if (!this.carried) return address;
    return URL.createObjectURL(await (await this.ask(address)).blob()); // no address leads to a kernel
  }

  private async floats(path: string, signal?: AbortSignal): Promise<Float32Array> {
    return new Float32Array(await (await this.ask(path, { signal })).arrayBuffer());
  }

  private async json<T>(path: string, options: RequestInit = {}): Promise<T> {
    return (await (await this.ask(path, options)).json()) as T;
  }

  private async ask(path: string, options: RequestInit = {}): Promise<Response> {
    let answer: Response;
    try {
      answer = await this.fetch(path, options);
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new Refused(0, {
        error: "The server does not answer",
        expected: "",
        got: "",
        try: "start it again, then Retry",
      });
    }
    if (answer.ok) return answer;
    let problem: Problem = { error: `The server says ${answer.status}`, expected: "", got: "", try: "" };
    try {
      problem = { ...problem, ...((await answer.json()) as Partial<Problem>) };
    } catch {
      // not JSON: the status is all there is
    }
    throw new Refused(answer.status, problem, Number(answer.headers.get("retry-after") ?? 0));
  }
}

// What was asked for is there; else it is an order, and says where it stands.
export function isRun(found: RunInfo | OrderInfo): found is RunInfo {
  return "layers" in found;
}

export function aborted(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

export function sentence(error: unknown): string {
  return error instanceof Refused ? error.sentence : error instanceof Error ? error.message : String(error);
}
