import { describe, expect, test, vi } from "vitest";
import { Carrier, type Model } from "../src/carrier";
import { aborted, HttpSource, Later, Refused, sentence, type TileRef, whole } from "../src/source";

const REF: TileRef = { run: "abc", rev: 2, layer: 3, head: 1, lq: 2, lk: 1, y: 4, x: 5, pool: "max" };

function answering(...answers: (Response | Error)[]) {
  const ask = vi.fn(async (_path: string, _options?: RequestInit): Promise<Response> => {
    const next = answers.shift()!;
    if (next instanceof Error) throw next;
    return next;
  });
  return { ask, source: new HttpSource(ask) };
}

const floats = (...values: number[]) => new Response(Float32Array.from(values).buffer);

describe("the server's answers", () => {
  test("tiles are numbers, estimates among them, or nothing where all is masked", async () => {
    const { ask, source } = answering(
      floats(0.5, 1),
      new Response(new Float32Array(1).buffer, { headers: { "x-sightline-estimate": "1" } }),
      new Response(null, { status: 204 }),
    );
    const signal = new AbortController().signal;
    expect(await source.tile(REF, signal)).toEqual({ values: Float32Array.of(0.5, 1), estimate: false });
    expect(ask.mock.calls[0]).toEqual(["/api/runs/abc/tiles/3/1/2/1/4/5?pool=max&rev=2", { signal }]);
    expect((await source.tile(REF, signal)).estimate).toBe(true);
    expect(await source.tile(REF, signal)).toEqual({ values: null, estimate: false });
  });

  test("what is still computed comes later", async () => {
    const { source } = answering(new Response(null, { status: 202 }), floats(1, 2));
    await expect(source.tracks("abc", 0, 1, 2)).rejects.toBeInstanceOf(Later);
    expect([...(await source.tracks("abc", 0, 1, 2))]).toEqual([1, 2]);
  });

  test("an order says its text and model, and how much to write only where something is", async () => {
    const { ask, source } = answering(Response.json({ id: "a", position: 1 }), Response.json({ id: "a", position: 1 }));
    expect(await source.order("hi", "minilm", 0)).toEqual({ id: "a", position: 1 });
    await source.order("hi", "smollm2", 5);
    const bodies = ask.mock.calls.map(([, options]) => JSON.parse(options!.body as string));
    expect(bodies).toEqual([
      { text: "hi", model: "minilm" },
      { text: "hi", model: "smollm2", generate: 5 },
    ]);
  });

  test("an order that nobody knows any more was taken back, and is not asked for again", async () => {
    vi.stubGlobal("window", { setTimeout: (act: () => void) => setTimeout(act, 0) });
    const waiting = { id: "a", state: "queued", position: 1 };
    const { ask, source } = answering(
      Response.json({ orders: [waiting] }),
      Response.json({ orders: [] }),
      Response.json({ error: "there is no such run" }, { status: 404 }),
    );
    const states: string[] = [];
    await new Promise<void>((done) =>
      source.events("a", ({ state }) => {
        states.push(state);
        if (state === "cancelled") done();
      }),
    );
    await new Promise((later) => setTimeout(later, 5));
    expect(states).toEqual(["queued", "cancelled"]);
    expect(ask).toHaveBeenCalledTimes(3);
    vi.unstubAllGlobals();
  });

  test("addresses name rows, columns, cells and files", async () => {
    const { ask, source } = answering(floats(1), floats(1), Response.json({ link: [1, 0, 0.5] }), Response.json({}));
    await source.row("abc", 1, 2, 3, [4, 5]);
    await source.column("abc", 1, 2, 3, [4]);
    expect(await source.link("abc", 1, 2, 3)).toEqual([1, 0, 0.5]);
    await source.steps("abc", 1, 2, 3, 4, 16, null);
    expect(ask.mock.calls.map(([path]) => path)).toEqual([
      "/api/runs/abc/rows/2/3?q=4,5&rev=1",
      "/api/runs/abc/columns/2/3?k=4&rev=1",
      "/api/runs/abc/peek/2/3?rev=1",
      "/api/runs/abc/steps/2/3?q=4&top=16&rev=1",
    ]);
    const csv = "/api/runs/abc/export?format=csv&layer=2&head=3&rows=0:4&cols=0:2";
    expect(source.exportAddress("abc", "csv", 2, 3, "0:4", "0:2")).toBe(csv);
    expect(source.exportAddress("abc", "html", 2, 3, "0:4", "0:2")).not.toContain("rows");
  });
});

describe("what goes wrong", () => {
  test("of a run says the limit as well", () => {
    const problem = { error: "too long", expected: "at most 512 tokens", got: "602 tokens", try: "a part of it" };
    expect(whole(problem)).toBe("too long: 602 tokens; expected at most 512 tokens. Try: a part of it");
    expect(whole({ error: "gone", expected: "", got: "", try: "" })).toBe("gone");
  });

  test("is the server's own sentence, with what to try", async () => {
    const problem = { error: "too many texts wait", expected: "4", got: "5", try: "again later" };
    const { source } = answering(Response.json(problem, { status: 429, headers: { "retry-after": "7" } }));
    const error = await source.limits().catch((caught: unknown) => caught);
    expect(error).toMatchObject({ status: 429, retryAfter: 7, problem });
    expect(sentence(error)).toBe("too many texts wait. Try: again later");
  });

  test("is its status, where it is not even JSON", async () => {
    const { source } = answering(new Response("<h1>oops</h1>", { status: 502 }));
    expect(sentence(await source.runs().catch((error) => error))).toBe("The server says 502");
  });

  test("is said of a server that does not answer, but not of a request that was taken back", async () => {
    const { source } = answering(new TypeError("fetch failed"), new DOMException("aborted", "AbortError"));
    expect(sentence(await source.run("a").catch((error) => error))).toContain("The server does not answer");
    const stopped = await source.run("a").catch((error) => error);
    expect(aborted(stopped)).toBe(true);
    expect(stopped).not.toBeInstanceOf(Refused);
  });
});

describe("a notebook's kernel", () => {
  function widget() {
    let listener: Parameters<Model["on"]>[1] = () => undefined;
    const model = {
      send: vi.fn(),
      on: (_: string, told: typeof listener) => (listener = told),
      off: vi.fn(),
      get: () => undefined,
    };
    return {
      model,
      carrier: new Carrier(model as Model),
      told: (...args: Parameters<typeof listener>) => listener(...args),
    };
  }

  test("answers by number, in whichever order, with bytes", async () => {
    const { model, carrier, told } = widget();
    const [first, second] = [carrier.ask("/api/limits"), carrier.ask("/api/runs")];
    expect(model.send.mock.calls).toEqual([[{ id: 1, path: "/api/limits" }], [{ id: 2, path: "/api/runs" }]]);
    told({ id: 2, status: 200, headers: { a: "b" } }, [new DataView(new TextEncoder().encode("two").buffer)]);
    told({ id: 1, status: 204, headers: {} }, []);
    told({ id: 9, status: 200, headers: {} }, []);
    expect(await (await second).text()).toBe("two");
    expect((await second).headers.get("a")).toBe("b");
    expect((await first).status).toBe(204);
  });

  test("is told when nobody waits any more", async () => {
    const { model, carrier } = widget();
    const stop = new AbortController();
    const asked = carrier.ask("/api/limits", { signal: stop.signal });
    stop.abort();
    await expect(asked).rejects.toSatisfy(aborted);
    expect(model.send).toHaveBeenLastCalledWith({ cancel: 1 });
    await expect(carrier.ask("/", { signal: stop.signal })).rejects.toSatisfy(aborted);
    const waiting = carrier.ask("/api/runs");
    carrier.close();
    await expect(waiting).rejects.toThrow("closed");
    expect(model.off).toHaveBeenCalled();
  });
});
