"""What is on the screen as a program, for runs that are no text of a model of `sl.models`: kept ones, and pictures."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.explore.changes import read
from sightline.explore.run import Layer, Run

# Above a program of a notebook that was given its model.
HELD = "# `model` is the one that this explorer was given"


def kept_program(
    run: Run, layer: Layer, head: int, queries: Sequence[int], key: int | None, held: bool = False
) -> str | None:
    """The lines that read the same cells from the run itself, or run a picture again; None for a text.

    `held`: in a notebook, with the model at hand.
    """
    picture = getattr(run.account, "grid", None) is not None and run.model is not None and bool(run.text)
    if run.text and not picture and run.origin != "notebook":
        return None
    rows = "slice(None)" if not queries else f"slice({queries[0]}, {queries[0] + 1})"
    columns = "slice(None)" if key is None else f"slice({key}, {key + 1})"
    of = "" if run.of == "weights" else f", of={run.of!r}"
    place = head  # among those that were kept
    base = run if run.base is None else run.base
    if base.origin == "notebook":
        lines = ["# `seen` is the run of this notebook"]
    elif base.folder is not None:
        lines = ["import sightline as sl", "", f"seen = sl.load({base.folder.name!r})  # the folder of this run"]
    elif picture:
        place = layer.numbers[head]
        lines = [
            "import torch",
            "import sightline as sl",
            "",
            HELD if held else f"model, _ = sl.models.load({f'folder/of/{run.model}'!r})",
            f"images = model.prepare({run.text!r})[None]",
            f"with torch.no_grad(), {'sl.edit(model) as edits, ' if _edits(run) else ''}"
            "sl.watch(model, keep_qk=True) as seen:",
            *(f"    {read(edit).python()}" for edit in _edits(run)),
            "    output = model(images)",
        ]
    else:
        return None
    if len(queries) > 1:
        added = f"seen[{layer.name!r}].tile(query, {columns}{of})[{run.batch}, {place}]"
        lines.append(f"cells = sum({added} for query in {list(queries)})")
    else:
        lines.append(f"cells = seen[{layer.name!r}].tile({rows}, {columns}{of})[{run.batch}, {place}]")
    return "\n".join([*lines, "print(cells)"]) + "\n"


def _edits(run: Run) -> list[str]:
    return list(run.meta.get("edits") or [])
