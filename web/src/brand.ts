import { svg } from "./dom";

// The sign of the program, drawn here so that a report needs no file.
export function mark(): SVGSVGElement {
  const cells: [number, number, string][] = [
    [6, 6, "#fcfdbf"],
    [6, 13, "#e75263"],
    [13, 13, "#fec287"],
    [6, 20, "#721f81"],
    [13, 20, "#b73779"],
    [20, 20, "#fcfdbf"],
  ];
  return svg(
    "svg",
    { viewBox: "0 0 32 32", width: 22, height: 22, "aria-hidden": "true" },
    svg("rect", { width: 32, height: 32, rx: 7, fill: "#1b1035" }),
    ...cells.map(([x, y, fill]) => svg("rect", { x, y, width: 5, height: 5, rx: 1, fill })),
  );
}
