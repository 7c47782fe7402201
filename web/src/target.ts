// What for, in words: the next token, another one instead, or a token of the text.

import type { components } from "./api";
import type { Context } from "./context";
import { el } from "./dom";
import { dialog } from "./export";
import { aimWords } from "./readings";
import { Refused, sentence } from "./source";
import { visible } from "./tokens";
import { asked } from "./why";
import type { Target } from "./whystate";

type Next = components["schemas"]["Next"];

export class TargetChoice {
  readonly button = el("button", {
    class: "button quiet",
    title: "what it should matter for",
    attrs: { type: "button", "aria-haspopup": "dialog" },
    on: { click: () => void this.open() },
  });
  readonly node: HTMLDialogElement;
  private token = field("target-token", "the next token it predicts");
  private than = field("target-than", "no other");
  private list = el("datalist", { attrs: { id: "target-tokens" } });
  private place = el("select", { attrs: { id: "target-place" } });
  private chips = el("div", { class: "target-chips" });
  private about = el("p", { class: "fine", attrs: { role: "status" } });
  private ask = el("button", { class: "button primary", attrs: { type: "submit" } }, "Ask");

  constructor(private context: Context) {
    const line = (name: string, id: string, input: HTMLElement) =>
      el("p", { class: "target-line" }, el("label", { attrs: { for: id } }, name), input);
    const form = el(
      "form",
      {},
      line("How likely is", "target-token", this.token),
      line("instead of", "target-than", this.than),
      line("after", "target-place", this.place),
      this.about,
      this.chips,
      this.list,
      el("p", {}, this.ask),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.choose();
    });
    this.place.addEventListener("change", () => void this.offer());
    this.node = dialog("What for?", form);
    context.store.on(["target"], () => this.draw());
    this.draw();
  }

  private async open(): Promise<void> {
    const run = this.context.run.value;
    if (!run) return;
    const { target, q } = this.context.state;
    this.token.value = target.token;
    this.than.value = target.than;
    const last = run.tokens.length - 1;
    const options: [string, string][] = [["", `the end (“${run.tokens.label(last)}”)`]];
    const pinned = q.at(-1);
    if (pinned !== undefined && pinned > 0)
      options.push([`${pinned - 1}`, `the token before “${run.tokens.label(pinned)}”: is it predicted?`]);
    if (pinned !== undefined && pinned < last && pinned > 0)
      options.push([`${pinned}`, `“${run.tokens.label(pinned)}”`]);
    if (target.after !== null && !options.some(([value]) => value === `${target.after}`))
      options.push([`${target.after}`, `“${run.tokens.label(target.after)}”`]);
    this.place.replaceChildren(...options.map(([value, text]) => el("option", { attrs: { value } }, text)));
    this.place.value = target.after === null ? "" : String(target.after);
    this.node.showModal();
    await this.offer();
  }

  // What the model would write there, to be clicked instead of typed.
  private async offer(): Promise<void> {
    const run = this.context.run.value!;
    this.chips.replaceChildren();
    this.about.textContent = "";
    this.ask.disabled = false;
    const after = this.place.value;
    if (after !== "" && Number(after) + 1 < run.tokens.length && !this.token.value)
      this.token.value = run.tokens.text(Number(after) + 1);
    try {
      const path = `/api/runs/${run.id}/next?n=12${after === "" ? "" : `&after=${after}`}`;
      const { tokens } = await asked<Next>(this.context.source, path);
      this.about.textContent = "What the model would write next, to choose from:";
      this.list.replaceChildren(...tokens.map(({ text }) => el("option", { attrs: { value: text } })));
      this.chips.replaceChildren(
        ...tokens.slice(0, 8).map(({ text, p }) =>
          el(
            "button",
            {
              class: "chip-button",
              attrs: { type: "button" },
              on: { click: () => this.fill(text) },
            },
            el("bdi", {}, visible(text)),
            ` ${p.toFixed(3)}`,
          ),
        ),
      );
    } catch (error) {
      // They can be typed; a model that writes nothing cannot be asked at all.
      this.about.textContent = sentence(error);
      this.ask.disabled = error instanceof Refused && error.status === 422;
    }
  }

  private fill(text: string): void {
    if (!this.token.value) this.token.value = text;
    else this.than.value = text;
  }

  private choose(): void {
    const target: Target = {
      token: this.token.value,
      than: this.than.value,
      after: this.place.value === "" ? null : Number(this.place.value),
    };
    this.node.close();
    this.context.store.push({ target, of: "influence" });
  }

  private draw(): void {
    this.button.textContent = aimWords(this.context.state.target);
  }
}

function field(id: string, placeholder: string): HTMLInputElement {
  return el("input", {
    class: "target-field",
    attrs: { type: "text", id, placeholder, list: "target-tokens", maxlength: 200, autocomplete: "off" },
  });
}
