// A text and a model to run on it: typed, out of the gallery, or that of a run, changed.

import { el, icon } from "./dom";
import EXAMPLES from "./examples.json";
import { Picked } from "./picked";
import { type Limits, sentence } from "./source";

export interface Example {
  name: string;
  text: string;
  about: string; // what to look for in it
  model: string; // with which it was found
  found: string; // what was found, and where
  layer: number;
  head: number;
  q: number;
  k: number;
  weight: number;
  control?: string; // the name of another one, without which it means little
}

export const EXAMPLE = EXAMPLES[0].text;

export function example(name: string): Example | null {
  return (EXAMPLES as Example[]).find((one) => one.name === name) ?? null;
}

export interface Order {
  text: string;
  model: string;
  generate: number;
  image?: string; // in base64: then the text is its name
  example: Example | null; // if it is as the gallery has it
  edits: string | null; // the run whose text it was
}

export class Composer {
  readonly node: HTMLElement;
  private heading = el("h2", {}, "Look at a text");
  private lead = el("p", { class: "lead" });
  private text = el("textarea", {
    attrs: {
      rows: 4,
      placeholder: "Type or paste a text",
      "aria-label": "text to run",
      spellcheck: "false",
      autocomplete: "off",
    },
  });
  private model = el("select", { attrs: { "aria-label": "model" } });
  private generate = el("input", {
    attrs: { type: "number", min: 0, max: 512, value: 0, "aria-label": "tokens to generate" },
  });
  private problem = el("p", { class: "problem", attrs: { role: "alert", hidden: true } });
  private generateLabel = el("label", { class: "generate" }, "then generate ", this.generate, " tokens");
  private hint = el("p", { class: "look-for", attrs: { role: "status", hidden: true } });
  private gallery = el("ul", { class: "gallery", attrs: { "aria-label": "examples" } });
  private row = el("div", { class: "composer-row" });
  private picked = new Picked();
  private galleryHeading = el("h3", { class: "gallery-heading" }, "Or an example, and what to look for in it");
  private chosen: Example | null = null;
  private edits: string | null = null;

  constructor(
    private run: (order: Order) => Promise<void>,
    private close: () => void,
  ) {
    this.row.append(
      this.model,
      this.generateLabel,
      el("button", { class: "button quiet cancel", attrs: { type: "button" }, on: { click: close } }, "Cancel"),
      el("button", { class: "button primary", attrs: { type: "submit" } }, icon("run"), "Run"),
    );
    const form = el(
      "form",
      {},
      this.heading,
      this.lead,
      this.text,
      this.picked.node,
      this.hint,
      this.row,
      this.problem,
      this.galleryHeading,
      this.gallery,
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.submit();
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void this.submit();
      if (event.key === "Escape" && !this.node.classList.contains("alone")) this.close();
      event.stopPropagation();
    });
    this.text.addEventListener("input", () => this.say());
    this.model.addEventListener("change", () => this.fit());
    this.node = el("section", { class: "composer", attrs: { hidden: true, "aria-label": "new text" } }, form);
  }

  setLimits(limits: Limits): void {
    const { models } = limits;
    this.picked.limits = limits;
    this.model.replaceChildren(
      ...models.map((m) =>
        el(
          "option",
          { attrs: { value: m.name, "data-causal": m.causal ? "1" : null, "data-image": m.image ? "1" : null } },
          m.title,
        ),
      ),
    );
    this.row.hidden = !models.length;
    if (!models.length) {
      this.problem.hidden = false;
      this.problem.textContent = "This server has no models: start it with --model, or open a saved folder.";
    }
    this.gallery.replaceChildren(...(EXAMPLES as Example[]).map((one) => this.entry(one)));
    this.fit();
  }

  fill(text: string): void {
    if (!this.text.value) this.text.value = text;
    this.say();
  }

  // The text of a run, to be changed; what comes of it stands beside that run.
  edit(run: string, text: string, model: string | null): void {
    this.begin(run, text);
    if (model && this.offers(model)) this.model.value = model;
    this.fit();
  }

  // A text of one's own, beside no other.
  anew(): void {
    if (this.edits !== null) this.begin(null, "");
  }

  // One out of the gallery, without a look at the text box.
  async runExample(one: Example, beside: string | null = null): Promise<void> {
    this.take(one);
    this.edits = beside;
    await this.submit();
  }

  focus(): void {
    this.text.focus();
  }

  private begin(edits: string | null, text: string): void {
    this.edits = edits;
    this.text.value = text;
    this.heading.textContent = edits === null ? "Look at a text" : "Change the text, and see both side by side";
    this.say();
  }

  private offers(model: string): boolean {
    return [...this.model.options].some((option) => option.value === model);
  }

  private entry(one: Example): HTMLElement {
    const button = el(
      "button",
      { class: "example", attrs: { type: "button" }, on: { click: () => this.take(one) } },
      el("b", {}, one.name),
      el("span", {}, one.about),
    );
    return el("li", {}, button);
  }

  private take(one: Example): void {
    this.begin(null, one.text);
    if (this.offers(one.model)) this.model.value = one.model;
    this.generate.value = "0";
    this.fit();
    this.node.scrollTo({ top: 0 });
  }

  // What to look for, as long as the text is that of an example; and what was found, if it is its model too.
  private say(): void {
    const { value } = this.text;
    this.chosen = (EXAMPLES as Example[]).find((one) => one.text === value) ?? null;
    const known = this.chosen?.model === this.model.value;
    this.hint.hidden = !this.chosen || this.readsImages || this.row.hidden;
    this.hint.textContent = this.chosen ? `${this.chosen.about} ${known ? this.chosen.found : ""}`.trim() : "";
  }

  private fit(): void {
    const causal = this.model.selectedOptions[0]?.dataset.causal === "1";
    this.generateLabel.hidden = !causal;
    if (!causal) this.generate.value = "0";
    this.picked.node.hidden = !this.readsImages;
    // Nothing is asked for that cannot be run.
    this.text.hidden = this.gallery.hidden = this.galleryHeading.hidden = this.readsImages || this.row.hidden;
    const what = this.readsImages ? "Look at a picture" : "Look at a text";
    const parts = this.readsImages ? "which patch" : "which token";
    this.lead.textContent = `A model reads it, and you see ${parts} looked at which: in every head of every layer, down to each number.`;
    if (this.readsImages || this.edits === null) this.heading.textContent = what;
    this.say();
  }

  // Whether the model that is chosen takes a picture in place of a text.
  private get readsImages(): boolean {
    return this.model.selectedOptions[0]?.dataset.image === "1";
  }

  private async submit(): Promise<void> {
    this.problem.hidden = true;
    try {
      if (this.readsImages) {
        const { name, image } = await this.picked.sent();
        return await this.run({ text: name, model: this.model.value, generate: 0, image, example: null, edits: null });
      }
      const [text, model, generate] = [this.text.value, this.model.value, Number(this.generate.value) || 0];
      if (!text.trim()) throw new Error("Type a text first.");
      const known = this.chosen?.model === model && !generate;
      await this.run({ text, model, generate, example: known ? this.chosen : null, edits: this.edits });
    } catch (error) {
      this.problem.hidden = false;
      this.problem.textContent = sentence(error);
    }
  }
}
