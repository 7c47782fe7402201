// The server closes no run that a page says it shows.

import { onChange } from "./changes";
import type { Context } from "./context";
import { Refused } from "./source";

// Milliseconds between two words to the server that a run is looked at.
const LOOK = 30_000;

export function sayLooked(context: Context): void {
  const viewer = Math.random().toString(36).slice(2);
  const look = () => {
    if (context.way || !context.source.live) return;
    const { run, other } = context;
    for (const [id, by] of [
      [run.value?.id, ""],
      [context.state.other ? other.value?.id : undefined, "-beside"],
    ])
      if (id)
        context.source.look(id, viewer + by).catch((error) => {
          if (error instanceof Refused && error.status === 404) context.say("the server has closed this run");
        });
  };
  onChange(context.run, look);
  onChange(context.other, look);
  window.setInterval(look, LOOK);
}
