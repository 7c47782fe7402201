"""The engine of Ray: Ray Data hands groups of texts to actors that hold the model and write the parts themselves.

Ray's own `write_parquet` names files at random, so a run that goes on would hold rows twice.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
        done = [self.worker.do(pickle.loads(order)) for order in batch["order"]]
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
        _join(ray, workers)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # One block for each group, so that actors take what is next and not a fixed share. Ray would pickle them too,
        # and say so.
        groups = [{"order": pickle.dumps(order)} for order in todo]
        with _quiet("ray.data"):
            data = ray.data.from_items(groups, override_num_blocks=len(groups))
            made = data.map_batches(
                _Actor,
                fn_constructor_args=(model, str(folder.resolve()), tuple(wanted), driver),
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=min(workers, len(groups))),
            )
            for row in made.iter_rows():
                yield Done(int(row["texts"]), int(row["errors"]))
    finally:
        if began:
            ray.shutdown()


def _join(ray: Any, workers: int) -> None:
    """Be on the cluster that `ray start` began on this machine, or that RAY_ADDRESS names; else begin one."""
    quiet = {"logging_level": "ERROR", "log_to_driver": False, "include_dashboard": False}
    if not os.environ.get("RAY_ADDRESS"):
        try:
            ray.init(num_cpus=workers, **quiet)
            return
        except ValueError:  # one that is there has as many as it has
            pass
    ray.init(**quiet)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """A logger that tells errors alone: a plan of execution among the lines of a progress bar helps nobody."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
