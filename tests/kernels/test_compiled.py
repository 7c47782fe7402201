"""The kernels of the lens compile for a Hopper GPU, without one: Triton brings its assembler along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import sightline

PROGRAM = """
import inspect
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sightline.kernels import map_program, reading_candidates, reading_edges, reading_program

WHOLE = ("FIRST", "STOP", "SEEN", "ORDER", "COLUMN_PIXELS", "PIXELS_BELOW", "ABOVE", "BELOW", "STRONGEST", "PLACES",
         "COUNTS", "BEGINS", "ENDS", "LIST", "OVER", "OVER_COUNTS", "CHOSEN", "POSITION", "LARGE", "LARGEST")
TYPES = {"Q": "bf16", "K": "bf16", "G": "bf16", "V": "bf16", "TABLE_PTR": "i1", "TOP_KEYS": "i64", "OFFSETS": "u16",
         "ROW_SUMS": "i64"} | {name: "i32" for name in WHOLE}
SIZES = {"D": 80, "DIM": 128, "DV": 64, "VDIM": 64, "N": 4, "BINS": 128, "APART": 32, "TAKEN": 2, "TMA": True,
         "ORDERED": True, "INTERVALS": True, "BIAS": False, "SOFTCAP": False, "PRECISION": "tf32",
         "V_PRECISION": "tf32", "SIGNED": True, "AS_FLOATS": False, "OF": 3}


def compiled(kernel, rows, columns, warps, stages, tiles, pixels, **rules):
    signature, constants = {}, {}
    rules |= SIZES | {"BM": rows, "BN": columns} | rules
    types = TYPES | {"PIXELS": pixels}
    for at, (name, p) in enumerate(inspect.signature(kernel.fn).parameters.items()):
        said = str(p.annotation).removeprefix("tl.")
        short = {"int64": "i64", "int32": "i32", "float32": "fp32", "constexpr": "constexpr"}
        signature[name] = short.get(said) or tiles.get(name) or "*" + types.get(name, "fp32")
        if said == "constexpr":
            constants[at,] = rules[name]
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(signature) if name in "QKGV"}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32),
                          options={"num_warps": warps, "num_stages": stages})
    # Two programs fit on a multiprocessor. Which products take their matrices by addresses:
    kinds = {line.split()[0].split(".")[4] for line in made.asm["ptx"].splitlines() if "wgmma.mma_async" in line}
    print(len(made.asm["cubin"]) > 0, made.metadata.shared <= 113 << 10, *sorted(kinds))


TILES = {name: f"tensordesc<bf16[2, 32, {wide}]>" for name, wide in (("Q_TMA", 128), ("G_TMA", 64))}
for largest in (False, True):  # maxima of keys and pixels, without what is pooled; else sums, magnitudes, stretches
    rules = {name: largest for name in ("FACTORED", "RESTED", "STARTS", "TABLE", "ALIBI", "WANT_LARGEST")}
    rules |= {name: not largest for name in ("FEW", "WANT_SUMS", "WANT_MAGNITUDES", "WANT_BINS", "PIXEL_SUMS")}
    rules["PIXEL_LARGEST"], pixels = largest, "i32" if largest else "i64"
    compiled(reading_program.program, 64, 128, 4, 2, TILES, pixels, PARTS=2, **rules)
    compiled(reading_candidates.gather, 64, 128, 4, 1, TILES, pixels, PARTS=8, **rules)
    compiled(reading_candidates.near, 16, 32, 1, 3, TILES, pixels, **rules)
    compiled(reading_edges._choose, 32, 32, 1, 3, TILES, pixels, **rules)
    compiled(reading_edges._merge, 32, 32, 4, 3, TILES, pixels, **rules)
rules = {f"WANT_{name}": True for name in ("ENTROPY", "LARGEST", "DISTANCE", "TOTAL", "RECEIVED", "SUMS")}
rules |= {name: False for name in ("STARTS", "TABLE", "ALIBI", "WEIGHTED", "WANT_MAXIMA", "RESTED")}
compiled(map_program.program, 64, 128, 4, 3, {"Q_TMA": "tensordesc<bf16[64, 128]>"}, "i64", BINNED=True, PER_ROW=3,
         DIRECT=True, **rules)
"""


def test_the_kernels_compile_for_a_hopper_gpu(tmp_path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = str(Path(sightline.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    readings = ["True True m64n128k16"] * 2 + ["True True"] * 3
    assert done.stdout.splitlines() == [*readings * 2, "True True m64n128k16 m64n16k16"], done.stderr
