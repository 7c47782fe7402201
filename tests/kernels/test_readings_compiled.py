"""The kernels of readings compile for a Hopper GPU, without one: Triton brings its assembler along."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import inspect
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sightline.kernels import reading_columns, reading_edges

WHOLE = ("FIRST", "STOP", "SEEN", "BANDS", "ROW_PIXELS", "COLUMN_PIXELS", "PIXELS_BELOW")
TYPES = {"Q": "bf16", "K": "bf16", "G": "bf16", "V": "bf16", "TABLE_PTR": "i1", "PIXELS": "i64", "TOP_KEYS": "i64"}
TYPES |= {name: "i32" for name in WHOLE}
RULES = {"D": 80, "DIM": 128, "DV": 64, "VDIM": 64, "BM": 64, "BN": 64, "OF": 3, "FACTORED": True, "STARTS": True,
         "INTERVALS": True, "TABLE": False, "BIAS": False, "ALIBI": True, "SOFTCAP": True, "PRECISION": "tf32",
         "V_PRECISION": "tf32", "N": 8, "WANT_SUMS": True, "WANT_MAGNITUDES": True, "WANT_LARGEST": False,
         "PIXEL_SUMS": True, "PIXEL_LARGEST": False, "SIGNED": True, "TALL": True, "PARTS": 2, "AT_ONCE": 16}
for kernel in (reading_columns._columns, reading_edges._edges):
    signature, constants = {}, {}
    for at, (name, p) in enumerate(inspect.signature(kernel.fn).parameters.items()):
        said = str(p.annotation).removeprefix("tl.")
        short = {"int64": "i64", "int32": "i32", "float32": "fp32", "constexpr": "constexpr"}
        signature[name] = short.get(said) or "*" + TYPES.get(name, "fp32")
        if said == "constexpr":
            constants[at,] = RULES[name]
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(signature) if name in "QKGV"}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 2})
    # Two programs fit on a multiprocessor, and both products run on the matrix unit.
    print(len(made.asm["cubin"]) > 0, made.metadata.shared <= 113 << 10, made.asm["ptx"].count("wgmma.mma_async") >= 2)
"""


def test_both_kernels_compile_for_a_hopper_gpu(tmp_path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["True"] * 6, done.stderr
