// What can be copied: a page that is not of this machine, over plain HTTP, has no clipboard.

import type { Context } from "./context";

// Whether it is in the clipboard now.
export async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

// A program that is shown: into the clipboard, or marked, to be copied by hand.
export async function copyShown(context: Context, node: HTMLElement): Promise<void> {
  if (await copied(node.textContent ?? "")) return context.say("copied");
  getSelection()?.selectAllChildren(node);
  context.say("There is no clipboard here: the program is marked, copy it.");
}
