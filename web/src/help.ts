// The list of keys, and a switch for those who need single keys for something else.

import { el, touched } from "./dom";
import { dialog } from "./export";
import { store, stored } from "./storage";

const KEYS: [string, string][] = [
  ["1 … 7", "Map, Heads, Text, Links, Steps, Compare, All heads"],
  ["[ ]", "head before, head after"],
  ["{ }", "layer before, layer after"],
  ["arrows", "move the cell, the chosen token or the head"],
  ["Enter", "pin or open"],
  ["Esc", "release what is pinned"],
  ["+ − 0", "zoom in, out, whole map"],
  ["Backspace", "undo the last zoom"],
  ["L", "logarithmic or linear colours"],
  ["M", "mean or largest of pooled cells"],
  ["F", "fit the colours to what is visible, once"],
  ["D", "diagonal on or off"],
  ["R", "rollout: what fed the pinned token"],
  ["S", "steps of the pinned cell"],
  ["N", "the next strong link of this head"],
  ["A", "the next place like the pinned one"],
  ["B", "bookmarks"],
  ["C", "cut, scale or boost what is looked at"],
  ["/", "find words in the text; Enter goes on, Shift+Enter back"],
  ["E", "export"],
  ["?", "this list"],
];

const POINTER =
  "Hover previews, click pins, Esc releases. Shift-click adds a query; Alt-click on a token pins it as key. Shift-drag on the map zooms into a rectangle.";
const FINGERS = "A tap shows what is under it, a second tap pins it. Two fingers move the map, one scrolls the page.";
const BACK = " The browser's Back undoes a pin or a zoom."; // it is not of a frame in a notebook

export class Help {
  readonly node: HTMLDialogElement;
  private single = el("input", { attrs: { type: "checkbox", id: "single-keys" } });

  // `served`: by a server, which has a page about its API.
  constructor(tour: () => void, served: boolean) {
    const walk = el("button", { class: "button", attrs: { type: "button" } }, "Take the tour");
    walk.addEventListener("click", () => {
      this.node.close();
      tour();
    });
    this.single.checked = stored("keys") !== "off";
    this.single.addEventListener("change", () => store("keys", this.single.checked ? "on" : "off"));
    const rows = KEYS.map(([key, what]) =>
      el("tr", {}, el("th", { attrs: { scope: "row" } }, el("kbd", {}, key)), el("td", {}, what)),
    );
    const keys = el(
      "details",
      { class: "all-keys" },
      el("summary", {}, "Keys"),
      el("table", { class: "keys" }, el("tbody", {}, ...rows)),
      el("p", {}, el("label", { attrs: { for: "single-keys" } }, this.single, " single-key shortcuts")),
    );
    keys.open = !touched();
    const numbers = ["The numbers are also at ", el("a", { attrs: { href: "/api/docs" } }, "/api/docs"), ". "];
    this.node = dialog(
      "Help",
      el("p", {}, touched() ? FINGERS + (window.top === window ? BACK : "") : POINTER),
      el("p", {}, walk),
      keys,
      el("p", { class: "fine" }, ...(served ? numbers : []), "The map is moved by Leaflet (BSD-2)."),
    );
  }

  get keysOn(): boolean {
    return this.single.checked;
  }

  open(): void {
    this.node.showModal();
  }
}
