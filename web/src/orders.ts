// Waiting for an order: a run, a reading, effects. It is told how it goes; at the end it is there, failed, or taken back.

import { type OrderInfo, type Source, whole } from "./source";

export class TakenBack extends Error {
  override message = "it was taken back";
}

export interface Waiting {
  done: Promise<void>;
  leave: () => void; // nobody waits for it any more: it is taken back
}

export function waitFor(source: Source, id: string, told: (order: OrderInfo) => void): Waiting {
  let leave = () => {};
  const done = new Promise<void>((done, failed) => {
    const close = source.events(id, (order) => {
      told(order);
      if (order.state === "done") done();
      else if (order.state === "failed") failed(new Error(order.problem ? whole(order.problem) : "it failed"));
      else if (order.state === "cancelled") failed(new TakenBack());
    });
    leave = () => {
      close();
      void source.close(id).catch(() => undefined);
      failed(new TakenBack());
    };
  });
  return { done, leave };
}

// Where it stands: "waiting, place 2", "running 3 of 30".
export function where(order: OrderInfo): string {
  if (order.state === "queued") return `waiting, place ${order.position}`;
  return `${order.stage}${order.total ? ` ${order.done} of ${order.total}` : ""}`;
}

// What is told of the first run while there is nothing to see of it.
export function toCome({ state }: OrderInfo): string {
  if (state === "queued")
    return "The server runs one text at a time: this one waits for its turn and begins by itself.";
  return "The map of each layer appears here as soon as the layer is done.";
}
