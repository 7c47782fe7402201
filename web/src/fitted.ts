// An address made to fit the run it names: what is impossible is put right, and said.

import { opening, rescaled } from "./colors";
import type { OpenRun } from "./run";
import type { State } from "./state";

export function fitted(
  run: OpenRun,
  given: Partial<State>,
  live: boolean,
): { state: Partial<State>; notices: string[] } {
  const notices: string[] = [];
  const scale = given.scale ?? (given.lo ? "log" : opening(run.longest).scale);
  const state = { ...rescaled(scale, given.lo ?? 0, run.longest), hi: 1, ...given };
  const layers = run.info.layers.length;
  if (state.layer !== undefined && state.layer >= layers) {
    notices.push(`there is no layer ${state.layer}`);
    state.layer = layers - 1;
  }
  const layer = run.layer(state.layer ?? 0);
  if (state.head !== undefined && state.head >= layer.heads) {
    notices.push(`there is no head ${state.head}`);
    state.head = layer.heads - 1;
  }
  if (state.q?.some((q) => q >= layer.queries)) {
    notices.push("some pinned queries are beyond the text");
    state.q = state.q.filter((q) => q < layer.queries);
  }
  if (state.k !== undefined && state.k !== null && state.k >= layer.keys) {
    notices.push("the pinned key is beyond the text");
    state.k = null;
  }
  if (!live && state.shade === "rollout") {
    notices.push("a report has no rollout");
    state.shade = "looks";
  }
  if (!live && state.view === "steps") {
    notices.push("a report has no steps");
    state.view = "map";
  }
  if (!((state.lo > 0 || state.scale === "linear") && state.hi > state.lo && state.hi <= 1)) {
    notices.push("the colour bounds do not fit");
    Object.assign(state, rescaled(state.scale, 0, run.longest), { hi: 1 });
  }
  return { state, notices };
}
