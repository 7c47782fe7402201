"""The kernels of readings compile for a Hopper GPU, without one: Triton brings its assembler along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sightline

PROGRAM = """
import inspect
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sightline.kernels import reading_candidates, reading_edges, reading_program

LARGEST = bool(int(sys.argv[1]))  # maxima of keys and pixels, without what is pooled; else sums, magnitudes, stretches
WHOLE = ("FIRST", "STOP", "SEEN", "ORDER", "COLUMN_PIXELS", "PIXELS_BELOW", "ABOVE", "BELOW", "STRONGEST", "PLACES",
         "COUNTS", "BEGINS", "ENDS", "LIST", "OVER", "OVER_COUNTS", "CHOSEN", "POSITION")
TYPES = {"Q": "bf16", "K": "bf16", "G": "bf16", "V": "bf16", "TABLE_PTR": "i1", "PIXELS": "i32" if LARGEST else "i64",
         "TOP_KEYS": "i64", "OFFSETS": "u16"} | {name: "i32" for name in WHOLE}
TILES = {name: f"tensordesc<bf16[2, 32, {wide}]>" for name, wide in (("Q_TMA", 128), ("G_TMA", 64))}
RULES = {"D": 80, "DIM": 128, "DV": 64, "VDIM": 64, "OF": 3, "FACTORED": LARGEST, "RESTED": LARGEST,
         "STARTS": LARGEST, "INTERVALS": True, "TABLE": LARGEST, "BIAS": False, "ALIBI": LARGEST, "SOFTCAP": LARGEST,
         "PRECISION": "tf32", "V_PRECISION": "tf32", "N": 4, "BINS": 128, "PARTS": 4, "FEW": not LARGEST, "APART": 32,
         "ORDERED": True, "TAKEN": 2, "TMA": True, "WANT_SUMS": not LARGEST, "WANT_MAGNITUDES": not LARGEST,
         "WANT_LARGEST": LARGEST, "WANT_BINS": not LARGEST, "PIXEL_SUMS": not LARGEST, "PIXEL_LARGEST": LARGEST,
         "SIGNED": True, "AS_FLOATS": False}
KERNELS = [(reading_program.program, 64, 128, 4, 2), (reading_candidates.gather, 64, 128, 4, 1),
           (reading_candidates.near, 16, 32, 1, 3), (reading_edges._choose, 32, 32, 1, 3),
           (reading_edges._merge, 32, 32, 4, 3)]
for kernel, rows, columns, warps, stages in KERNELS:
    signature, constants = {}, {}
    rules = RULES | {"BM": rows, "BN": columns} | ({"PARTS": 2} if kernel is reading_program.program else {})
    for at, (name, p) in enumerate(inspect.signature(kernel.fn).parameters.items()):
        said = str(p.annotation).removeprefix("tl.")
        short = {"int64": "i64", "int32": "i32", "float32": "fp32", "constexpr": "constexpr"}
        signature[name] = short.get(said) or TILES.get(name) or "*" + TYPES.get(name, "fp32")
        if said == "constexpr":
            constants[at,] = rules[name]
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(signature) if name in "QKGV"}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32),
                          options={"num_warps": warps, "num_stages": stages})
    # Two programs fit on a multiprocessor, and the two products, and no other, take their matrices by addresses.
    kinds = {line.split()[0].split(".")[4] for line in made.asm["ptx"].splitlines() if "wgmma.mma_async" in line}
    print(len(made.asm["cubin"]) > 0, made.metadata.shared <= 113 << 10, *sorted(kinds))
"""


@pytest.mark.parametrize("largest", [0, 1])
def test_the_kernels_compile_for_a_hopper_gpu(largest, tmp_path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = str(Path(sightline.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(largest)], capture_output=True, text=True, env=environment
    )
    wide = "True True m64n128k16"
    assert done.stdout.splitlines() == [wide, wide, *["True True"] * 3], done.stderr
