"""How cost grows with the context, drawn from results/growth-*.json: time on the left, memory on the right."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
# Each picture, and the results it is drawn from.
PICTURES = {DOCS / "images" / f"growth-{kind}.svg": f"growth-{kind}" for kind in ("cpu", "gpu")}
# One colour and one sign for each call, told apart without colours too.
LOOKS = {
    "attention": ("#0072b2", "o", "sl.attention"),
    "observe": ("#d55e00", "s", "sl.observe"),
    "torch SDPA": ("#555555", "x", "torch SDPA"),
    "eager, with its map": ("#cc79a7", "^", "eager, with its map"),
}


def digest(results: dict) -> str:
    """What a picture was drawn from."""
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()[:16]


def is_current(picture: Path, results: dict) -> bool:
    return picture.exists() and f"results {digest(results)}" in picture.read_text("utf-8")


def draw(results: dict, path: Path) -> None:
    """Write the picture as SVG, with letters as letters and the sum of the results inside."""
    from sightline.plots.canvas import FAINT, new_figure, style

    with style():
        figure = new_figure(9.6, 4.2)
        sides = figure.subplots(1, 2)
        for axes, key, what, unit in (
            (sides[0], "median_ms", "time", 1e3),
            (sides[1], "mebibytes", "memory", 1.0),
        ):
            for call, (colour, sign, label) in LOOKS.items():
                points = [row for row in results["results"] if row["call"] == call and row[key] > 0]
                if not points:
                    continue
                x, y = [row["tokens"] for row in points], [row[key] / unit for row in points]
                fit = next((row for row in results["results"] if row["call"] == f"exponent, {call}"), {})
                power = "" if fit.get(what) is None else f": grows as n^{fit[what]:.2f}"
                axes.plot(x, y, color=colour, marker=sign, markersize=4, linewidth=1.4, label=label + power)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel("tokens in the context (n)")
            axes.set_ylabel("seconds" if what == "time" else "MiB beyond q, k, v and the output")
            axes.set_title(f"{what} of one causal call", loc="left")
            axes.xaxis.set_major_formatter(lambda value, _: f"{int(value):,}")
            axes.tick_params(axis="x", labelrotation=30)
            axes.grid(color=FAINT, alpha=0.25, linewidth=0.5)
            axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.32), ncols=2)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part")
        about = {"Date": None, "Description": f"made by benchmarks/plot.py from results {digest(results)}"}
        figure.savefig(temporary, format="svg", metadata=about)
        temporary.replace(path)
