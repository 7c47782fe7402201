"""What the first watched run on a machine takes, and the first one of the next process.

    python benchmarks/first_use.py [--out FOLDER]

Eight layers of a Llama, watched at 777 tokens, in two processes that share new, empty folders for what Triton, Inductor
and Sightline compile. Imports, the start of the device, the model and one unwatched pass are not counted: they are what
there is without watching.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from harness import write

GPU = torch.cuda.is_available()
TOKENS = 777
FOLDERS = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "SIGHTLINE_CACHE": "sightline"}


def one_process() -> dict:
    from watch import middle_model

    import sightline as sl

    model = middle_model()
    ids = torch.randint(0, 1000, (1, TOKENS), device="cuda" if GPU else "cpu")

    def clock(watched: bool) -> float:
        before = time.perf_counter()
        with torch.no_grad():
            if watched:
                with sl.watch(model):
                    model(ids)
            else:
                model(ids)
        if GPU:
            torch.cuda.synchronize()
        return time.perf_counter() - before

    clock(watched=False)
    first = clock(watched=True)
    return {"first_seconds": first, "again_seconds": clock(watched=True), "unwatched_seconds": clock(watched=False)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the results")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one_process()))
        return
    rows = []
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, **{name: f"{empty}/{folder}" for name, folder in FOLDERS.items()}}
        for process in ("first on a machine", "next process"):
            command = [sys.executable, __file__, "--one"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            size = sum(path.stat().st_size for path in Path(empty).rglob("*") if path.is_file())
            found = json.loads(done.stdout.splitlines()[-1])
            rows.append({"call": process, "tokens": TOKENS} | found | {"cached_mebibytes": size / 2**20})
            print(f"{process:20} {found['first_seconds']:.2f} s, then {found['again_seconds']:.3f} s", flush=True)
    print("written:", write("first_use", rows, given.out))


if __name__ == "__main__":
    main()
