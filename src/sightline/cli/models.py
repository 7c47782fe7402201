"""`sightline models`: the trained models that come by name; `sightline models check`: are they whole, do they run."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sightline import models as trained
from sightline.errors import SightlineError
from sightline.memory import readable
from sightline.models.checkpoints import builtin, copies
from sightline.models.checkpoints.base import refused
from sightline.models.checkpoints.formats import open_path

TITLES = {"minilm": "all-MiniLM-L6-v2", "smollm2": "SmolLM2-135M-Instruct, 4-bit weights"}
SENTENCE = "The kids were scared of the lions, so they left right away."

app = typer.Typer(help="The trained models that are there, with sizes.", invoke_without_command=True)


@app.callback()
def models(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
) -> None:
    """The trained models that come by name, with sizes: which are installed, which have a fast copy in the cache."""
    if context.invoked_subcommand is not None:
        return
    rows = [about(entry) for entry in builtin.BUILTINS.values()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(table(rows), "")
    for row in rows:
        what = f" ({TITLES[row['name']]})" if row["name"] in TITLES else ""
        console.print(f"{row['name']}{what}: {row['path'] or 'not installed: ' + row['install']}", markup=False)
        if row["cache"]:
            console.print(f"  copy: {row['cache']}", markup=False)
    console.print("A checkpoint folder or a .gguf file works wherever a name does.")


@app.command(short_help="Verify the sums of the files, and run one sentence through each model.")
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Names, folders or .gguf files; all names if none.")] = None,
) -> None:
    """Verify the sums of the files, and run one sentence through each model.

    The exit code is 1 if anything is wrong. A model that is not installed is wrong only if it was asked for.
    """
    wrong = ran = 0
    for name in names or builtin.BUILTINS:
        entry = builtin.BUILTINS.get(name)
        if not names and entry is not None and entry.find() is None:
            typer.echo(f"{name}: not installed ({entry.install})")
            continue
        try:
            for line in files(entry) if entry is not None else ():
                typer.echo(f"{name}: {line}")
            typer.echo(f"{name}: {run(name)}")
            ran += 1
        except Exception as error:  # whatever goes wrong is the answer, and the others are looked at all the same
            wrong += 1
            kind = "" if isinstance(error, SightlineError) else f"{type(error).__name__}: "
            typer.echo(f"{name}: {kind}{error}", err=True)
    raise typer.Exit(1 if wrong or not ran else 0)


def about(entry: builtin.Builtin) -> dict[str, Any]:
    """What is known of a model without reading its weights."""
    row: dict[str, Any] = dict.fromkeys(
        ("family", "layers", "heads", "kv_heads", "parameters", "bytes", "path", "cache", "problem")
    )
    row = {"name": entry.name, "package": entry.package, "licence": entry.licence, "install": entry.install, **row}
    path = entry.find()
    if path is None:
        return row
    row |= {"path": str(path), "bytes": _bytes(path if path.is_file() else path / "model.safetensors")}
    copy = copies.find(entry.name, entry.sum) if entry.copied else None
    row["cache"] = None if copy is None else str(copy)
    try:
        checkpoint = open_path(path)
    except SightlineError as error:
        return {**row, "problem": str(error)}
    config = checkpoint.config
    heads = config["num_attention_heads"]
    return {
        **row,
        "family": config["model_type"],
        "layers": config["num_hidden_layers"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "parameters": checkpoint.parameters,
    }


def table(rows: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for title, side in {
        "name": "left",
        "family": "left",
        "layers x heads": "left",
        "parameters": "right",
        "file": "right",
        "licence": "left",
        "state": "left",
    }.items():
        shown.add_column(title, justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        known = row["layers"] is not None
        state = "cached" if row["cache"] else "installed"
        if row["path"] is None or row["problem"]:
            state = "not installed" if row["path"] is None else "cannot be read"
        shown.add_row(
            row["name"],
            row["family"] or "",
            _heads(row) if known else "",
            f"{row['parameters'] / 1e6:.1f} M" if known else "",
            readable(row["bytes"]) if row["bytes"] else "",
            row["licence"],
            state,
        )
    return shown


def _heads(row: dict[str, Any]) -> str:
    """Layers, heads, and the key heads where they are fewer."""
    grouped = f" ({row['kv_heads']} kv)" if row["kv_heads"] != row["heads"] else ""
    return f"{row['layers']} x {row['heads']}{grouped}"


def files(entry: builtin.Builtin) -> list[str]:
    """The sums of the installed files and of the copy in the cache; what is wrong is an error."""
    path = entry.require()
    wrong = entry.wrong_files(path)
    if wrong:
        raise refused(
            f"the files of {entry.name!r} are not the ones Sightline knows",
            expected=f"the sums recorded for {entry.package}",
            got="; ".join(wrong),
            hint=f"{entry.install} --force-reinstall",
        )
    lines = [f"{len(entry.sums)} file{'s' * (len(entry.sums) > 1)} with the right sums in {path}"]
    copy = copies.place(entry.name, entry.sum) if entry.copied else None
    if copy is not None and copy.exists():
        wrong = copies.wrong_files(copy, entry.sum)
        if wrong:
            raise refused(
                f"the copy of {entry.name!r} in the cache is damaged",
                expected="the sums that were written with it",
                got=", ".join(wrong),
                hint=f"remove {copy}; it is made again when the model is loaded",
            )
        lines.append(f"a copy with the right sums in {copy}")
    return lines


def run(name: str) -> str:
    """One sentence through a model: what came out, and how long it took."""
    began = time.perf_counter()
    model: Any = trained.load(name)[0]
    loaded = time.perf_counter()
    if hasattr(model, "generate"):
        said = model.generate(SENTENCE, max_new_tokens=8)
        right, what = bool(said.strip()), f"{SENTENCE!r} goes on {said!r}"
    elif hasattr(model, "encode"):
        vector = model.encode(SENTENCE).float()
        length = float(vector.norm())
        right = math.isfinite(length) and length > 0
        what = f"{SENTENCE!r} is a vector of {vector.numel()}, length {length:.3f}"
    else:
        right, what = True, "loaded; it does not take text"
    if not right:
        raise refused(
            f"{name!r} runs, but gives nothing sensible",
            expected="some text, or a vector of finite length",
            got=what,
            hint="check the weights it was made from",
        )
    return f"{what} (loaded in {loaded - began:.1f} s, ran in {time.perf_counter() - loaded:.1f} s)"


def _bytes(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None
