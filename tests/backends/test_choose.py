from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

import sightline as sl
from cases import cases, inputs
from sightline.backends import choose as choose_module
from sightline.backends import reference, sdpa
from sightline.backends.call import make_call
from sightline.backends.choose import BACKENDS, Backend
from sightline.errors import BackendError
from sightline.kernels.native import tile as native_tile
from sightline.masks import Band
from sightline.positions import alibi


@pytest.fixture
def used(monkeypatch):
    """The names of the backends that really ran."""
    names = []

    def recorded(name, backend):
        def run(call):
            names.append(name)
            return backend.run(call)

        return Backend(backend.refuses, run)

    for name, backend in list(BACKENDS.items()):
        monkeypatch.setitem(BACKENDS, name, recorded(name, backend))
    shortcut = sdpa.shortcut

    def recorded_shortcut(*arguments):
        out = shortcut(*arguments)
        if out is not None:
            names.append("sdpa")
        return out

    monkeypatch.setattr(sdpa, "shortcut", recorded_shortcut)
    return names


PADDED = sl.padding([3, 6])
CALLS = [
    ({}, "sdpa"),
    ({"mask": sl.causal()}, "sdpa"),
    ({"mask": sl.causal(align="start")}, "sdpa"),
    ({"mask": sl.window(None)}, "sdpa"),
    ({"mask": sl.window(100)}, "sdpa"),
    ({"mask": PADDED}, "sdpa"),
    ({"mask": torch.ones(6, 6, dtype=torch.bool)}, "sdpa"),
    ({"bias": torch.zeros(6, 6)}, "sdpa"),
    ({"bias": torch.zeros(6, 6), "mask": PADDED}, "sdpa"),
    ({"dropout": 0.1}, "sdpa"),
    ({"mask": sl.window(2)}, "streaming"),
    ({"mask": sl.prefix(2)}, "streaming"),
    ({"mask": sl.documents([0, 0, 0, 1, 1, 1])}, "streaming"),
    ({"mask": PADDED & sl.causal()}, "streaming"),
    ({"mask": ~PADDED}, "streaming"),
    ({"mask": sl.causal(), "bias": torch.zeros(6, 6)}, "streaming"),
    ({"bias": alibi(2)}, "streaming"),
    ({"softcap": 5.0}, "streaming"),
    ({"sinks": torch.zeros(2)}, "streaming"),
    ({"normalizer": "relu"}, "streaming"),
    ({"normalizer": "sigmoid"}, "streaming"),
    ({"normalizer": "uniform"}, "streaming"),
]


@pytest.mark.parametrize(
    "options, expected", CALLS, ids=lambda o: str({k: str(v)[:30] for k, v in o.items()}) if isinstance(o, dict) else o
)
def test_what_auto_chooses_is_what_runs(used, options, expected):
    q, k, v = inputs(2, dtype=torch.float32)
    choice = sl.which_backend(q, k, v, **options)
    assert choice.backend == expected
    assert choice.reason
    assert used == [], "which_backend computes nothing"
    sl.attention(q, k, v, **options)
    assert used == [expected]


@pytest.mark.parametrize("backend", ["sdpa", "streaming", "reference"])
def test_a_backend_by_name_is_used(used, backend):
    q, k, v = inputs(2, dtype=torch.float32)
    assert sl.which_backend(q, k, v, backend=backend, mask=sl.causal()) == (backend, "asked for by name")
    sl.attention(q, k, v, backend=backend, mask=sl.causal())
    assert used == [backend]


def test_one_query_at_the_end_sees_all_and_needs_no_mask(used):
    q, k, v = inputs(2, queries=1, keys=9, dtype=torch.float32)
    assert sl.which_backend(q, k, v, mask=sl.causal()).backend == "sdpa"
    torch.testing.assert_close(sl.attention(q, k, v, mask=sl.causal()), sl.attention(q, k, v))
    for mask in (sl.window(7), sl.window(8), sl.window(3, 2), sl.causal(align="start")):
        assert sl.which_backend(q, k, v, mask=mask).backend == "sdpa", "a stretch of the keys"
    nothing = Band(None, -9)
    assert not nothing.to_dense(1, 9).any()
    assert sl.which_backend(q, k, v, mask=nothing).backend == "streaming"


@settings(max_examples=200)
@given(cases(rarely=()))
def test_auto_always_finds_one_that_can(case):
    choice = sl.which_backend(case.q, case.k, case.v, **case.options)
    call = make_call(case.q, case.k, case.v, **case.options)
    assert BACKENDS[choice.backend].refuses(call) is None
    assert BACKENDS["streaming"].refuses(call) is None


def test_dropout_over_a_large_map_is_streamed():
    q = torch.zeros(1, 1, 1025, 1)
    assert sl.which_backend(q, q, q).backend == "sdpa"
    choice = sl.which_backend(q, q, q, dropout=0.1)
    assert choice.backend == "streaming"
    assert "dropout" in choice.reason
    assert sl.which_backend(q, q, q, dropout=0.1, backend="sdpa").backend == "sdpa"


def test_under_vmap_auto_streams_and_says_why():
    seen = []

    def f(q):
        seen.append(sl.which_backend(q, q, q))
        return q

    torch.func.vmap(f)(torch.zeros(3, 2, 4, 4))
    assert seen[0].backend == "streaming"
    assert "vmap" in seen[0].reason


def test_which_backend_refuses_as_attention_does():
    q, k, v = inputs(2)
    with pytest.raises(BackendError, match="SDPA has no soft-cap"):
        sl.which_backend(q, k, v, backend="sdpa", softcap=3.0)


def test_every_backend_is_in_the_table_of_the_module():
    for name in BACKENDS:
        assert f"| `{name}`" in choose_module.__doc__


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(
    "queries, mask, short",
    [
        (1, sl.causal(), True),
        (1, sl.causal(align="start"), True),
        (1, None, True),
        (3, None, True),
        (3, sl.causal(), False),
        (1, sl.window(4), True),
        (1, sl.padding([5]), False),
    ],
    ids=str,
)
def test_a_decoding_step_takes_the_short_way(monkeypatch, kv_heads, queries, mask, short):
    taken = []
    shortcut = sdpa.shortcut
    monkeypatch.setattr(sdpa, "shortcut", lambda *given: taken.append(shortcut(*given)) or taken[-1])
    q, k, v = torch.randn(1, 4, queries, 8), torch.randn(1, kv_heads, 9, 8), torch.randn(1, kv_heads, 9, 8)
    out = sl.attention(q, k, v, mask=mask)
    assert (taken[0] is not None) == short
    expected = reference.matrix_view(q.double(), k.double(), v.double(), mask=mask)
    torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-6)


def test_a_large_call_says_what_makes_its_account(monkeypatch):
    big, small = torch.zeros(1, 1, 2048, 8), torch.zeros(1, 1, 16, 8)
    for kernel, by in ((None, "torch's operations"), (print, "the kernel in C")):
        monkeypatch.setattr(native_tile, "found", lambda kernel=kernel: native_tile.Found(kernel, "so it is"))
        assert sl.which_backend(big, big, big).reason.endswith(f"; an account of it by {by}: so it is")
        assert "account" not in sl.which_backend(small, small, small).reason
        assert "account" not in sl.which_backend(*[big.double()] * 3).reason
