import { describe, expect, test, vi } from "vitest";
import type { TokenPage } from "../src/source";
import { GLUED, isolated, short, Tokens, visible } from "../src/tokens";

describe("a token on the page", () => {
  test.each([
    ["kids", "kids"],
    [" kids", "kids"],
    ["  kids", "␣␣kids"],
    [" ", "␣"],
    ["\n\t", "⏎⇥"],
    ["a\u00a0b", "a⍽b"],
    ["", "∅"],
  ])("%j reads %s", (text, shown) => {
    expect(visible(text)).toBe(shown);
  });

  test("is cut after whole characters", () => {
    expect(short("a".repeat(14))).toBe("a".repeat(14));
    expect(short("a".repeat(15))).toBe(`${"a".repeat(13)}…`);
    expect(short("🙂".repeat(4), 3)).toBe("🙂🙂…");
  });
});

test("words from right to left are isolated in a sentence, others are as they are", () => {
  expect(isolated("שלום")).toBe("\u2068שלום\u2069");
  expect(isolated("سلام")).toBe("\u2068سلام\u2069");
  expect(isolated("kids")).toBe("kids");
  expect(isolated("猫…")).toBe("猫…");
});

describe("tokens", () => {
  const pages = (texts: string[]) =>
    vi.fn(
      async (from: number, to: number): Promise<TokenPage> => ({
        from,
        to,
        texts: texts.slice(from, to),
        kinds: texts.slice(from, to).map(() => GLUED),
      }),
    );

  test("come page by page, and each page once", async () => {
    const texts = Array.from({ length: 20_000 }, (_, i) => `t${i}`);
    const fetched = pages(texts);
    const tokens = new Tokens(texts.length, fetched);
    const arrived: string[] = [];
    await tokens.load(() => arrived.push(tokens.text(19_999)));
    await tokens.load(() => undefined);
    expect(arrived).toEqual(["", "t19999"]);
    expect(fetched.mock.calls).toEqual([
      [0, 16_384],
      [16_384, 20_000],
    ]);
    expect([tokens.text(16_384), tokens.kind(16_384), tokens.named]).toEqual(["t16384", GLUED, true]);
  });

  test("without a name, or not there yet, are called by their position", async () => {
    const tokens = new Tokens(2, pages(["", ""]));
    expect(tokens.label(1)).toBe("#1");
    await tokens.load(() => undefined);
    expect([tokens.label(1), tokens.named]).toEqual(["#1", false]);
  });

  test("that could not be fetched are asked for again", async () => {
    const fetched = pages(["a", "b"]);
    fetched.mockRejectedValueOnce(new Error("gone"));
    const tokens = new Tokens(2, fetched);
    await expect(tokens.load(() => undefined)).rejects.toThrow("gone");
    await tokens.load(() => undefined);
    expect(tokens.texts).toEqual(["a", "b"]);
  });
});
