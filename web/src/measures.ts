// What a head is measured by, as the server lists it: how long a bar is, and how a value reads.

import type { Measure } from "./source";

// What every run has; whatever else the server lists was asked for.
const USUAL = new Set(["focus", "first", "previous", "same", "next", "induction", "distance", "entropy"]);

export function extra(measures: Measure[]): Measure[] {
  return measures.filter(({ name }) => !USUAL.has(name));
}

// How much of a bar is filled, from 0 to 1; without a range there is no bar.
export function filled({ range }: Measure, value: number): number {
  if (!range) return 0;
  return Math.min(Math.max((value - range[0]) / (range[1] - range[0]), 0), 1);
}

// Shares are percentages. Of a short distance a tenth tells something, of less than one three digits do.
export function written({ range }: Measure, value: number): string {
  if (range && range[0] === 0 && range[1] === 1) return `${Math.round(100 * value)} %`;
  const size = Math.abs(value);
  if (size >= 99.95) return Math.round(value).toLocaleString("en");
  return size === 0 || size >= 0.95 ? value.toFixed(1) : value.toPrecision(3);
}

// What a measure says, for those who ask.
export function said({ label, about, unit }: Measure): string {
  return about.endsWith(".") ? about : (about || label) + (unit ? `, in ${unit}` : "");
}
