"""The numbers of README.md and docs/, made from benchmarks/results: nobody types a figure.

    python benchmarks/tables.py            # which blocks and pictures differ from the results; exit code 1 if any does
    python benchmarks/tables.py --write    # fill them in

A block of a page lies between `<!-- bench:NAME -->` and `<!-- /bench -->`; NAME is a function of `blocks.py`. Pictures
are drawn by `plot.py` and hold the sum of the results they were drawn from.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from sources import sum_of  # noqa: E402

ROOT = HERE.parent
BLOCK = re.compile(r"(<!-- bench:([a-z-]+) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)


class Results:
    """All result files of a folder; what was not measured is None, and so is what was measured with --quick."""

    def __init__(self, folder: Path = HERE / "results", current: Callable[[str], str | None] | None = None) -> None:
        self.current = sum_of if current is None else current  # of the code as it is, for each file of results
        self.files: dict[str, dict] = {}
        self.quick: list[str] = []
        self.asked: set[str] = set()  # files that somebody read rows of
        for path in sorted(folder.glob("*.json")):
            found = json.loads(path.read_text("utf-8"))
            if found.get("quick"):
                self.quick.append(path.name)
            else:
                self.files[path.stem] = found

    def machine(self, *names: str) -> dict | None:
        """The machine of the first of some files that is there."""
        return next((self.files[name]["machine"] for name in names if name in self.files), None)

    def rows(self, name: str, /, **match: object) -> list[dict]:
        """The rows of a file whose entries are these."""
        self.asked.add(name)
        found = self.files.get(name, {"results": []})["results"]
        return [row for row in found if all(row.get(key) == value for key, value in match.items())]

    def row(self, name: str, /, **match: object) -> dict | None:
        return next(iter(self.rows(name, **match)), None)

    def is_old(self, name: str) -> bool:
        """Whether some of a file was measured on other code than there is now, or nobody knows on which."""
        if name not in self.files or (now := self.current(name)) is None:
            return False
        return any(row.get("sources") != now for row in self.files[name]["results"])

    def figure(self, name: str, key: str, /, **match: object) -> float | None:
        """One number: `key` is the way to it, as in `sightline.median_ms`."""
        found: object = self.row(name, **match)
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found if isinstance(found, int | float) else None


def pages() -> list[Path]:
    """Every page whose numbers are made here."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, results: Results) -> str:
    """A page with its blocks made anew."""
    import blocks

    def make(match: re.Match[str]) -> str:
        name = match.group(2)
        if name not in blocks.BLOCKS:
            raise SystemExit(f"there is no block {name!r}: {', '.join(blocks.BLOCKS)}")
        block = blocks.BLOCKS[name](results).strip()
        note = f"\n\n{blocks.OLD_NOTE}" if blocks.OLD in block and name in blocks.FIRST else ""
        return f"{match.group(1)}{block}{note}\n{match.group(4)}"

    return BLOCK.sub(make, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="fill in what differs")
    options = parser.parse_args()
    import plot

    results = Results()
    stale = []
    for page in pages():
        old = page.read_text("utf-8")
        new = filled(old, results)
        if new != old:
            stale.append(page)
            if options.write:
                page.write_text(new, "utf-8")
    for picture, name in plot.PICTURES.items():
        if name in results.files and not plot.is_current(picture, results.files[name]):
            stale.append(picture)
            if options.write:
                plot.draw(results.files[name], picture)
    for name in results.quick:
        print(f"left out: {name} was measured with --quick, and such figures are not published")
    for path in stale:
        print(("written: " if options.write else "differs from the results: ") + str(path.relative_to(ROOT)))
    if stale and not options.write:
        sys.exit("python benchmarks/tables.py --write fills them in")


if __name__ == "__main__":
    main()
