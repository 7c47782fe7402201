import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { bare, decode, encode, START, type State, Store } from "../src/state";

const FULL: State = {
  run: "0123abcd",
  view: "compare",
  layer: 3,
  head: 1,
  q: [9, 12],
  k: 5,
  at: { row: 10.25, col: 4, zoom: -2 },
  pool: "max",
  scale: "linear",
  lo: 1e-6,
  hi: 0.5,
  map: "viridis",
  shade: "received",
  other: { run: "ffff-0", layer: 2, head: 7 },
  difference: true,
  diagonal: false,
  aside: false,
  rail: "link",
  of: "influence",
  target: { token: " Mary", than: " John", after: 13 },
  effects: true,
  edits: [
    { what: "ablate:23.3", on: true },
    { what: "cut:23.3:q13:k9", on: false },
  ],
  marks: [{ layer: 3, head: 1, q: 10, k: 2, text: "they, the kids ~ & 100 %" }],
  path: {
    from: 12,
    taken: [
      [4, 7],
      [1, 2],
    ],
  },
};

describe("an address", () => {
  test("says everything that is looked at", () => {
    expect(encode(FULL)).toBe(
      "#v=2&run=0123abcd&view=compare&L=3&H=1&q=9,12&k=5&at=10.25,4,-2&pool=max&scale=linear&lo=0.000001&hi=0.5" +
        "&map=viridis&shade=received&with=ffff-0,2,7&diff=1&diag=0&aside=0&rail=link&of=influence&for=%20Mary&than=%20John" +
        "&after=13&effects=1&edits=ablate:23.3,!cut:23.3:q13:k9" +
        "&marks=3~1~10~2~they%252C%2520the%2520kids%2520%257E%2520%2526%2520100%2520%2525&path=12~4.7~1.2",
    );
  });

  test.each([["full", FULL] as const, ["at the start", { ...START, run: "a" }] as const])(
    "is read as it was written: %s",
    (_, state) => {
      const { state: found, notices } = decode(encode(state));
      expect(notices).toEqual([]);
      expect({ ...START, ...found }).toEqual(state);
    },
  );

  test("ignores keys it does not know, and names values it does not", () => {
    expect(decode("#v=1&colour=blue")).toEqual({ state: {}, notices: [] });
    const { state, notices } = decode("#v=3&view=globe&L=-1&H=1.5&k=&lo=x&q=1,a&at=1,2&pool=sum");
    expect(state).toEqual({});
    expect(notices).toHaveLength(9);
    expect(notices.join("; ")).toContain("version 3");
    expect(notices.join("; ")).toContain("view=globe is not known");
    expect(notices.join("; ")).toContain("L=-1 is not a number that fits");
  });

  test("has the model's own numbers of layers; those before counted the layers of the run", () => {
    const numbers = (run: string | null | undefined) => ({ some: [3, 5], rest: [1, 2] })[run ?? ""];
    const state: State = { ...FULL, run: "some", layer: 1, other: { run: "rest", layer: 0, head: 7 } };
    expect(encode(state, numbers)).toContain("&L=5&");
    expect(encode(state, numbers)).toContain("&with=rest,1,7&");
    expect(decode(encode(state, numbers), numbers)).toMatchObject({ state, notices: [] });
    expect(decode("#v=1&run=rest&L=1&with=some,1,0", numbers)).toMatchObject({
      state: { layer: 1, other: { layer: 1 } },
      notices: [],
    });
    expect(decode("#run=some&L=4", numbers)).toMatchObject({
      state: { layer: 0 },
      notices: ["there is no layer 4"],
    });
    expect(decode("#run=some&L=99", numbers).state.layer).toBe(1);
  });

  test("takes no run that could lead elsewhere", () => {
    expect(decode("#run=../../etc").state.run).toBeUndefined();
    expect(decode(`#run=${"a".repeat(65)}`).state.run).toBeUndefined();
    expect(decode("#with=a/b,1,2").state.other).toBeUndefined();
  });

  test("pins each query once, and at most 64", () => {
    expect(decode("#q=3,3,1").state.q).toEqual([3, 1]);
    expect(decode(`#q=${Array.from({ length: 100 }, (_, i) => i).join()}`).state.q).toHaveLength(64);
  });
});

describe("the store", () => {
  const history = { back: vi.fn(), pushState: vi.fn(), replaceState: vi.fn() };
  const location = { hash: "", href: "http://here/#old" };
  let popped: () => void = () => undefined;

  beforeEach(() => {
    location.hash = "";
    for (const step of ["pushState", "replaceState"] as const)
      history[step].mockImplementation((_state, _title, hash: string) => {
        location.hash = hash;
      });
    vi.stubGlobal("history", history);
    vi.stubGlobal("location", location);
    vi.stubGlobal("window", { addEventListener: (_: string, listener: () => void) => (popped = listener) });
  });

  afterEach(() => {
    vi.unstubAllGlobals();
    vi.clearAllMocks();
  });

  test("writes steps that Back undoes, and moves that it does not", () => {
    const store = new Store();
    store.push({ layer: 2 });
    store.replace({ at: { row: 1, col: 2, zoom: 0 } });
    store.push({ layer: 2 });
    expect(history.pushState).toHaveBeenCalledTimes(1);
    expect(history.replaceState).toHaveBeenCalledTimes(1);
    expect(location.hash).toContain("L=2");
    expect(store.address()).toBe(`http://here/${encode(store.now)}`);
  });

  test("follows the address when the browser goes back, and keeps the bounds of the colours", () => {
    const store = new Store();
    store.replace({ run: "a", lo: 1e-3, layer: 4 });
    location.hash = "#v=1&L=1";
    popped();
    expect(store.now).toEqual({ ...START, run: "a", layer: 1, lo: 1e-3 });
  });

  test("tells only those who listen to what has changed", () => {
    const store = new Store();
    const pins = vi.fn();
    const place = vi.fn();
    store.on(["q", "k"], pins);
    const stop = store.on(["at"], place);
    store.push({ q: [1] });
    store.push({ q: [1] }); // another list, the same pins
    expect(pins).toHaveBeenCalledTimes(1);
    expect(pins.mock.calls[0][1].q).toEqual([]);
    expect(place).not.toHaveBeenCalled();
    stop();
    store.push({ at: { row: 1, col: 1, zoom: 1 } });
    expect(place).not.toHaveBeenCalled();
  });

  test("remembers its steps itself where the page is a frame", () => {
    const store = new Store(true);
    store.push({ layer: 1 });
    store.push({ layer: 2 });
    store.replace({ head: 3 });
    expect(location.hash).toBe("");
    store.back();
    expect(store.now.layer).toBe(1);
    store.back();
    store.back();
    expect(store.now).toEqual(START);
    expect(history.back).not.toHaveBeenCalled();
  });
});

test("an address is bare that says only of which run it is, and how to look at it", () => {
  expect(bare(decode("#run=abc").state)).toBe(true);
  expect(bare(decode("#v=1&run=abc&view=links&map=viridis&lo=0.01&at=1,2,3").state)).toBe(true);
  for (const choice of ["L=0", "H=0", "q=3", "k=0"]) expect(bare(decode(`#run=abc&${choice}`).state)).toBe(false);
  expect(bare(decode("").state)).toBe(false);
});
