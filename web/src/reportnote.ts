// What a report holds, and what it lacks, in a sentence.

import type { Context } from "./context";
import { el } from "./dom";
import { EmbeddedSource } from "./embedded";
import { NAMES } from "./readings";
import type { Source } from "./source";
import { editWords, type Reading, WHY } from "./whystate";

export function reportNote(source: Source): HTMLElement {
  const held = source instanceof EmbeddedSource ? source : null;
  const maps = held?.exact
    ? "every head with its exact weights"
    : "every head as a thumbnail, chosen heads in up to 512 bins a side, right to 3.3 %, with their exact strongest weights";
  const readings = [...new Set((source.readings ?? []).map((info) => `what ${NAMES[info.of as Reading]}`))];
  const holds = [maps, ...readings.map((name) => name.replace("what carried", "what was carried")), ...others(source)];
  const made = held?.edits.length ? ` Edited: ${held.edits.map(editWords).join("; ")}.` : "";
  const aimed = (source.readings ?? []).some((info) => info.of === "influence");
  const lacks = ["steps", "rollout", aimed ? "other targets" : "what mattered", "new edits and texts"];
  const text = `A report: ${list(holds)}.${made} It lacks ${list(lacks)}: sightline serve has them.`;
  return el("p", { class: "report-note", attrs: { role: "note" } }, text);
}

// A report of a reading opens with it, at its strongest head, unless the address says where.
export async function readFirst({ source, store }: Context, anywhere: boolean): Promise<void> {
  const shown = source.readings?.find((info) => info.id === source.kept?.().shown);
  if (!shown) return;
  const [layer, head] = (await source.portraits(shown.id, 0)).first;
  const link = anywhere ? await source.link(shown.id, 0, layer, head) : null;
  const place = anywhere ? { layer, head, q: link ? [link[0]] : [], k: link ? link[1] : null } : {};
  store.replace({ of: shown.of as Reading, target: shown.aim ?? WHY.target, ...place });
}

function others(source: Source): string[] {
  const { effects, picture, marks, written } = source.kept?.() ?? {};
  const found: [unknown, string][] = [
    [effects?.length, "exact effects of heads"],
    [picture, "the picture"],
    [marks?.length, "bookmarks"],
    [written, "what was written"],
  ];
  return found.filter(([there]) => there).map(([, name]) => name);
}

function list(parts: string[]): string {
  return parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}` : (parts[0] ?? "");
}
