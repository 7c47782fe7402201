// Elements, made in one line. Text always goes in as text, never as HTML.

type Child = Node | string | null | undefined | false;

interface Options {
  class?: string;
  title?: string;
  attrs?: Record<string, string | number | boolean | null | undefined>;
  on?: { [K in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[K]) => void };
}

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  options: Options = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (options.class) node.className = options.class;
  if (options.title) node.title = options.title;
  for (const [name, value] of Object.entries(options.attrs ?? {})) setAttr(node, name, value);
  for (const [name, handler] of Object.entries(options.on ?? {}))
    node.addEventListener(name, handler as (event: Event) => void);
  node.append(...children.filter((child): child is Node | string => child != null && child !== false));
  return node;
}

export function setAttr(node: Element, name: string, value: string | number | boolean | null | undefined): void {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}

const SVG = "http://www.w3.org/2000/svg";

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attrs: Record<string, string | number> = {},
  ...children: (Node | string)[]
): SVGElementTagNameMap[K] {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attrs)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

// Small drawings for buttons, 20 x 20, in the colour of the text.
const PATHS: Record<string, string> = {
  share:
    "M8 11a3 3 0 0 0 4.5.3l2.5-2.5a3 3 0 0 0-4.2-4.2L9.5 5.9M12 9a3 3 0 0 0-4.5-.3L5 11.200a3 3 0 0 0 4.2 4.2l1.200-1.200",
  export: "M10 3v9m0 0 3.500-3.500M10 12 6.500 8.500M4 14v2.500h12V14",
  theme: "M10 3a7 7 0 1 0 7 7 5.500 5.500 0 0 1-7-7Z",
  help: "M7.500 7.500a2.500 2.500 0 1 1 3.600 2.200c-.7.4-1.100.9-1.100 1.700M10 14.500v.1",
  plus: "M10 4v12M4 10h12",
  minus: "M4 10h12",
  fit: "M4 8V4h4M16 8V4h-4M4 12v4h4M16 12v4h-4",
  up: "m5 12 5-5 5 5",
  down: "m5 8 5 5 5-5",
  close: "m5 5 10 10M15 5 5 15",
  menu: "M4 6h12M4 10h12M4 14h12",
  run: "M6 4.500v11l9-5.500Z",
  edit: "M4 16h2.800L15.500 7.300 12.700 4.500 4 13.200ZM11 6.200l2.800 2.800",
  find: "M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4Zm3.700 8.700L16 16",
};

export function icon(name: keyof typeof PATHS | string): SVGSVGElement {
  const path = svg("path", {
    d: PATHS[name] ?? "",
    fill: "none",
    stroke: "currentColor",
    "stroke-width": 1.6,
    "stroke-linecap": "round",
    "stroke-linejoin": "round",
  });
  return svg("svg", { viewBox: "0 0 20 20", width: 18, height: 18, "aria-hidden": "true", focusable: "false" }, path);
}

// What went wrong, told apart from what a view says otherwise.
export function problem(text: string): HTMLElement {
  return el("span", { class: "problem" }, text);
}

export function retryButton(click: () => void): HTMLButtonElement {
  return el("button", { class: "button retry", attrs: { type: "button" }, on: { click } }, "Retry");
}

// A name that may be long, as far as it is shown: what is cut off is said to be.
export function shortened(text: string, most: number): string {
  const letters = [...text];
  return letters.length > most ? `${letters.slice(0, most).join("").trimEnd()}…` : text;
}

export function clear(node: Element): void {
  node.replaceChildren();
}

// A canvas of this size with nothing on it. To set a size, even the same, takes new memory and lays the page out again.
export function blank(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const context = canvas.getContext("2d")!;
  if (canvas.width === width && canvas.height === height) context.clearRect(0, 0, width, height);
  else [canvas.width, canvas.height] = [width, height];
  return context;
}

// At most one call a frame, with the last arguments.
export function eachFrame<A extends unknown[]>(work: (...args: A) => void): (...args: A) => void {
  let last: A | null = null;
  return (...args: A) => {
    if (last === null) {
      requestAnimationFrame(() => {
        const now = last!;
        last = null;
        work(...now);
      });
    }
    last = args;
  };
}

export function debounced<A extends unknown[]>(wait: number, work: (...args: A) => void): (...args: A) => void {
  let timer = 0;
  return (...args: A) => {
    clearTimeout(timer);
    timer = window.setTimeout(() => work(...args), wait);
  };
}

// Whether it is pointed at by fingers, which neither hover nor press keys.
export function touched(): boolean {
  return matchMedia("(pointer: coarse)").matches;
}

export function clamp(x: number, low: number, high: number): number {
  return Math.min(Math.max(x, low), high);
}

// What to do, to whom has no pointer.
export function forTouch(words: string): string {
  if (!touched()) return words;
  return words
    .replace("Point at a token, or click one,", "Tap a token")
    .replace("Point at", "Tap")
    .replace("click goes there", "tap again goes there")
    .replace(" or at ", " or ");
}
