// The API on one page, read from its own description: nothing is fetched from elsewhere.

import "./docs.css";
import { el } from "./dom";

interface Operation {
  description?: string;
  summary?: string;
  parameters?: { name: string; in: string; required?: boolean; schema?: { type?: string; default?: unknown } }[];
  requestBody?: { content: Record<string, { schema: { $ref?: string } }> };
}

async function main(): Promise<void> {
  const host = document.getElementById("docs")!;
  const answer = await fetch("/api/openapi.json");
  const api = (await answer.json()) as {
    info: { description: string };
    paths: Record<string, Record<string, Operation>>;
    components: { schemas: Record<string, { properties?: Record<string, { description?: string; type?: string }> }> };
  };
  // The shape that a body has is named by its last word.
  const sent = (content: Record<string, { schema: { $ref?: string } }>) => {
    const name = content["application/json"]?.schema.$ref?.split("/").at(-1) ?? "";
    return api.components.schemas[name]?.properties ?? {};
  };
  const sections = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => {
      const rows = (operation.parameters ?? []).map((p) =>
        el(
          "tr",
          {},
          el("th", { attrs: { scope: "row" } }, p.name),
          el("td", {}, p.in),
          el("td", {}, p.schema?.type ?? ""),
          el(
            "td",
            {},
            p.required ? "needed" : p.schema?.default === undefined ? "" : `${p.schema.default} if left out`,
          ),
        ),
      );
      return el(
        "section",
        {},
        el("h2", {}, el("span", { class: `method ${method}` }, method.toUpperCase()), el("code", {}, path)),
        el("p", {}, operation.description ?? operation.summary ?? ""),
        rows.length ? el("table", {}, el("tbody", {}, ...rows)) : null,
        operation.requestBody ? body(sent(operation.requestBody.content)) : null,
      );
    }),
  );
  host.append(
    el("p", {}, api.info.description),
    el(
      "p",
      {},
      "Errors are JSON: error, expected, got, try. The whole description: ",
      el("a", { attrs: { href: "/api/openapi.json" } }, "/api/openapi.json"),
      ". ",
      el("a", { attrs: { href: "/" } }, "Back to the explorer"),
    ),
    ...sections,
  );
}

function body(properties: Record<string, { description?: string; type?: string }>): HTMLElement {
  const rows = Object.entries(properties).map(([name, about]) =>
    el(
      "tr",
      {},
      el("th", { attrs: { scope: "row" } }, name),
      el("td", {}, "body"),
      el("td", {}, about.type ?? ""),
      el("td", {}, about.description ?? ""),
    ),
  );
  return el("table", {}, el("tbody", {}, ...rows));
}

void main();
