"""The streaming backend at many tokens, 8 heads of 64, in a process of its own: memory is linear in the context."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

PROGRAM = """
import sys, torch
import sightline as sl

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

def reset():
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")

backward = {backward}
options = lambda n: {options}
torch.manual_seed(0)
# Whatever torch loads and keeps for itself is there before the measurement.
small = torch.randn(1, 8, 600, 64, requires_grad=backward)
out = sl.attention(small, small, small, backend="streaming", **options(600))
if backward:
    out.sum().backward()
n = {tokens}
q, k, v = (torch.randn(1, 8, n, 64).requires_grad_(backward) for _ in range(3))
if not backward:
    before = status("VmRSS")
    reset()
    out = sl.attention(q, k, v, backend="streaming", **options(n))
    size = out.numel() * 4 / 2**20
    assert out.isfinite().all()
else:
    out = sl.attention(q, k, v, backend="streaming", **options(n))
    grad = torch.randn_like(out)
    before = status("VmRSS")
    reset()
    out.backward(grad)
    size = 0
    assert q.grad.isfinite().all()
print(status("VmHWM") - before - size)
"""


def beyond(options: str, backward: bool = False, tokens: int = 32_768) -> float:
    """MiB at the peak of a pass, beyond what was there before it and its output."""
    program = PROGRAM.format(options=options, backward=backward, tokens=tokens)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_a_forward_pass_by_bands_needs_at_most_300_mib():
    assert beyond("dict(mask=sl.causal() & sl.window(512))") < 300


def test_a_forward_pass_by_tiles_needs_at_most_300_mib():
    assert beyond("dict(mask=sl.window(256), softcap=30.0)") < 300


def test_a_backward_pass_is_linear_in_the_context():
    # The map of 8 heads of 16,384 tokens would take 8 GiB.
    inputs = 3 * 8 * 16_384 * 64 * 4 / 2**20
    assert beyond("dict(mask=sl.window(256))", backward=True, tokens=16_384) < 3 * inputs + 300
