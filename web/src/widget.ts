// The explorer as a notebook widget: the same page in a frame of its own, so that neither disturbs the other.

import { type Ask, Carrier, type Model } from "./carrier";

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const carrier = new Carrier(model);
  const frame = document.createElement("iframe");
  frame.title = "Sightline explorer";
  frame.style.cssText = `display: block; width: 100%; height: ${Number(model.get("height")) || 640}px; border: 1px solid #8884; border-radius: 6px;`;
  (frame as HTMLIFrameElement & { sightline: Ask }).sightline = carrier.ask;
  el.append(frame);
  void fill(frame, carrier);
  return () => {
    carrier.close();
    frame.remove();
  };
}

async function fill(frame: HTMLIFrameElement, carrier: Carrier): Promise<void> {
  const [script, style] = await Promise.all(
    ["/static/app.js", "/static/app.css"].map(async (path) => (await carrier.ask(path)).text()),
  );
  frame.srcdoc = [
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>Sightline</title>',
    `<style>${style.replaceAll("</", "<\\/")}</style></head><body><div id="app"></div>`,
    `<script type="module">${script.replaceAll("</script", "<\\/script")}</script></body></html>`,
  ].join("");
}

export default { render };
