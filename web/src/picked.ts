// A picture to run a model on: chosen, dropped or pasted. One that is too large is made smaller here.

import { el } from "./dom";
import type { Limits } from "./source";

const KINDS = ["image/png", "image/jpeg"];
const SIDE = 2048;

export class Picked {
  readonly node: HTMLElement;
  private input = el("input", { attrs: { type: "file", accept: KINDS.join(","), id: "picked" } });
  private shown = el("img", { class: "picked", attrs: { alt: "the picture that was chosen", hidden: true } });
  private about = el("p", { class: "fine", attrs: { role: "status" } }, "PNG or JPEG; it stays on this server.");
  private file: { name: string; content: Blob } | null = null;
  limits: Limits | null = null;

  constructor() {
    const label = el("label", { class: "picked-label", attrs: { for: "picked" } }, "A picture ", this.input);
    this.node = el("div", { class: "picked-drop", attrs: { hidden: true } }, label, this.shown, this.about);
    this.input.addEventListener("change", () => void this.take(this.input.files?.[0]));
    this.node.addEventListener("dragover", (event) => event.preventDefault());
    this.node.addEventListener("drop", (event) => {
      event.preventDefault();
      void this.take(event.dataTransfer?.files[0]);
    });
    document.addEventListener("paste", (event) => {
      if (!this.node.hidden && this.node.offsetParent) void this.take(event.clipboardData?.files[0]);
    });
  }

  // The picture as the server takes it, and what it is called.
  async sent(): Promise<{ name: string; image: string }> {
    if (!this.file) throw new Error("Choose a picture first.");
    const bytes = new Uint8Array(await this.file.content.arrayBuffer());
    let text = "";
    for (let i = 0; i < bytes.length; i += 1 << 15) text += String.fromCharCode(...bytes.subarray(i, i + (1 << 15)));
    return { name: this.file.name, image: btoa(text) };
  }

  private async take(file: File | undefined): Promise<void> {
    if (!file) return;
    this.file = null;
    this.shown.hidden = true;
    const say = (text: string) => {
      this.about.textContent = text;
    };
    if (!KINDS.includes(file.type)) return say(`${file.name} is neither PNG nor JPEG.`);
    try {
      const picture = await createImageBitmap(file);
      const { image_bytes, image_pixels } = this.limits ?? { image_bytes: 0, image_pixels: 0 };
      const large = file.size > image_bytes || picture.width * picture.height > image_pixels;
      const content = large ? await smaller(picture) : file;
      if (content.size > image_bytes) return say(`${file.name} is too large, made smaller too.`);
      this.file = { name: file.name.slice(0, 200) || "picture", content };
      URL.revokeObjectURL(this.shown.src);
      this.shown.src = URL.createObjectURL(content);
      this.shown.hidden = false;
      const size = `${picture.width} × ${picture.height}`;
      say(large ? `${file.name}, ${size}: made smaller, to at most ${SIDE} a side.` : `${file.name}, ${size}`);
    } catch {
      say(`${file.name} cannot be read as a picture.`);
    }
  }
}

async function smaller(picture: ImageBitmap): Promise<Blob> {
  const by = Math.min(1, SIDE / Math.max(picture.width, picture.height));
  const canvas = el("canvas", {
    attrs: { width: Math.round(picture.width * by), height: Math.round(picture.height * by) },
  });
  canvas.getContext("2d")!.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done, failed) =>
    canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("no picture"))), "image/jpeg", 0.92),
  );
}
