// What the tabs of the rail hear: they load when they are seen and are of something else, and draw when it only looks otherwise.

import { onChange } from "./changes";
import type { Context } from "./context";
import type { State } from "./state";

export class Seen {
  now = false;

  // `of`: what they are of, beside the run; `looks`: what they only look otherwise by.
  constructor(
    context: Context,
    of: (keyof State)[],
    looks: (keyof State)[],
    private load: (anew: boolean) => void,
    draw: () => void,
  ) {
    const seen = (act: () => void) => () => this.now && act();
    context.store.on(
      [...of, "run"],
      seen(() => load(false)),
    );
    context.store.on(looks, seen(draw));
    onChange(
      context.run,
      seen(() => load(true)),
    );
    onChange(context.dark, seen(draw));
    onChange(context.tokens, seen(draw));
    onChange(
      context.again,
      seen(() => load(true)),
    );
  }

  show(now: boolean): void {
    this.now = now;
    if (now) this.load(false);
  }
}
