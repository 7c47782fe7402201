"""The runs of one watch: when another input comes, what was seen of the one before is put away, if it was asked for."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from sightline.errors import InputError
from sightline.watching.record.folder import Writer, run_name, save
from sightline.watching.record.loading import load
from sightline.watching.seen import Seen
from sightline.watching.tokens import Reader

if TYPE_CHECKING:
    from torch import Tensor


def most_runs(runs: Any) -> int | None:
    """How many runs are kept at most, the last ones: None for all.

    >>> most_runs("last"), most_runs(3), most_runs("all")
    (1, 3, None)
    """
    if runs == "all":
        return None
    if runs == "last":
        return 1
    if not isinstance(runs, int) or isinstance(runs, bool) or runs < 1:
        raise InputError(
            "runs says how many runs of a block are kept",
            expected='"last", "all", or how many of the last ones',
            got=repr(runs),
            hint='sl.watch(model, runs="all")',
        )
    return runs


def put_away(seen: Seen, most: int | None, ids: Tensor | None, memory: Tensor | None, writer: Writer | None) -> None:
    """Move what was seen so far into a run of its own; into a part of the folder, if the run is written there."""
    if most == 1 or not seen._layers:
        return
    reader = Reader()
    if seen._reader is not None:
        reader.text = seen._reader.text
    reader.ids, reader.memory = (None if x is None else x.cpu() for x in (ids, memory))
    run = Seen(meta=seen.meta | {"runs": 1}, reader=reader)
    run._layers, run._unseen = dict(seen._layers), dict(seen._unseen)
    if writer is not None:
        name = run_name(seen.meta["runs"] - 1)
        run = load(save(run, writer.folder / name, keep_qk=True))
        writer.runs.append(name)
    seen._runs.append(run)
    while most is not None and len(seen._runs) >= most:
        oldest = seen._runs.pop(0)
        if writer is not None and oldest._folder is not None:
            writer.runs.remove(oldest._folder.name)
            shutil.rmtree(oldest._folder)
