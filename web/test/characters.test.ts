import { expect, test } from "vitest";
import { BYTES, type Piece, pieces } from "../src/characters";
import type { TokenPage } from "../src/source";
import { Tokens } from "../src/tokens";

// Tokens as the server names them: text, or bytes that are no whole character as hex in brackets.
function read(...tokens: (string | [string])[]): (Piece | null)[] {
  const texts = tokens.map((token) => (Array.isArray(token) ? token[0] : token));
  const kinds = tokens.map((token) => (Array.isArray(token) ? BYTES : 0));
  const found = pieces(texts, kinds, 0, texts.length);
  return texts.map((_, i) => found.get(i) ?? null);
}

test("the first token of a character shows it, the others are parts of it", () => {
  expect(read("a", ["e7 8b"], ["ae"], "b")).toEqual([null, { shown: "狮", of: "狮" }, { shown: "", of: "狮" }, null]);
  // The end of one character and the beginning of the next in one token.
  expect(read(["20 e7"], ["8b ae e5"], ["ad 90"])).toEqual([
    { shown: " 狮", of: "狮" },
    { shown: "子", of: "狮" },
    { shown: "", of: "子" },
  ]);
});

test("signs that are joined into one are shown as one", () => {
  const shown = read([" f0 9f 91".trim()], ["a9"], "\u200d", "👧", "!").map((piece) => piece?.shown);
  expect(shown).toEqual(["👩\u200d👧", "", "", "", undefined]);
  expect(read("❤", "\ufe0f", " x")[0]).toEqual({ shown: "❤\ufe0f", of: "❤\ufe0f" });
});

test("bytes that are no character stay bytes", () => {
  expect(read(["e7 8b"], "a", ["ff"], ["80"])).toEqual([null, null, null, null]);
  expect(read(["e7 8b"])).toEqual([null]); // a text that is still being written
  expect(read("plain", " text")).toEqual([null, null]);
});

test("a label names the character and the bytes", async () => {
  const page = async (from: number, to: number): Promise<TokenPage> => ({
    from,
    to,
    texts: ["e7 8b", "ae", "f0 9f", "x"],
    kinds: [BYTES, BYTES, BYTES, 0],
  });
  const tokens = new Tokens(4, page);
  await tokens.load(() => undefined);
  expect([0, 1, 2, 3].map((i) => tokens.label(i))).toEqual(["狮 e7 8b", "狮 ae", "f0 9f", "x"]);
});
