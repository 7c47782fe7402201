// What a report holds, and what it lacks, in a sentence.

import { el } from "./dom";
import { EmbeddedSource } from "./embedded";
import type { Source } from "./source";

export function reportNote(source: Source): HTMLElement {
  const holds =
    source instanceof EmbeddedSource && source.exact
      ? "every head with its exact weights"
      : "every head as a thumbnail, chosen heads in up to 512 bins a side, right to 3.3 %, with their exact strongest weights";
  const text = `A report: ${holds}. It lacks steps, rollout, edits and new texts: sightline serve has them.`;
  return el("p", { class: "report-note", attrs: { role: "note" } }, text);
}
