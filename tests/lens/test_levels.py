"""Numbers that one rounded lse cannot carry: rows hidden by large finite numbers, large scores, sinks that take all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import SEEDS, generator
from lens_cases import agrees_with_itself, gaps
from sightline.lens.cpu import plan as cpu_plan

LEAST = torch.finfo(torch.float32).min
# A small map (the walk), one for the CPU's sweep, and one for its compiled kernel.
SIZES = {"walk": (2, 37, 41), "sweep": (2, 300, 301), "compiled": (4, 1031, 1100)}


def drawn(size: tuple[int, int, int], factor: float = 1.0, dtype: torch.dtype = torch.float32, seed: int = 0):
    heads, queries, keys = size
    random = generator(seed)
    q = torch.randn(heads, queries, 16, generator=random, dtype=torch.float64) * factor
    k = torch.randn(heads, keys, 16, generator=random, dtype=torch.float64)
    return q.to(dtype), k.to(dtype)


@pytest.mark.parametrize("number", [-1e4, -1e6, -1e9, LEAST])
@pytest.mark.parametrize("size", ["walk", "sweep"])
def test_rows_hidden_by_a_large_number(number: float, size: str) -> None:
    q, k = drawn(SIZES[size])
    bias = torch.zeros(q.shape[-2], k.shape[-2])
    bias[3], bias[10:20], bias[20:, :5] = number, number, number
    weights = agrees_with_itself(sl.look(q, k, bias=bias))
    eager = torch.softmax(q @ k.mT / 4 + bias, -1).double()
    if abs(number) >= 1e9:
        assert (weights[:, 10:20] * k.shape[-2] - 1).abs().max() <= 1e-5, "what torch computes: a uniform row"
    ordinary = [i for i in range(q.shape[-2]) if i != 3 and not 10 <= i < 20]
    assert (weights - eager)[:, ordinary].abs().max() <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rows_hidden_by_the_least_number_of_another_precision(dtype: torch.dtype) -> None:
    q, k = drawn(SIZES["walk"], dtype=dtype)
    bias = torch.zeros(q.shape[-2], k.shape[-2], dtype=dtype)
    bias[3], bias[10:20, 4:] = torch.finfo(dtype).min, torch.finfo(dtype).min
    weights = agrees_with_itself(sl.look(q, k, bias=bias))
    assert weights[:, 10:20, 4:].max() == 0


@pytest.mark.parametrize("factor", [50.0, 150.0, 1300.0, 1e5, 1e8])
@pytest.mark.parametrize("mask", [None, sl.causal(), sl.window(40)], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_large_scores(factor: float, mask: sl.Mask | None, size: str) -> None:
    q, k = drawn(SIZES[size], factor)
    sight = sl.look(q, k, mask=mask)
    if size != "walk":
        assert cpu_plan.can(sight.call)
    agrees_with_itself(sight, 5e-6 if factor < 1e4 else 1e-3)


@pytest.mark.parametrize("logit", [-200.0, 3.0, 20.0, 90.0, 5000.0])
@pytest.mark.parametrize("size", SIZES)
def test_a_sink_that_takes_nearly_everything(logit: float, size: str) -> None:
    q, k = drawn(SIZES[size])
    sinks = torch.full((q.shape[0],), logit)
    sight, without = (sl.look(q, k, mask=sl.causal(), sinks=x) for x in (sinks, None))
    for name in ("entropy", "distance", "max_score"):
        assert torch.allclose(getattr(sight, name), getattr(without, name), atol=1e-5, rtol=1e-5), name
    lse = without.lse.double()
    share = torch.sigmoid(logit - lse)
    assert torch.allclose(sight.sink_share.double(), share, atol=1e-6)
    assert torch.allclose(sight.lse.double(), torch.logaddexp(lse, torch.tensor(logit, dtype=torch.float64)), rtol=1e-6)
    agrees_with_itself(sight)
    left = torch.sigmoid(lse - logit)
    assert torch.allclose(sight.total.double(), left, atol=1e-6)
    if left.min() > 1e-30:
        assert torch.allclose(sight.total.double() / left, torch.ones_like(left), rtol=1e-4)


def test_the_entropy_beside_a_large_sink_by_hand() -> None:
    q = torch.zeros(1, 4, 8)
    sight = sl.look(q, q, sinks=torch.tensor([90.0]))
    assert torch.allclose(sight.entropy, torch.tensor(4.0).log().expand(1, 4))
    assert torch.allclose(sight.distance, torch.tensor([[1.5, 1.0, 1.0, 1.5]]))


@pytest.mark.parametrize("size", [1e-3, 1e-20, 1e-35])
@pytest.mark.parametrize("normalizer", ["relu", "sigmoid"])
def test_weights_that_float32_hardly_holds(normalizer: str, size: float) -> None:
    q, k = drawn(SIZES["walk"])
    if normalizer == "relu":
        q = q * size
        scores = (q.double() @ k.double().mT / 4).relu()
    else:
        bias = torch.tensor(size).log()
        scores = torch.sigmoid(q.double() @ k.double().mT / 4 + bias - torch.tensor(41.0, dtype=torch.float64).log())
    options = {} if normalizer == "relu" else {"bias": bias}
    sight = sl.look(q, k, normalizer=normalizer, **options)
    share = (scores / scores.sum(-1, keepdim=True)).nan_to_num(0.0)
    assert torch.allclose(sight.entropy.double(), torch.special.entr(share).sum(-1), atol=1e-4)
    assert torch.allclose(sight.distance.double(), (share * gaps(37, 41)).sum(-1), rtol=1e-4)


@settings(max_examples=60)
@given(
    st.integers(1, 70), st.integers(1, 90), SEEDS, st.floats(-1, 3), st.sampled_from([0.0, -1e4, -1e6, -1e9, LEAST]),
    st.none() | st.floats(-120, 120), st.sampled_from([None, sl.causal(), sl.window(3, 2), sl.padding([1])]),
)  # fmt: skip
def test_whatever_the_numbers_a_sight_fits_together(queries, keys, seed, power, number, logit, mask) -> None:
    random = generator(seed)
    q, k = (torch.randn(1, 2, n, 8, generator=random) for n in (queries, keys))
    bias = torch.zeros(queries, keys)
    bias[torch.rand(queries, generator=random) < 0.4] = number
    bias[:, torch.rand(keys, generator=random) < 0.2] = number
    sinks = None if logit is None else torch.tensor([logit, 0.0])
    out, sight = sl.observe(q * 10**power, k, k, bias=bias, sinks=sinks, mask=mask)
    assert torch.isfinite(out).all()
    agrees_with_itself(sight, 1e-5)


def test_a_part_of_the_map_is_that_part_of_the_whole() -> None:
    """Also where a row was measured for a part alone, or by another pass."""
    q, k = drawn(SIZES["sweep"], 40.0)
    whole = sl.look(q, k).tile(slice(None), slice(None))
    sight = sl.look(q, k)
    part = sight.tile(slice(100, 140), slice(30, 77))
    assert torch.allclose(part, whole[:, 100:140, 30:77], rtol=1e-3, atol=1e-6)
    picture = sl.look(q, k).picture(rows=slice(100, 140), columns=slice(30, 77), cell=(1, 1))
    assert torch.allclose(picture, part, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("number", [-1e9, LEAST])
def test_a_watched_model_that_hides_with_numbers(number: float, tmp_path: Path) -> None:
    """A padded batch of an older model: rows of padding see only the number, and become uniform."""

    class Older(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, k, attn_mask=table)

    q, k = (t[None] for t in drawn((2, 23, 23)))
    table = torch.where(torch.ones(23, 23, dtype=torch.bool).tril(), 0.0, number)
    table[:, :5] = number  # padding on the left: of the first five rows nothing is left
    model = Older()
    with torch.no_grad():
        plain = model(q, k, table[None, None])
        with sl.watch(model, keep_qk=True) as seen:
            watched = model(q, k, table[None, None])
    assert torch.equal(plain, watched)
    weights = agrees_with_itself(seen[0])
    assert torch.allclose(weights @ k.double(), plain.double(), atol=1e-6)
    assert (weights[0, :, 0] * 23 - 1).abs().max() < 1e-5
    seen.save(tmp_path / "run")
    loaded = sl.load(tmp_path / "run")[0]
    assert torch.allclose(agrees_with_itself(loaded), weights, atol=1e-7)
    with torch.no_grad(), sl.watch(model) as small:
        model(q, k, table[None, None])
    assert torch.allclose(agrees_with_itself(small[0]), weights, atol=1e-7)
