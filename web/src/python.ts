// What is on the screen as a program: text, edits, target, head, and all that the views show of it.

import type { components } from "./api";
import { copyShown } from "./clipboard";
import type { Second } from "./compare";
import type { Context } from "./context";
import { el } from "./dom";
import { dialog } from "./export";
import type { Cells } from "./grid";
import { asked } from "./why";

// What only the views know of themselves.
export interface Views {
  rectangle: () => Cells | null; // what the map shows, if not all of it
  second: () => Second | null; // what is beside it, if two maps are shown
  told: () => { token: string; than: string } | null; // the two tokens whose change is told above
}

export class CopyPython {
  readonly button = el(
    "button",
    {
      class: "button quiet",
      title: "what is on the screen as a program",
      attrs: { type: "button", "aria-haspopup": "dialog" },
      on: { click: () => void this.open() },
    },
    "Python",
  );
  readonly node: HTMLDialogElement;
  private code = el("pre", { class: "python", attrs: { tabindex: 0 } });

  constructor(
    private context: Context,
    private views: Views,
  ) {
    const copy = el("button", { class: "button", attrs: { type: "button" } }, "Copy");
    copy.addEventListener("click", () => void copyShown(context, this.code));
    this.node = dialog("As Python", this.code, el("p", {}, copy));
    this.node.classList.add("wide");
  }

  private async open(): Promise<void> {
    const { context } = this;
    const run = context.run.value;
    if (!run) return;
    try {
      const { layer, head } = context.state;
      const path = `/api/runs/${run.asked}/python/${layer}/${head}?${this.given()}`;
      const found = await asked<components["schemas"]["Python"]>(context.source, path);
      this.code.textContent = found.python;
      this.node.showModal();
    } catch (error) {
      context.failed(error, () => void this.open());
    }
  }

  private given(): URLSearchParams {
    const { q, k, target, pool, path, rail } = this.context.state;
    const given = new URLSearchParams();
    const put = (name: string, value: string | number | null | undefined) => {
      if (value !== null && value !== undefined && value !== "") given.set(name, String(value));
    };
    put("q", q.join(","));
    put("k", k);
    if (!q.length && k === null) {
      const part = this.views.rectangle();
      put("rows", part && `${part.q0}:${part.q1}`);
      put("cols", part && `${part.k0}:${part.k1}`);
      put("pool", pool);
    }
    const told = this.views.told();
    put("token", told?.token ?? target.token);
    put("than", told?.than ?? target.than);
    put("after", target.after);
    put("also", this.parts(told !== null).join(","));
    if (rail === "path" && q.length) {
      const run = this.context.run.value!;
      const place = (number: number) => run.info.layers.findIndex((layer) => layer.number === number);
      put("from", path?.from ?? q.at(-1));
      put("taken", path?.taken.map(([number, key]) => `${place(number)}.${key}`).join(","));
    }
    const second = this.views.second();
    if (second) {
      put("beside", `${second.run},${second.layer},${second.head}`);
      put("beside_q", second.q.join(","));
      put("beside_k", second.k);
      if (second.difference) put("difference", "true");
    }
    return given;
  }

  // What is shown beside the cells that are pinned.
  private parts(told: boolean): string[] {
    const { q, k, shade, rail, view, effects } = this.context.state;
    const shades = {
      looks: q.length && k !== null ? "row" : "",
      looked: "column",
      received: "received",
      rollout: q.length ? "rollout" : "",
    };
    const rails = { heads: "", path: "path", link: "link", effects: effects ? "effects" : "" };
    const views = [view === "wall" ? "heads" : "", view === "written" ? "written" : ""];
    return [shades[shade], rails[rail], ...views, told ? "likely" : ""].filter(Boolean);
  }
}
