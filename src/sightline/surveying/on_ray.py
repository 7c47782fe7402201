"""The engine of Ray: Ray Data hands groups of texts to actors that hold the model and write the parts themselves.

Ray's own `write_parquet` names files at random, so a run that goes on would hold rows twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sightline.errors import missing
from sightline.surveying.heads import Wanted
from sightline.surveying.work import Done, Order, Worker


class _Actor:
    """A worker of a survey, as Ray Data calls it: a group of texts in, what came of it out."""

    def __init__(self, model: str, folder: str, wanted: Wanted, driver: str) -> None:
        self.worker = Worker(model, Path(folder), Wanted(*wanted), driver)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        done = [self.worker.do(order) for order in batch["item"]]
        return {"texts": [one.texts for one in done], "errors": [one.errors for one in done]}


def run(model: str, folder: Path, todo: Sequence[Order], wanted: Wanted, driver: str, workers: int) -> Iterator[Done]:
    """Do all orders on a cluster: the one that is there, or one that is begun and ended here."""
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise missing("the engine of Ray", "ray", error) from error
    if not todo:
        return
    began = not ray.is_initialized()
    if began:
        quiet = {"logging_level": "ERROR", "log_to_driver": False, "include_dashboard": False}
        ray.init(**({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers}), **quiet)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # One block for each group, so that actors take what is next and not a fixed share.
        data = ray.data.from_items(list(todo), override_num_blocks=len(todo))
        made = data.map_batches(
            _Actor,
            fn_constructor_args=(model, str(folder.resolve()), tuple(wanted), driver),
            batch_size=1,
            concurrency=min(workers, len(todo)),
        )
        for row in made.iter_rows():
            yield Done(int(row["texts"]), int(row["errors"]))
    finally:
        if began:
            ray.shutdown()
