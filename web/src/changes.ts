// Hearing of changes: what is told is the new value and the one before, from the first change on.

import { effect, type ReadonlySignal, untracked } from "@preact/signals-core";

// Only the signal itself is listened to, whatever the listener reads. Returns what stops it.
export function onChange<T>(signal: ReadonlySignal<T>, told: (value: T, before: T) => void): () => void {
  let before = signal.peek();
  return effect(() => {
    const { value } = signal;
    if (Object.is(value, before)) return;
    const was = before;
    before = value;
    untracked(() => told(value, was));
  });
}
