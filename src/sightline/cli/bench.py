"""`sightline bench`: measure Sightline on this machine, beside the libraries that are installed."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sightline.errors import InputError

# In a wheel the benchmarks lie inside the package; in a checkout beside src/.
PLACES = (Path(__file__).parents[1] / "benchmarks", Path(__file__).parents[3] / "benchmarks")
ELSEWHERE = {"ladder", "references", "extras", "installs", "peers"}  # a lesson, and targets of make
# How a figure of a result is shown, by its name in the JSON.
FIGURES = {
    "ratio": "{:.2f} of the peer",
    "of_best_torch": "{:.2f} of torch's best kernel",
    "of_best_forward": "{:.2f} of the best plain forward",
    "of_causal": "{:.2f} of the causal pass",
    "of_unwatched": "{:.2f} of the same unwatched",
    "size_ratio": "{:.3f} of the peer's size",
    "microseconds": "{:.1f} µs more than torch",
    "median_ms": "{:.3g} ms",
    "seconds": "{:.3g} s",
    "mebibytes": "{:.1f} MiB",
    "peak_mebibytes": "{:.0f} MiB at the peak",
    "time": "time grows as n^{:.2f}",
    "memory": "memory grows as n^{:.2f}",
}


def bench(
    subjects: Annotated[list[str] | None, typer.Argument(help="What to measure, or all; none lists them.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="See that it runs: small sizes, few rounds.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results, as JSON.")] = Path("sightline-bench"),
) -> None:
    """Measure Sightline beside torch and other libraries, all in one run, and print the figures.

    Without a subject the subjects are listed. Each takes one to a few minutes; with --quick, seconds, and the figures
    then say little. Peers that are not installed are left out. Close other programs first.
    """
    folder = find()
    known = {name: about for name, about in listed(folder).items() if name not in ELSEWHERE}
    if not subjects:
        _list(known)
        return
    chosen = list(known) if "all" in subjects else list(dict.fromkeys(subjects))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise InputError(
            f"there is no benchmark {unknown[0]!r}",
            expected=", ".join(known) + " or all",
            got=unknown[0],
            hint="sightline bench",
        )
    if out.exists() and not out.is_dir():
        raise InputError("this is not a folder", expected="a folder", got=out, hint="--out sightline-bench")
    failed = [name for name in chosen if not _measured(folder / f"{name}.py", out, quick)]
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def find(places: tuple[Path, ...] = PLACES) -> Path:
    """The folder with the benchmarks."""
    for place in places:
        if (place / "harness.py").is_file():
            return place
    raise InputError(
        "the benchmarks are not installed here",
        expected="a folder benchmarks in the package, or in the repository beside src",
        got="neither",
        hint="install the wheel that `make wheel` builds, or run in a clone of the repository",
    )


def listed(folder: Path) -> dict[str, str]:
    """Every benchmark with the first line of its description: the files that use the harness."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        source = path.read_text("utf-8")
        if re.search(r"^(from|import) harness\b", source, re.MULTILINE):
            found[path.stem] = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return found


def figures(row: dict[str, Any]) -> str:
    """What a row of results says, in words.

    >>> figures({"call": "causal", "tokens": 512, "ratio": 1.0144, "runs": 7})
    '1.01 of the peer'
    """
    if "refused" in row:
        return "refused"
    if row.get("fits") is False:
        return "does not fit"
    found = [form.format(row[name]) for name, form in FIGURES.items() if isinstance(row.get(name), int | float)]
    return ", ".join(found)


def _list(known: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, show_header=False, pad_edge=False)
    for name, about in known.items():
        shown.add_row(name, about)
    console = Console(highlight=False)
    console.print(shown)
    console.print("\nsightline bench attention lens   or   sightline bench all --quick")


def _measured(script: Path, out: Path, quick: bool) -> bool:
    """Run one benchmark in a process of its own, say how far it is, and print its table."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    out.mkdir(parents=True, exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.json")}
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"} | ({"SIGHTLINE_BENCH_QUICK": "1"} if quick else {})
    command = [sys.executable, str(script), "--out", str(out)]
    if quick and '"--quick"' in script.read_text("utf-8"):
        command.append("--quick")  # some can leave out whole parts
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        assert process.stdout is not None
        with console.status(f"{script.stem} …") as status:
            for line in process.stdout:
                lines.append(line.rstrip())
                if console.is_terminal:
                    status.update(f"{script.stem}: {lines[-1][: max(console.width - 30, 20)]}")
                else:
                    print(f"{script.stem}: {lines[-1]}", flush=True)
    if process.returncode:
        missing = re.search(r"^ModuleNotFoundError: No module named '([\w.]+)'$", "\n".join(lines), re.MULTILINE)
        if missing:
            console.print(f"{script.stem} needs {missing[1]}: pip install 'sightline[all,peers]'")
            return False
        console.print(f"{script.stem} failed:", *lines[-12:], sep="\n")
        return False
    for path in sorted(out.glob("*.json")):
        if path.stat().st_mtime_ns != before.get(path):
            _show(console, path)
    return True


def _show(console: Any, path: Path) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    found = json.loads(path.read_text("utf-8"))
    where = ", ".join(
        f"{value}" if name in ("processor", "gpu") else f"{name} {value}" for name, value in found["machine"].items()
    )
    shown = Table(box=SIMPLE_HEAD, title=path.stem, title_justify="left", caption=where, caption_justify="left")
    shown.add_column("call")
    shown.add_column("tokens", justify="right")
    shown.add_column("measured")
    for row in found["results"]:
        name = str(row.get("call", row.get("name", "")))
        if "candidate" in row:
            name += f": {row['candidate']}"
        kind = {True: " (causal)", False: " (full)"}.get(row.get("causal"), "")
        tokens = f"{row['tokens']:,}" if isinstance(row.get("tokens"), int) else ""
        shown.add_row(Text(name + kind), tokens, Text(figures(row)))
    console.print(shown)
    console.print(f"written: {path}", soft_wrap=True)
