// A head in one sentence. No element in here.

import { show } from "./colors";
import type { OpenRun } from "./run";

// As one would say it.
export function summary(run: OpenRun, layer: number, head: number, link: [number, number, number] | null): string {
  const value = (name: string) => run.measure(layer, head, name);
  const [focus, first, previous, induction] = [value("focus"), value("first"), value("previous"), value("induction")];
  const kind =
    (first ?? 0) > 0.5
      ? "on the first token"
      : (previous ?? 0) > 0.4
        ? "previous-token"
        : (induction ?? 0) > 0.4
          ? "induction"
          : (focus ?? 0) > 0.5
            ? "focused"
            : "broad";
  const parts = [`${run.layer(layer).queries.toLocaleString("en")} tokens, ${kind}`];
  const [entropy, spread] = [value("entropy"), value("spread")];
  if (entropy !== null && spread !== null) parts[0] += `: entropy ${entropy.toFixed(1)} of ${spread.toFixed(1)}`;
  if (first !== null) parts.push(`${Math.round(100 * first)}\u00a0% first token`);
  if (link)
    parts.push(`strongest “${run.tokens.name(link[0])}” → “${run.keyTokens(layer).name(link[1])}” ${show(link[2])}`);
  return parts.join("; ");
}
