"""The ladder over several seeds: whether every rung is at least as good as the one below, and what it costs.

    python benchmarks/ladder.py [--seeds 0 1 2]

Stopped at any moment, it goes on where it was; `--fresh` starts again.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import harness
import torch

from sightline.lessons.ladder import Settings, checkpoint, climb, find_device, make_text, python_text, report


def measure(seed: int, folder: Path, fresh: bool) -> dict:
    """One ladder: the losses, and what must hold of them."""
    settings = Settings(seed=seed, device=find_device("auto"))
    text = make_text("pydoc_data.topics", python_text(), settings.context)
    checkpoint.prepare(folder, fresh)
    rungs = climb(text, settings, folder)
    print(f"seed {seed}\n{report.as_text(rungs)}{report.summary(rungs)}\n", flush=True)
    return {
        "seed": seed,
        "settings": settings.as_dict(),
        "text_sha256": text.digest,
        "rungs": [
            {key: rung[key] for key in ("name", "parameters", "loss", "seconds", "cpu_seconds", "curve")}
            for rung in rungs
        ],
        "not_as_good_as_the_rung_below": report.not_better(rungs),
        "better_than_average_by": rungs[1]["loss"] - rungs[-1]["loss"],
        "minutes": sum(rung["seconds"] for rung in rungs) / 60,
        "cpu_minutes": sum(rung["cpu_seconds"] for rung in rungs) / 60,
        "sample": report.best(rungs)["sample"],
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--fresh", action="store_true", help="forget the checkpoints of a run before")
    options.add_argument("--out", type=Path, help="folder for the results")
    chosen = options.parse_args()
    torch.set_num_threads(Settings().threads)  # so that the machine's description says what was used
    work = Path(tempfile.gettempdir()) / "sightline-ladder-seeds"
    rows = [measure(seed, work / str(seed), chosen.fresh) for seed in chosen.seeds]
    print(harness.write("ladder", rows, chosen.out))


if __name__ == "__main__":
    main()
