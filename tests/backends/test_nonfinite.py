"""NaN and inf reach the rows that read them, and no others: in outputs, row numbers and gradients."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import DTYPES, inputs
from nonfinite_cases import AROUND_LANES, of_what_is_read, strange_cases
from sightline.backends import reference, sdpa, streaming
from sightline.backends.call import make_call


def agrees(case, backend):
    """What is finite, and what is NaN, is so exactly where the definition over the visible keys says."""
    out = sl.attention(case.q, case.k, case.v, **case.options, backend=backend)
    truth = of_what_is_read(case, case.q, case.k, case.v)
    assert torch.equal(out.isfinite(), truth.isfinite()), f"{case} by {backend}"
    if not any(torch.isinf(t).any() for t in (case.q, case.k, case.v)):
        assert torch.equal(out.isnan(), truth.isnan()), f"{case} by {backend}"
    eps = torch.finfo(case.q.dtype).eps
    good = truth.isfinite()
    scale = max(1.0, truth[good].abs().max().item()) if good.any() else 1.0
    assert ((out.double() - truth)[good].abs() <= 100 * eps * scale).all(), f"{case} by {backend}"


@pytest.mark.cpu_kernels
@settings(max_examples=200)
@given(strange_cases(), st.sampled_from(("auto", "auto", "streaming", "reference")))
def test_what_is_not_finite_reaches_the_rows_that_read_it_and_no_others(case, backend):
    agrees(case[0], backend)


@pytest.mark.cpu_kernels
@settings(max_examples=100)
@given(strange_cases(plain=True))
def test_by_torchs_own_kernel(case):
    agrees(case[0], "sdpa")


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads, kv_heads", [(2, 2), (4, 1)])
@pytest.mark.parametrize("mask", [None, "causal", "padding", "window"])
def test_a_query_that_is_nan_gives_nan_whatever_the_number_of_keys(dtype, heads, kv_heads, mask):
    """torch's kernel takes the row for one that sees nothing where the keys do not fill a vector."""
    for keys in AROUND_LANES:
        for queries in {1, keys}:
            rules = {"causal": sl.causal(), "padding": sl.padding([keys, keys]), "window": sl.window(5)}
            q, k, v = inputs(2, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, dtype=dtype)
            q[1, 1, -1, 2] = torch.nan
            out = sl.attention(q, k, v, mask=rules.get(mask))
            assert out[1, 1, -1].isnan().all(), f"{queries} queries, {keys} keys"
            assert out.isnan().sum() == out.shape[-1], f"{queries} queries, {keys} keys"


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("where", ["q", "k"])
def test_the_number_of_a_row_is_nan_with_it(dtype, value, where):
    for keys in AROUND_LANES:
        q, k, v = inputs(1, queries=3, keys=keys, dtype=dtype)
        (q if where == "q" else k)[..., 0, 1] = value
        for mask in (None, sl.padding([keys]), sl.window(keys, keys)):
            call = make_call(q, k, v, mask=mask)
            wrong = (reference.matrix_view(*(t.double() for t in (q, k, v)), mask=mask).isnan()).any(-1)
            _, sight = sl.observe(q, k, v, mask=mask)
            assert torch.equal(sight.lse.isnan(), wrong), f"{keys} keys, {mask}"
            assert torch.equal(streaming.run_with_rows(call)[1].isnan(), wrong), f"{keys} keys, {mask}"
            assert torch.equal(sl.look(q, k, mask=mask).lse.isnan(), wrong), f"{keys} keys, {mask}"
            if not isinstance(mask, sl.masks.Band):
                assert torch.equal(sdpa.run_with_lse(call)[1].isnan(), wrong), f"{keys} keys, {mask}"


def test_a_hidden_key_leaves_the_numbers_of_rows_alone():
    q, k, _ = inputs(1, queries=5, keys=9, dtype=torch.float32)
    clean = sl.look(q, k, mask=sl.padding([6])).lse
    k[..., 7, :] = torch.nan
    torch.testing.assert_close(sl.look(q, k, mask=sl.padding([6])).lse, clean)


@pytest.mark.cpu_kernels
def test_keys_that_are_minus_infinity_but_for_the_last():
    """A vector of scores of -inf, and a NaN among those left over: the largest score is not -inf."""
    q, k, v = inputs(1, queries=1, keys=17, dtype=torch.float32)
    q[..., 0], k[..., 0] = torch.inf, -1.0
    k[..., -1, 0] = 0.0
    assert sl.attention(q, k, v).isnan().all()


@pytest.mark.cpu_kernels
def test_scores_that_overflow_to_nan():
    """Finite queries and keys whose product is inf - inf."""
    q = torch.full((1, 1, 1, 2), 3e38)
    k = torch.tensor([3e38, -3e38]).expand(1, 1, 3, 2)
    assert sl.attention(q, k, torch.ones(1, 1, 3, 2)).isnan().all()


def test_rows_of_zero_that_are_zero_stay_as_they_are():
    q, k, v = inputs(2, queries=5, keys=7, dtype=torch.float32)
    v[..., 0] = 0.0
    assert torch.equal(sl.attention(q, k, v), torch.nn.functional.scaled_dot_product_attention(q, k, v))


# Gradients.


def gradients_agree(case, backend):
    """Rows that read nothing strange, and keys that no other row sees, have the gradient of the definition."""

    def gradients(attend, dtype):
        leaves = [t.detach().clone().to(dtype).requires_grad_() for t in (case.q, case.k, case.v)]
        out = attend(*leaves)
        direction = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
        # A row that is NaN passes NaN on, as a loss that squares it does.
        back = (
            torch.autograd.grad(out, leaves, direction * out.detach(), allow_unused=True, materialize_grads=True)
            if out.requires_grad
            else [torch.zeros_like(t) for t in leaves]  # nothing is read
        )
        return out.detach(), back

    _, ours = gradients(lambda *t: sl.attention(*t, **case.options, backend=backend), case.q.dtype)
    out, truth = gradients(lambda *t: of_what_is_read(case, *t), torch.float64)
    strange = ~out.isfinite().all(-1)
    seen = torch.ones(*strange.shape, case.k.shape[-2], dtype=torch.bool)
    seen = seen if case.table is None else case.table.reshape(seen.shape)
    reached = (seen & strange[..., None]).any(-2)  # of each query head, the keys that such a row sees
    if case.q.dim() > 2:
        reached = reached.unflatten(-2, (case.k.shape[-3], case.q.shape[-3] // case.k.shape[-3])).any(-2)
    for name, got, want, out_of in zip("qkv", ours, truth, (strange, reached, reached), strict=True):
        good = want.isfinite() & ~out_of[..., None]
        assert got[good].isfinite().all(), f"{name} of {case} by {backend}"
        bound = 1e4 * torch.finfo(case.q.dtype).eps * max(1.0, want[good].abs().max().item() if good.any() else 1.0)
        assert ((got.double() - want)[good].abs() <= bound).all(), f"{name} of {case} by {backend}"


@pytest.mark.cpu_kernels
@settings(max_examples=150)
@given(
    strange_cases(dtypes=(torch.float64, torch.float32)), st.sampled_from(("auto", "auto", "streaming", "reference"))
)
def test_no_gradient_of_what_does_not_see_it(case, backend):
    gradients_agree(case[0], backend)


@pytest.mark.cpu_kernels
@settings(max_examples=100)
@given(strange_cases(dtypes=(torch.float64, torch.float32), plain=True))
def test_no_gradient_by_torchs_own_kernel(case):
    gradients_agree(case[0], "sdpa")


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"normalizer": "relu"}], ids=str)
def test_streaming_looks_also_under_torch_func(options):
    q, k, v = inputs(1, queries=5, keys=7)
    k[..., 6, :], v[..., 6, 0] = torch.nan, torch.inf

    def loss(q, k, v):
        return (sl.attention(q, k, v, mask=sl.padding([6]), backend="streaming", **options) ** 2).sum()

    for gradients in (
        torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v),
        torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*(t[None] for t in (q, k, v))),
    ):
        assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_gradient_over_several_tiles(name):
    """Bands of torch's kernel in the forward pass, tiles in the backward."""
    q, k, v = inputs(1, queries=300, keys=700, dtype=torch.float32)
    {"k": k, "v": v}[name][..., 650, :] = -torch.inf
    leaves = [t.requires_grad_() for t in (q, k, v)]
    mask = sl.window(100)
    sl.attention(*leaves, mask=mask).square().sum().backward()
    sees = mask.to_dense(300, 700)[:, 650]
    others = mask.to_dense(300, 700)[sees].any(0)
    assert q.grad[..., ~sees, :].isfinite().all()
    assert k.grad[..., ~others, :].isfinite().all()
    assert v.grad[..., ~others, :].isfinite().all()
    assert not q.grad[..., sees, :].isfinite().all(-1).any()


def test_keys_beyond_the_last_query_of_a_causal_map():
    """Aligned at the start, the kernel stops at the last query, and leaves keys over where 32 would not."""
    q, k, v = inputs(1, queries=4, keys=32, dtype=torch.float32)
    q[..., 1, 0] = torch.nan
    out = sl.attention(q, k, v, mask=sl.causal(align="start"))
    assert out[..., 1, :].isnan().all()
    assert out[..., [0, 2, 3], :].isfinite().all()


def test_a_value_hidden_from_some_rows_reaches_no_gradient_of_theirs():
    for length in (8, 16, 48):
        q, k, v = (t.requires_grad_() for t in inputs(1, queries=length, keys=length, dtype=torch.float32))
        with torch.no_grad():
            v[..., length - 2, 0] = torch.inf
        for mask in (sl.causal(), sl.padding([length - 2])):
            out = sl.attention(q, k, v, mask=mask)
            grads = torch.autograd.grad(out.square().sum(), (q, k, v))
            assert grads[0][..., : length - 2, :].isfinite().all(), f"{length} by {mask}"
            if not isinstance(mask, sl.masks.Band):  # no row reads it
                assert all(g.isfinite().all() for g in grads), f"{length} by {mask}"


def test_a_compiled_graph_gives_what_torchs_kernel_gives() -> None:
    """There values are not looked at: what is hidden may reach rows of the same tile, as in torch's own call."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 9, 8, requires_grad=True) for _ in "qkv")
    with torch.no_grad():
        v[:, :, 6] = torch.nan

    def results(function) -> list[torch.Tensor]:
        out = function(q, k, v)
        return [out.detach(), *torch.autograd.grad(out[:, :, 8].sum(), (q, k, v))]

    options = {"fullgraph": True, "backend": "aot_eager"}
    compiled = torch.compile(lambda q, k, v: sl.attention(q, k, v, mask=sl.causal()), **options)
    plain = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    for found, torchs in zip(results(compiled), results(plain), strict=True):
        torch.testing.assert_close(found, torchs, equal_nan=True)
    eager = sl.attention(q, k, v, mask=sl.causal())
    assert eager[:, :, :6].isfinite().all(), "outside of a graph it reaches only the rows that see it"
