// What is pointed at, and what is said.

import type { Cells } from "./grid";

export interface Hover {
  q: number | null;
  k: number | null;
  cells: Cells | null;
  from: string;
}

// What is said, what tries again where that is of use, and what is to be copied by hand.
export interface Notice {
  text: string;
  given?: string;
  again: (() => void) | null;
}

// Query, key and weight.
export type Link = [number, number, number];
