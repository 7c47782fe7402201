// What belongs to "why" in the address: the reading and its target, edits, bookmarks, the tab of the rail.

export type Reading = "weights" | "norms" | "influence";
export type RailTab = "heads" | "path" | "link" | "effects";

export const READINGS: Reading[] = ["weights", "norms", "influence"];
export const RAIL: RailTab[] = ["heads", "path", "link", "effects"];

// What is asked to matter for: the logit of a token, less that of another, after a position. Empty: the likeliest
// token, after the last position.
export interface Target {
  token: string;
  than: string;
  after: number | null;
}

// One edit, as the server reads it: ablate:23.3, cut:23.3:q13:k9, scale:23.3:x0.5, boost:23.3:k9:x2.
export interface Edit {
  what: string;
  on: boolean;
}

export interface Mark {
  layer: number; // as the model counts
  head: number;
  q: number | null;
  k: number | null;
  text: string;
}

// A path that was walked: the token it begins at, and the sources that were chosen, each a layer (as the model counts)
// and a key.
export interface Walk {
  from: number;
  taken: [number, number][];
}

export interface WhyState {
  rail: RailTab;
  of: Reading;
  target: Target;
  effects: boolean; // exact effects of all heads are asked for
  edits: Edit[];
  marks: Mark[];
  path: Walk | null; // null: from the pinned token, by its strongest sources
}

export const WHY: WhyState = {
  rail: "heads",
  of: "weights",
  target: { token: "", than: "", after: null },
  effects: false,
  edits: [],
  marks: [],
  path: null,
};

export const EDIT =
  /^(ablate|cut|scale|boost):(\d{1,4}|\*)\.(\d{1,4}|\*)(?::q(\d{1,9})(?:-(\d{1,9}))?)?(?::k(\d{1,9})(?:-(\d{1,9}))?)?(?::x(\d{1,6}(?:\.\d{1,6})?))?$/;
const MOST = 32;

export function encodeWhy(state: WhyState, put: (name: string, value: string) => void): void {
  if (state.rail !== "heads") put("rail", state.rail);
  if (state.of !== "weights") put("of", state.of);
  const { token, than, after } = state.target;
  if (token) put("for", encodeURIComponent(token));
  if (than) put("than", encodeURIComponent(than));
  if (after !== null) put("after", String(after));
  if (state.effects) put("effects", "1");
  if (state.edits.length) put("edits", state.edits.map(({ what, on }) => (on ? what : `!${what}`)).join(","));
  if (state.marks.length)
    put(
      "marks",
      state.marks
        .map(({ layer, head, q, k, text }) =>
          [layer, head, q ?? "", k ?? "", encodeURIComponent(text).replaceAll("~", "%7E")].join("~"),
        )
        .map(encodeURIComponent)
        .join(","),
    );
  if (state.path) put("path", [state.path.from, ...state.path.taken.map((one) => one.join("."))].join("~"));
}

export function decodeWhy(given: URLSearchParams, notices: string[]): Partial<WhyState> {
  const state: Partial<WhyState> = {};
  const oneOf = <T extends string>(name: string, known: T[]): T | undefined => {
    const value = given.get(name);
    if (value !== null && !known.includes(value as T)) notices.push(`${name}=${value.slice(0, 20)} is not known`);
    return known.find((one) => one === value);
  };
  const rail = oneOf("rail", RAIL);
  if (rail) state.rail = rail;
  const of = oneOf("of", READINGS);
  if (of) state.of = of;
  const after = given.get("after");
  if (given.has("for") || given.has("than") || after !== null)
    state.target = {
      token: (given.get("for") ?? "").slice(0, 200),
      than: (given.get("than") ?? "").slice(0, 200),
      after: after !== null && /^\d{1,9}$/.test(after) ? Number(after) : null,
    };
  if (given.has("effects")) state.effects = given.get("effects") === "1";
  const edits = given.get("edits");
  if (edits) {
    const list = edits.split(",").map((text) => ({ what: text.replace(/^!/, ""), on: !text.startsWith("!") }));
    state.edits = list.filter(({ what }) => EDIT.test(what)).slice(0, MOST);
    if (state.edits.length < list.length) notices.push("some edits of this address are not understood");
  }
  const marks = given.get("marks");
  if (marks) {
    const list = marks.split(",").map(mark);
    state.marks = list.filter((one) => one !== null).slice(0, MOST);
    if (state.marks.length < list.length) notices.push("some bookmarks of this address are not understood");
  }
  const path = given.get("path");
  if (path !== null) {
    const [from, ...taken] = path.split("~");
    if (/^\d{1,9}(~\d{1,4}\.\d{1,9}){0,256}$/.test(path))
      state.path = { from: Number(from), taken: taken.map((one) => one.split(".").map(Number) as [number, number]) };
    else notices.push("the path of this address is not understood");
  }
  return state;
}

function mark(text: string): Mark | null {
  const parts = text.split("~");
  const [layer, head, q, k] = parts.slice(0, 4).map((part) => (/^\d{1,9}$/.test(part) ? Number(part) : null));
  if (parts.length !== 5 || layer === null || head === null) return null;
  try {
    return { layer, head, q, k, text: decodeURIComponent(parts[4]).slice(0, 300) };
  } catch {
    return null;
  }
}

// An edit in words: "without layer 23 head 3", "layer 23 head 3, 13 → 9 cut".
export function editWords(what: string): string {
  const found = EDIT.exec(what);
  if (!found) return what;
  const [, kind, layer, head, q0, q1, k0, k1, factor] = found;
  const who =
    layer === "*" && head === "*"
      ? "all heads"
      : layer === "*"
        ? `head ${head} of every layer`
        : head === "*"
          ? `layer ${layer}`
          : `layer ${layer} head ${head}`;
  const span = (a: string | undefined, b: string | undefined, all: string) =>
    a === undefined ? all : b === undefined || a === b ? a : `${a} to ${b}`;
  const where = q0 === undefined && k0 === undefined ? "" : `, ${span(q0, q1, "all")} → ${span(k0, k1, "all")}`;
  if (kind === "ablate") return `without ${who}`;
  if (kind === "cut") return `${who}${where} cut`;
  return `${who}${where} ${kind === "scale" ? "scaled" : "boosted"} × ${factor}`;
}
