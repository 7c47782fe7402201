"""Texts have every length: nothing is compiled for one, nothing is written out for one."""

from __future__ import annotations

import random
import time

import pytest
import torch
from triton.runtime.jit import JITFunction

import sightline as sl

MASKS = {
    "none": lambda n: None,
    "causal": lambda n: sl.causal(),
    "window": lambda n: sl.window(256),
    "prefix": lambda n: sl.prefix(100),
    "padding": lambda n: sl.causal() & sl.padding([max(1, n - 77)]),
    "documents": lambda n: sl.causal() & sl.documents(torch.arange(n, device="cuda") // 700),
}
STATS = {
    "received": ("received",),
    "rows": ("entropy", "max_score", "distance"),
    "picture": ("received", sl.Picture(512, 512)),
    "all": ("entropy", "max_score", "distance", "received", sl.Picture(64, 64), sl.Top(8)),
}


def lengths(seed: int, count: int = 12, most: int = 6000) -> list[int]:
    draw = random.Random(seed)
    return [draw.randint(1, most) for _ in range(count)]


def qkv(length: int, heads: int = 4, dim: int = 64) -> list[torch.Tensor]:
    return [torch.randn(1, heads, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that are compiled, as they are."""
    made: list[str] = []
    compile = JITFunction._do_compile

    def counted(self, *given, **options):
        made.append(self.__name__)
        return compile(self, *given, **options)

    monkeypatch.setattr(JITFunction, "_do_compile", counted)
    return made


@pytest.mark.parametrize("stats", STATS.values(), ids=STATS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_an_account_of_any_length_compiles_nothing(mask, stats, compiled):
    for length in (3001, 40):  # long enough for lists of strongest keys, and short
        sl.observe(*qkv(length), mask=mask(length), stats=stats)
    compiled.clear()
    for length in lengths(1):
        q, k, v = qkv(length)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        sight = sl.observe(q, k, v, mask=mask(length), stats=stats)[1]
        torch.cuda.synchronize()
        del sight
        taken = torch.cuda.max_memory_allocated() - before
        assert taken < (48 << 20) + 4 * length * 20_000, length
    assert not compiled


@pytest.mark.parametrize("name", ["window", "prefix", "documents"])
@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "backward"])
def test_attention_under_a_rule_is_compiled_once(name, gradients, recwarn):
    import torch._dynamo.utils as dynamo

    def one(length: int) -> None:
        q, k, v = (x.requires_grad_(gradients) for x in qkv(length))
        out = sl.attention(q, k, v, mask=MASKS[name](length), backend="flex")
        if gradients:
            out.sum().backward()
        torch.cuda.synchronize()

    for length in (3001, 2222):
        one(length)
    before = dynamo.counters["stats"]["unique_graphs"]
    for length in lengths(2):
        q = torch.empty(1, 4, max(length, 2), 64)
        torch.cuda.reset_peak_memory_stats()
        taken = torch.cuda.memory_allocated()
        one(max(length, 2))
        assert torch.cuda.max_memory_allocated() - taken < (64 << 20) + 64 * q.nbytes, length
    assert dynamo.counters["stats"]["unique_graphs"] == before
    assert not [str(w.message) for w in recwarn if "recompile" in str(w.message)]


def test_no_length_takes_much_longer_than_another_time():
    stats = STATS["picture"]
    sl.observe(*qkv(3001), mask=sl.causal(), stats=stats)

    def took(length: int) -> float:
        q, k, v = qkv(length)
        torch.cuda.synchronize()
        start = time.perf_counter()
        sl.observe(q, k, v, mask=sl.causal(), stats=stats)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    slow = []
    for length in lengths(3, 20):
        first = took(length)
        warm = min(took(length) for _ in range(3))
        if first > 1.3 * warm + 0.1:  # cuDNN makes a plan for every length, 0.07 s
            slow.append((length, first, warm))
    assert not slow


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 65, 127, 129, 511, 513, 777, 1201, 2049])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_the_numbers_at_every_length(length, mask):
    q, k, v = qkv(length, heads=2)
    stats = (
        "entropy",
        "max_score",
        "distance",
        "received",
        sl.Picture(512, 512),
        sl.Picture(cell=(16, 8), reduce="max"),
    )
    sight = sl.observe(q, k, v, mask=mask(length), stats=stats)[1]
    exact = sl.look(q.double(), k.double(), mask=mask(length), stats=stats)
    for name in ("entropy", "max_score", "distance"):
        torch.testing.assert_close(getattr(sight, name).double(), getattr(exact, name), rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(sight.received().double(), exact.received(), rtol=2e-4, atol=2e-5)
    for options in ({"size": (512, 512)}, {"cell": (16, 8), "reduce": "max"}):
        torch.testing.assert_close(sight.picture(**options).double(), exact.picture(**options), rtol=2e-4, atol=1e-6)
