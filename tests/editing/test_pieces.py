"""Cuts by pieces of keys against the float64 reference: outputs, gradients, what a watch sees, and memory."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import edit_precision
import sightline as sl
from sightline.editing import pieces
from sightline.editing.edit_mode import EditMode
from sightline.watching.intercept import torch_calls


class Attends(torch.nn.Module):
    """One call of `sl.attention`."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return sl.attention(q, k, v, **self.options)


def hidden(cuts, batch, heads, queries, keys):
    """What cuts take away, cell by cell; queries are columns."""
    gone = torch.zeros(batch, heads, queries, keys, dtype=torch.bool)
    for cut in cuts:
        sizes = {"examples": batch, "heads": heads, "queries": keys, "keys": keys}
        axes = []
        for name, size in sizes.items():
            chosen = cut.get(name, slice(None))
            axes.append(torch.arange(size)[chosen].flatten())
        axes[2] = (axes[2] - (keys - queries))[axes[2] >= keys - queries]
        here = torch.zeros_like(gone)
        here[torch.meshgrid(*axes, indexing="ij")] = True
        if "mask" in cut:
            here &= cut["mask"].to_dense(keys, keys)[..., keys - queries :, :]
        gone |= here
    return gone


CUTS = {
    "a stretch of keys": [{"keys": slice(3, 9)}],
    "a rectangle": [{"queries": slice(17, None), "keys": slice(2, 20), "heads": [1]}],
    "scattered keys": [{"keys": [0, 4, 5], "heads": [0, 2, 3]}, {"keys": slice(6, 20), "examples": [1]}],
    "two that overlap": [{"keys": slice(1, 6)}, {"queries": slice(20, None), "keys": slice(4, 12), "heads": [2]}],
    "every other query": [{"queries": slice(0, None, 2), "keys": slice(0, 7), "heads": [3], "examples": [0]}],
    "all keys": [{"queries": slice(26, None)}],
    "a rule": [{"mask": sl.window(3), "heads": [0, 3]}],
    "a rule in a rectangle": [{"mask": sl.causal(), "keys": slice(5, 9)}, {"keys": [12]}],
}
LENGTHS = [(29, 29), (11, 29), (1, 29)]


def masks(queries, keys):
    ids = torch.arange(keys).repeat(2, 1) // torch.tensor([[7], [11]])
    found = [sl.causal(), sl.window(9), sl.prefix(4), sl.causal() & sl.padding([21, 29])]
    left = torch.ones(2, keys, dtype=torch.bool)
    left[0, :5] = False
    found.append(sl.causal() & sl.padding(left))
    if queries == keys:
        found += [
            None,
            sl.documents(ids),
            sl.documents(ids) & sl.causal(),
            sl.dense(torch.rand(2, 1, keys, keys) > 0.3),
        ]
    return found


@pytest.mark.parametrize("name", list(CUTS))
def test_output_gradients_and_sight_are_those_of_the_reference(name, monkeypatch):
    monkeypatch.setattr(pieces, "SMALL", 0)
    torch.manual_seed(0)
    cuts, turn = CUTS[name], list(CUTS).index(name)
    # Every cut meets three masks at each length, and every mask some cuts.
    cases = [(n, i, mask) for n in LENGTHS for i, mask in enumerate(masks(*n)) if (i + turn) % 3 == 0]
    for (queries, keys), i, mask in cases:
        gone = hidden(cuts, 2, 4, queries, keys)
        sinks = torch.randn(4, requires_grad=True) if i % 2 else None
        q, k, v = (torch.randn(2, h, n, d) for h, n, d in ((4, queries, 8), (2, keys, 8), (2, keys, 6)))
        inputs = [t.requires_grad_() for t in (q, k, v)] + ([] if sinks is None else [sinks])
        model = Attends(mask=mask, sinks=sinks, softcap=8.0 if i == 2 else None)
        visible = ~gone if mask is None else ~gone & mask.to_dense(queries, keys)
        wide = [t.detach().double().requires_grad_() for t in inputs]
        more = {"sinks": None if sinks is None else wide[3], "softcap": model.options["softcap"]}
        expected, truth = sl.observe(*wide[:3], mask=sl.dense(visible), backend="reference", **more)
        with sl.watch(model, keep_qk=True) as seen, sl.edit(model) as edits:
            for cut in cuts:
                edits.cut(**cut)
            out = model(q, k, v)
        assert (out - expected).abs().max() < 5e-6
        whole = slice(0, queries), slice(0, keys)
        assert (seen[0].tile(*whole) - truth.tile(*whole)).abs().max() < 5e-6
        assert (seen[0].lse - truth.lse).nan_to_num(0).abs().max() < 5e-6
        g = torch.randn_like(out)
        found = torch.autograd.grad(out, inputs, g, allow_unused=True)
        for one, two in zip(found, torch.autograd.grad(expected, wide, g.double())):
            assert ((0 if one is None else one) - two).abs().max() < 2e-5


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_some_heads_at_a_time_give_what_all_at_once_do(count, monkeypatch):
    """Without gradients heads are done in turns, so many as memory holds, and put into the model's own output."""
    monkeypatch.setattr(pieces, "SMALL", 0)
    queries, keys = 23, 29
    q, k, v = (torch.randn(2, h, n, d) for h, n, d in ((4, queries, 8), (2, keys, 8), (2, keys, 6)))
    for name, cuts in CUTS.items():
        for i, mask in enumerate(masks(queries, keys)):
            sinks = torch.randn(4) if i % 2 else None
            model = Attends(mask=mask, sinks=sinks)
            found = []
            for most in (count * queries * 6 * 4, 1 << 27):
                monkeypatch.setattr(pieces, "BYTES", most)
                with torch.no_grad(), sl.watch(model, keep_qk=True) as seen, sl.edit(model) as edits:
                    for cut in cuts:
                        edits.cut(**cut)
                    found.append((model(q, k, v), seen[0].lse))
            for one, two in zip(*found):
                assert (one - two).nan_to_num(0).abs().max() < 2e-6, (name, mask)


def test_rows_that_see_nothing_of_it_keep_their_bits(monkeypatch):
    monkeypatch.setattr(pieces, "SMALL", 0)
    q = torch.randn(2, 4, 29, 8)
    model = Attends(mask=sl.causal())
    with torch.no_grad(), sl.edit(model) as edits:
        edits.cut(keys=slice(20, 23), heads=[1, 2])
        out, plain = model(q, q, q), sl.attention(q, q, q, mask=sl.causal())
    assert torch.equal(out[:, :, :20], plain[:, :, :20])
    assert torch.equal(out[:, [0, 3]], plain[:, [0, 3]])
    assert not torch.equal(out[:, 1, 24], plain[:, 1, 24])


def test_large_scores_join_and_what_is_not_finite_stays_where_it_is(monkeypatch):
    monkeypatch.setattr(pieces, "SMALL", 0)
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 1, 9, 8) * 40, torch.randn(1, 1, 9, 8) * 40, torch.randn(1, 1, 9, 8)
    k[..., 4, :], v[..., 4, :] = torch.nan, torch.inf  # the key that is cut
    model = Attends(scale=1.0)
    with torch.no_grad(), sl.edit(model) as edits:
        edits.cut(keys=4)
        out = model(q, k, v)
    visible = (torch.arange(9) != 4)[None]
    k, v = (t.masked_fill(~visible.mT, 0.0).double() for t in (k, v))
    expected = sl.attention(q.double(), k, v, mask=sl.dense(visible), scale=1.0, backend="reference")
    plain = sl.attention(q, k.float(), v.float(), mask=sl.dense(visible), scale=1.0)
    assert (out - expected).abs().max() <= 2 * (plain - expected).abs().max() + 1e-5


@settings(max_examples=25, deadline=None)
@given(start=st.integers(0, 28), width=st.integers(1, 29), top=st.integers(0, 28), height=st.integers(1, 29))
def test_any_rectangle_of_a_causal_map(start, width, top, height):
    small, pieces.SMALL = pieces.SMALL, 0
    try:
        q = torch.randn(1, 2, 29, 4, generator=torch.Generator().manual_seed(1))
        model = Attends(mask=sl.causal())
        cut = {"queries": slice(top, top + height), "keys": slice(start, start + width)}
        visible = sl.causal().to_dense(29, 29) & ~hidden([cut], 1, 2, 29, 29)
        with torch.no_grad(), sl.edit(model) as edits:
            edits.cut(**cut)
            out = model(q, q, q)
        wide = q.double()
        expected = sl.attention(wide, wide, wide, mask=sl.dense(visible), backend="reference")
        assert (out - expected).abs().max() < 2e-6
    finally:
        pieces.SMALL = small


def test_the_map_of_a_long_cut_is_never_there(monkeypatch):
    """No tensor of more cells than a small part of the map is made, forwards or backwards."""
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            found = func(*args, **(kwargs or {}))
            for one in found if isinstance(found, tuple | list) else (found,):
                if isinstance(one, torch.Tensor):
                    largest = max(largest, one.untyped_storage().nbytes())
            return found

    q = torch.randn(1, 1, 3072, 8, requires_grad=True)
    model = Attends(mask=sl.causal())
    with sl.edit(model) as edits, Sizes():
        edits.cut(keys=slice(100, 1100))
        model(q, q, q).sum().backward()
    assert largest <= 3072 * 3072 * 4 / 8


class Torchs(torch.nn.Module):
    """One call of torch's own attention."""

    def forward(self, q, k, v, causal=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


ALL = {
    "all heads": ([{"keys": slice(3, 9)}], False),
    "each head its own": ([{"keys": slice(h, h + 5), "heads": [h]} for h in range(4)], False),
    "each example its own": ([{"keys": 2, "examples": [0]}, {"keys": [0, 7], "examples": [1]}], False),
    "not all heads": ([{"keys": slice(3, 9), "heads": [0, 1, 2]}], True),
    "few rows": ([{"keys": slice(3, 9), "queries": slice(-5, None)}], True),
    "rows in between": ([{"keys": slice(3, 9), "queries": slice(0, 20)}], True),
    "late keys": ([{"keys": slice(20, 22)}], True),
    "a rule": ([{"mask": sl.window(3)}], True),
}


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(
    "name, queries",
    [(name, n) for name, (cuts, _) in ALL.items() for n in (29, 17) if n == 29 or not {"queries", "mask"} & {*cuts[0]}],
)
def test_the_models_kernel_runs_only_if_something_of_it_is_left(name, queries, causal, monkeypatch):
    monkeypatch.setattr(pieces, "SMALL", 0)
    cuts, runs = ALL[name]
    q, k, v = (torch.randn(2, h, n, d) for h, n, d in ((4, queries, 8), (2, 29, 8), (2, 29, 8)))
    calls = []
    real = F.scaled_dot_product_attention

    def counted(*args, **options):
        calls.append(args)
        return real(*args, **options)

    visible = ~hidden(cuts, 2, 4, queries, 29) & (torch.ones(queries, 29, dtype=torch.bool).tril() if causal else True)
    monkeypatch.setitem(EditMode.handlers, real, lambda func, *rest: torch_calls.sdpa(counted, *rest))
    model = Torchs()
    with torch.no_grad(), sl.edit(model) as edits:
        for cut in cuts:
            edits.cut(**cut)
        out = model(q, k, v, causal)
    expected = sl.attention(q.double(), k.double(), v.double(), mask=sl.dense(visible), backend="reference")
    assert (out - expected).abs().max() < 2e-6
    if causal and queries == 29:
        assert bool(calls) == runs


@pytest.mark.parametrize("queries", [slice(-128, None), slice(None)], ids=["a rectangle", "full height"])
def test_a_long_cut_takes_little_more_than_the_run_without_it(queries, monkeypatch):
    """Beyond the model's own output there are rows of a few heads, whatever the number of heads."""
    monkeypatch.setattr(pieces, "BYTES", 1 << 18)
    q = torch.randn(1, 16, 2048, 32)
    model = Attends(mask=sl.causal())
    with torch.no_grad(), sl.edit(model) as edits:
        edits.cut(queries=queries, keys=slice(256, 512))
        model(q, q, q)
        with Live() as live:
            model(q, q, q)
    # The output and a few numbers a row; some heads added up, what a piece of them gave, and what is kept of it.
    assert live.peak <= q.nbytes * (1 + 3 / 32) + 5 * (1 << 18)


class Live(TorchDispatchMode):
    """The bytes of the tensors that were made in here, while they are there."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.held = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage()._cdata for t in args if isinstance(t, torch.Tensor)}
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if not isinstance(one, torch.Tensor):
                continue
            storage = one.untyped_storage()
            if storage._cdata not in self.held | given:
                self.held.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.gone, storage._cdata, storage.nbytes())
        return found

    def gone(self, which, size):
        self.held.discard(which)
        self.now -= size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["a rectangle", "by a rule", "boost", "combined"])
def test_in_half_precision_it_is_as_exact_as_the_kernel(name, dtype):
    edit_precision.check(name, 67, "cpu", dtype, watched=True)
