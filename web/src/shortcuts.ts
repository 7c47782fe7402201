// What single keys do.

import type { Context } from "./context";
import type { MapView } from "./mapview";
import type { View } from "./state";

export type Shortcuts = Record<string, () => void>;

// What of the page a key can reach.
export interface Reach {
  go(view: View): void;
  heads(): void;
  text(): void;
  find(): void;
  help(): void;
  fit(): void;
  export(): void;
  more: (both: typeof inBoth) => Shortcuts;
}

// In small letters and large.
export function inBoth(key: string, act: () => void): Shortcuts {
  return { [key]: act, [key.toUpperCase()]: act };
}

export function shortcuts(context: Context, map: MapView | null, reach: Reach): Shortcuts {
  const { state } = context;
  const log = () => context.useScale(state.scale === "log" ? "linear" : "log");
  const pool = () => context.store.push({ pool: state.pool === "mean" ? "max" : "mean" });
  const diagonal = () => context.store.push({ diagonal: !state.diagonal });
  const lacks = (what: string) => () => context.say(`a report has no ${what}: open the run in sightline serve`);
  const { live } = context.source;
  const rollout = live
    ? () => context.store.push({ shade: state.shade === "rollout" ? "looks" : "rollout" })
    : lacks("rollout");
  const steps = live ? () => reach.go("steps") : lacks("steps");
  return {
    "1": () => reach.go("map"),
    "2": reach.heads,
    "3": reach.text,
    "4": () => reach.go("links"),
    "5": steps,
    "6": () => reach.go("compare"),
    "7": () => reach.go("wall"),
    "[": () => context.moveHead(0, -1),
    "]": () => context.moveHead(0, 1),
    "{": () => context.moveHead(-1, 0),
    "}": () => context.moveHead(1, 0),
    "+": () => map?.zoomBy(1),
    "=": () => map?.zoomBy(1),
    "-": () => map?.zoomBy(-1),
    "0": () => map?.camera.whole(true),
    "/": reach.find,
    "?": reach.help,
    ...reach.more(inBoth),
    ...inBoth("l", log),
    ...inBoth("m", pool),
    ...inBoth("d", diagonal),
    ...inBoth("f", reach.fit),
    ...inBoth("r", rollout),
    ...inBoth("s", steps),
    ...inBoth("e", reach.export),
  };
}
