// Builds the page into the Python package: a script and a style sheet, the docs of the API, and the notebook widget.

import { appendFile, copyFile, mkdir, readdir, readFile, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, context } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "..", "src", "sightline", "web", "static");
const options = {
  entryPoints: {
    app: join(here, "src", "main.ts"),
    docs: join(here, "src", "docs.ts"),
    widget: join(here, "src", "widget.ts"),
  },
  outdir: out,
  bundle: true,
  format: "esm",
  target: ["es2022"],
  minify: !process.argv.includes("--watch"),
  loader: { ".png": "dataurl", ".svg": "dataurl" },
  legalComments: "linked",
  logLevel: "warning",
};

await mkdir(out, { recursive: true });
for (const name of await readdir(out)) if (name !== ".gitignore") await rm(join(out, name), { recursive: true });
for (const name of await readdir(join(here, "pages"))) await copyFile(join(here, "pages", name), join(out, name));
if (process.argv.includes("--watch")) await (await context(options)).watch();
else {
  await build(options);
  // What is built in comes with its licence: here those whose own files say nothing of it.
  const licence = await readFile(join(here, "node_modules", "@preact", "signals-core", "LICENSE"), "utf8");
  await appendFile(join(out, "app.js.LEGAL.txt"), `\n@preact/signals-core:\n${licence.trim().replace(/^/gm, "  ")}\n`);
}
