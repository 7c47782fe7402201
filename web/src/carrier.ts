// How a page in a notebook reaches the kernel: requests with numbers go out as messages, answers come back with bytes.

export type Ask = (path: string, options?: RequestInit) => Promise<Response>;

interface Answer {
  id: number;
  status: number;
  headers: Record<string, string>;
}

// What anywidget gives a widget, as far as it is used here.
export interface Model {
  send(content: unknown): void;
  on(event: "msg:custom", listener: (content: Answer, buffers: DataView[]) => void): void;
  off(event: "msg:custom", listener: (content: Answer, buffers: DataView[]) => void): void;
  get(name: string): unknown;
}

const EMPTY = [101, 204, 205, 304];

export class Carrier {
  private last = 0;
  private waiting = new Map<number, { done: (answer: Response) => void; failed: (error: unknown) => void }>();

  constructor(private model: Model) {
    model.on("msg:custom", this.arrived);
  }

  close(): void {
    this.model.off("msg:custom", this.arrived);
    for (const { failed } of this.waiting.values()) failed(new TypeError("the widget was closed"));
    this.waiting.clear();
  }

  ask: Ask = (path, options = {}) => {
    const id = ++this.last;
    return new Promise((done, failed) => {
      const { signal } = options;
      if (signal?.aborted) return failed(new DOMException("aborted", "AbortError"));
      this.waiting.set(id, { done, failed });
      signal?.addEventListener("abort", () => {
        if (!this.waiting.delete(id)) return;
        this.model.send({ cancel: id });
        failed(new DOMException("aborted", "AbortError"));
      });
      const { method, body } = options;
      this.model.send({ id, path, ...(method ? { method } : {}), ...(typeof body === "string" ? { body } : {}) });
    });
  };

  private arrived = (content: Answer, buffers: DataView[]): void => {
    const asked = this.waiting.get(content.id);
    if (!asked) return;
    this.waiting.delete(content.id);
    const { status, headers } = content;
    const body =
      EMPTY.includes(status) || !buffers.length
        ? null
        : new Uint8Array(buffers[0].buffer, buffers[0].byteOffset, buffers[0].byteLength);
    asked.done(new Response(body as BodyInit | null, { status, headers }));
  };
}

// Inside the frame: the way out that the widget left on it.
export function carried(): Ask | null {
  try {
    return (window.frameElement as (Element & { sightline?: Ask }) | null)?.sightline ?? null;
  } catch {
    return null; // a frame of another site
  }
}
