"""The wheel with the kernel in C inside, as a machine without a compiler has it: which kernel runs, and how fast.

    make native-wheel

The wheel is unpacked, and imported by a Python that has torch, on a path on which there is no compiler. Every number of
lanes is tried; all statistics but top are measured by the wheel's kernel, by the one that is compiled here, and by
torch's operations, in one run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TOKENS, HEADS, DIM, ROUNDS = 4096, 8, 64, 9


def inside() -> None:
    """In the process that has the wheel: what runs there, written to standard output as JSON."""
    import torch

    import sightline as sl

    sys.path.insert(0, str(Path(sl.__file__).parent / "benchmarks"))
    import harness

    from sightline.kernels.native import build
    from sightline.kernels.native import tile as native_tile

    compilers = os.environ["PATH"]
    without = {"PATH": "/nonexistent", "SIGHTLINE_LANES": ""}

    def kernel(**environment: str) -> str:
        os.environ.update(environment)
        native_tile.found.cache_clear()
        return native_tile.found().said

    lanes = {n: kernel(**without | {"SIGHTLINE_LANES": str(n)}) for n in build.LANES}
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, TOKENS, DIM).unbind()
    stats = ("received", sl.Picture(512, 512), "entropy", "max_score", "distance")

    def run(**environment: str) -> object:
        kernel(**environment)
        return sl.observe(q, k, v, mask=sl.causal(), stats=stats)

    plain = {"SIGHTLINE_COMPILE": "", "SIGHTLINE_LANES": ""}
    candidates = {
        "torch's kernel alone": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        "the wheel's kernel": lambda: run(**plain | {"PATH": "/nonexistent"}),
        "compiled here": lambda: run(**plain | {"PATH": compilers}),
        "torch's operations": lambda: run(**plain | {"SIGHTLINE_COMPILE": "0"}),
    }
    said = dict.fromkeys(candidates)
    for name, one in candidates.items():
        one()
        said[name] = native_tile.found().said
    found = harness.compare(candidates, repeats=ROUNDS)
    base = "torch's kernel alone"
    rows = [
        {"call": f"all but top, {name}", "tokens": TOKENS, "causal": True, "kernel": said[name],
         "ratio": round(harness.ratio(found, name, base), 3), "runs": ROUNDS}
        for name in candidates if name != base
    ]  # fmt: skip
    print(json.dumps({"machine": harness.machine(), "lanes": lanes, "results": rows}))


def main() -> None:
    wheel, python = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
            brought = {Path(f.filename).name: f.file_size for f in packed.infolist() if f.filename.endswith(".so")}
        done = subprocess.run(
            [str(python.absolute()), "-P", str(Path(__file__).absolute()), "--inside"],
            env={**os.environ, "PYTHONPATH": folder, "SIGHTLINE_CACHE": str(Path(folder, "cache"))},
            capture_output=True,
            text=True,
            cwd=folder,
        )
    if done.returncode:
        sys.exit(done.stderr)
    found = {"command": "make native-wheel", "wheel": wheel.name, "kilobytes": wheel.stat().st_size // 1000}
    found |= {"brought": brought, **json.loads(done.stdout.splitlines()[-1])}
    for lanes, said in found["lanes"].items():
        if not said.startswith(f"from the wheel, {lanes} numbers"):
            print(f"{lanes} numbers at once: {said}")
    for row in found["results"]:
        print(f"{row['call']}: {row['ratio']:.2f} of {TOKENS:,} tokens by torch's kernel alone ({row['kernel']})")
    place = Path(__file__).parent / "results" / "native_wheel-cpu.json"
    place.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    inside() if "--inside" in sys.argv else main()
