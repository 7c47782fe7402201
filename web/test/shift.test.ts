import { expect, test } from "vitest";
import { shift } from "../src/shift";

const frame = { top: 100, bottom: 300 };
const line = (top: number) => ({ top, bottom: top + 20 });

test("what is in view stays where it is, what is not comes to the middle", () => {
  expect(shift(frame, line(108))).toBe(0);
  expect(shift(frame, line(272))).toBe(0);
  expect(shift(frame, line(273))).toBe(83);
  expect(shift(frame, line(90))).toBe(-100);
});

test("a second one comes along where there is room for both", () => {
  expect(shift(frame, line(120), line(260))).toBe(0);
  expect(shift(frame, line(270), line(400))).toBe(145);
  expect(shift(frame, line(120), line(900))).toBe(0);
  expect(shift(frame, line(500), line(900))).toBe(310);
});
