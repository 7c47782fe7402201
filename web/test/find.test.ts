import { describe, expect, test } from "vitest";
import { Searched, step } from "../src/find";
import { BYTES, GLUED, SPECIAL, Tokens } from "../src/tokens";

// Tokens as the server tells them: text and kind.
async function searched(list: [string, number][], asTyped = false): Promise<Searched> {
  const tokens = new Tokens(list.length, async (from, to) => ({
    from,
    to,
    texts: list.map(([text]) => text),
    kinds: list.map(([, kind]) => kind),
  }));
  await tokens.load(() => undefined);
  return new Searched(tokens, asTyped);
}

const own = (...texts: string[]) => searched(texts.map((text) => [text, GLUED]));

describe("find", () => {
  test("words and phrases over several tokens, whatever their case", async () => {
    const text = await own("The", " un", "believ", "able", " kids", " saw", " the", " UN", ".");
    expect(text.find("unbelievable")).toEqual([[1, 3]]);
    expect(text.find("Unbelievable KIDS  saw")).toEqual([[1, 5]]);
    expect(text.find("the")).toEqual([[0, 0], [6, 6]]); // biome-ignore format: pairs
    expect(text.find("un")).toEqual([[1, 1], [7, 7]]); // biome-ignore format: pairs
    expect(text.find("un.")).toEqual([[7, 8]]);
    expect(text.find("kidssaw")).toEqual([]);
    expect(text.find("  ")).toEqual([]);
  });

  test("with capital letters as they are typed, if that is asked for", async () => {
    const words: [string, number][] = [["The", GLUED], [" the", GLUED], [" THE", GLUED]]; // biome-ignore format: pairs
    const text = await searched(words, true);
    expect([text.find("the"), text.find("The the")]).toEqual([[[1, 1]], [[0, 1]]]);
  });

  test("spaces beside signs make no difference, as some tokenizers drop them", async () => {
    const text = await searched([
      ["[CLS]", SPECIAL],
      ["lions", 0],
      [",", 0],
      ["so", 0],
      ["the", 0],
      ["y", GLUED],
    ]);
    expect(text.find("lions, so they")).toEqual([[1, 5]]);
    expect(text.find("[cls] lions")).toEqual([[0, 1]]);
    expect(text.find("lionsso")).toEqual([]);
  });

  test("letters whose bytes are spread over tokens, and letters put together in two ways", async () => {
    const text = await searched([
      ["say", GLUED],
      ["20 e7 8c", GLUED | BYTES],
      ["ab e7", GLUED | BYTES],
      ["8b 97", GLUED | BYTES],
      [" cafe\u0301", GLUED],
    ]);
    expect(text.find("猫")).toEqual([[1, 2]]);
    expect(text.find("狗")).toEqual([[2, 3]]);
    expect(text.find("猫狗 caf\u00e9")).toEqual([[1, 4]]);
  });

  test("twice in one token is one place; bytes that are no letter harm nothing", async () => {
    expect((await own("aXa", "XaX")).find("x")).toEqual([[0, 0], [1, 1]]); // biome-ignore format: pairs
    expect((await searched([["ff fe", GLUED | BYTES], ["a", GLUED]])).find("a")).toEqual([[1, 1]]); // biome-ignore format: pairs
  });
});

test("steps go round, from what is pinned", () => {
  const hits: [number, number][] = [[2, 3], [7, 7], [9, 11]]; // biome-ignore format: pairs
  expect(step(hits, [], 1)).toBe(0);
  expect(step(hits, [], -1)).toBe(2);
  expect(step(hits, [2, 3], 1)).toBe(1);
  expect(step(hits, [9, 10, 11], 1)).toBe(0);
  expect(step(hits, [2, 3], -1)).toBe(2);
  expect(step(hits, [8], 1)).toBe(2);
  expect(step(hits, [8], -1)).toBe(1);
  expect(step(hits, [40], 1)).toBe(0);
  expect(step([], [1], 1)).toBe(-1);
});
