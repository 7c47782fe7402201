"""Calls of varlen_attn, flash-attn and xformers: against stand-ins that compute what these document."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from sightline.watching import watch
from sightline.watching.intercept import flash_attn as adapters
from sightline.watching.intercept.varlen import PAGED, UNEQUAL
from watch_cases import check_statistics

HEADS, SHARED, DIM = 4, 2, 8


def weights(q, k, scale=None, causal=False, window=(-1, -1), softcap=0.0, slopes=None):
    """What flash-attention documents, `[batch, heads, queries, keys]` of `[batch, time, heads, dim]`: end-aligned."""
    queries, keys = q.shape[1], k.shape[1]
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(queries)[:, None] + keys - queries
    away = torch.arange(keys) - at
    if slopes is not None:
        scores = scores - slopes[:, None, None] * away.abs()
    hidden = (away > 0) if causal else torch.zeros_like(away, dtype=torch.bool)
    left, right = window
    if left >= 0:
        hidden |= away < -left
    if right >= 0:
        hidden |= away > right
    return scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)


def attend(q, k, v, **options):
    return torch.einsum("bhqk,bkhd->bqhd", weights(q, k, **options), v.repeat_interleave(q.shape[2] // v.shape[2], 2))


def by_text(q, k, v, ends_q, ends_k, **options):
    parts = zip(ends_q[:-1].tolist(), ends_q[1:].tolist(), ends_k[:-1].tolist(), ends_k[1:].tolist())
    return torch.cat([attend(q[None, a:b], k[None, c:d], v[None, c:d], **options)[0] for a, b, c, d in parts])


# As in the packages: names and orders of arguments are theirs.


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    options = {"causal": causal, "window": window_size, "softcap": softcap, "slopes": alibi_slopes}
    return attend(q, k, v, scale=softmax_scale, **options)


def flash_attn_qkvpacked_func(qkv, *args, **kwargs):
    return flash_attn_func.__wrapped__(*qkv.unbind(2), *args, **kwargs)


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    options = {"scale": softmax_scale, "causal": causal, "window": window_size, "softcap": softcap}
    return by_text(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
    cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False,
):  # fmt: skip
    rows = range(len(q)) if cache_batch_idx is None else cache_batch_idx.tolist()
    outputs = []
    for i, row in enumerate(rows):
        end = int(cache_seqlens[i] if isinstance(cache_seqlens, torch.Tensor) else cache_seqlens)
        if k is not None:
            k_cache[row, end : end + k.shape[1]], v_cache[row, end : end + k.shape[1]] = k[i], v[i]
            end += k.shape[1]
        options = {"scale": softmax_scale, "causal": causal, "window": window_size, "softcap": softcap}
        outputs.append(attend(q[i : i + 1], k_cache[row : row + 1, :end], v_cache[row : row + 1, :end], **options))
    return torch.cat(outputs)


def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
    if query.dim() == 3:
        return memory_efficient_attention.__wrapped__(*(x[:, :, None] for x in (query, key, value)))[:, :, 0]
    if hasattr(attn_bias, "q_seqinfo"):
        ends = [torch.tensor(side.seqstart_py) for side in (attn_bias.q_seqinfo, attn_bias.k_seqinfo)]
        return by_text(query[0], key[0], value[0], *ends, scale=scale, causal=attn_bias.causal)[None]
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if isinstance(attn_bias, torch.Tensor):
        scores = scores + attn_bias
    elif attn_bias is not None:
        scores = scores.masked_fill(attn_bias.hidden(*scores.shape[-2:]), -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value)


class LowerTriangularMask:
    def hidden(self, queries, keys):
        return torch.ones(queries, keys, dtype=torch.bool).triu(1)


class LowerTriangularFromBottomRightMask:
    def hidden(self, queries, keys):
        return torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)


class BlockDiagonalMask:
    causal = False

    def __init__(self, ends, key_ends=None):
        self.q_seqinfo = SimpleNamespace(seqstart_py=ends)
        self.k_seqinfo = SimpleNamespace(seqstart_py=ends if key_ends is None else key_ends)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    causal = True


class SomeOtherMask(LowerTriangularMask):
    pass


FUNCTIONS = {
    "flash_attn": [flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func, flash_attn_with_kvcache],
    "xformers.ops": [memory_efficient_attention],
}


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    for name, functions in FUNCTIONS.items():
        module = ModuleType(name)
        for function in functions:
            setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, name, module)


class Calls(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self):
        return self.call()


def seen_of(call, **options):
    """Watch one call twice: its output is the same."""
    model = nn.Sequential()
    model.attn = Calls(call)
    model.forward = lambda: model.attn()
    with warnings.catch_warnings(action="ignore"), torch.no_grad(), watch(model, **options) as seen:
        model()
    return seen


def some(queries, keys, heads=SHARED, batch=2):
    torch.manual_seed(queries)
    return (torch.randn(batch, n, h, DIM) for n, h in ((queries, HEADS), (keys, heads), (keys, heads)))


def check(seen, want, kind="self"):
    assert not seen.unseen
    assert seen.layers == ["attn"]
    assert seen.kind(0) == kind
    torch.testing.assert_close(seen[0].tile(slice(0, want.shape[-2]), slice(0, want.shape[-1])), want)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"softmax_scale": 0.3, "causal": True, "window_size": (2, 0)},
        {"window_size": (1, 2)},
        {"softcap": 3.0},
    ],
)
@pytest.mark.parametrize("sizes", [(7, 7), (3, 7)])
def test_flash_attention(options, sizes):
    q, k, v = some(*sizes)
    ordered = sizes[0] == sizes[1] or options.get("causal", False)
    seen = seen_of(lambda: flash_attn_func(q, k, v, **options), keep_qk=True, stats=("entropy", "received", "overview"))
    named = {"softmax_scale": "scale", "window_size": "window"}
    want = weights(q, k, **{named.get(name, name): value for name, value in options.items()})
    check(seen, want, "self" if ordered or "window_size" in options else "cross")
    torch.testing.assert_close(seen[0].received(), want.sum(-2))


def test_packed_projections():
    q, k, v = some(5, 5, HEADS)
    seen = seen_of(lambda: flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), 0.0, None, True))
    check(seen, weights(q, k, causal=True))


def blocks(q, k, ends_q, ends_k, **options):
    """The maps of packed texts in one, block by block."""
    whole = torch.zeros(1, HEADS, len(q), len(k))
    for a, b, c, d in zip(ends_q[:-1], ends_q[1:], ends_k[:-1], ends_k[1:]):
        whole[:, :, a:b, c:d] = weights(q[None, a:b], k[None, c:d], **options)
    return whole


ENDS = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
OTHERS = torch.tensor([0, 2, 4, 9], dtype=torch.int32)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window_size": (1, 0)}])
def test_packed_texts_are_one_map(options):
    q, k, v = (x[0] for x in some(9, 9, batch=1))
    stats = ("entropy", "distance", "max_score", "received", "overview", "overview_max")
    seen = seen_of(lambda: flash_attn_varlen_func(q, k, v, ENDS, ENDS, 5, 5, **options), stats=stats)
    plain = {"window" if name == "window_size" else name: value for name, value in options.items()}
    check(seen, blocks(q, k, ENDS, ENDS, **plain))
    check_statistics(seen[0], blocks(q, k, ENDS, ENDS, **plain))


def test_packed_texts_of_other_lengths():
    q, k, v = (x[0] for x in some(9, 9, batch=1))
    seen = seen_of(lambda: flash_attn_varlen_func(q, k, v, ENDS, OTHERS, 5, 5))
    check(seen, blocks(q, k, ENDS, OTHERS), "cross")
    unequal = seen_of(lambda: flash_attn_varlen_func(q, k, v, ENDS, OTHERS, 5, 5, causal=True))
    assert unequal.unseen == {"attn": UNEQUAL}


def test_slopes_and_pages_are_named():
    q, k, v = some(5, 5, HEADS)
    assert seen_of(lambda: flash_attn_func(q, k, v, alibi_slopes=torch.ones(HEADS))).unseen == {"attn": adapters.SLOPES}
    one = (x[0] for x in (q, k, v))
    table = torch.zeros(1, 1)
    seen = seen_of(lambda: flash_attn_varlen_func(*one, ENDS[:2], ENDS[:2], 3, 3, block_table=table))
    assert seen.unseen == {"attn": PAGED}


@pytest.mark.parametrize("held", ["number", "even", "uneven"])
def test_a_cache(held):
    q, k, v = some(1, 1)
    cache = torch.full((3, 9, SHARED, DIM), torch.nan)  # NaN where nothing is
    cache[:, :6] = torch.randn(3, 6, SHARED, DIM)
    values = cache.clone()
    lengths = {"number": 4, "even": torch.tensor([4, 4]), "uneven": torch.tensor([5, 3])}[held]
    rows = torch.tensor([2, 0])
    given = {"cache_seqlens": lengths, "cache_batch_idx": rows, "causal": True}
    seen = seen_of(lambda: flash_attn_with_kvcache(q, cache, values, k, v, **given))
    longest = 5 if held == "number" else int(lengths.max()) + 1
    want = torch.zeros(2, HEADS, 1, longest)
    for i in range(2):
        end = longest if held != "uneven" else int(lengths[i]) + 1
        want[i, :, :, :end] = weights(q[i : i + 1], cache[rows[i], :end][None])[0]
    check(seen, want)


@pytest.mark.parametrize(
    "given, why",
    [
        ({"rotary_cos": torch.ones(9, 4)}, adapters.TURNED),
        ({"block_table": torch.zeros(2, 1)}, PAGED),
        ({"alibi_slopes": torch.ones(HEADS)}, adapters.SLOPES),
        ({"cache_seqlens": torch.tensor([4, 6])}, adapters.LENGTHS),
    ],
)
def test_caches_that_cannot_be_followed_are_named(given, why):
    q, k, v = some(3, 9)
    seen = seen_of(lambda: flash_attn_with_kvcache(q, k, v, **({"cache_seqlens": 6} | given)))
    assert seen.unseen == {"attn": why}


def test_xformers():
    q, k, v = some(5, 7, HEADS)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * DIM**-0.5
    bias = torch.randn(2, HEADS, 5, 7)
    check(seen_of(lambda: memory_efficient_attention(q, k, v)), scores.softmax(-1), "cross")
    check(seen_of(lambda: memory_efficient_attention(q, k, v, bias, 0.0)), (scores + bias).softmax(-1))
    for mask in (LowerTriangularMask(), LowerTriangularFromBottomRightMask()):
        want = scores.masked_fill(mask.hidden(5, 7), -torch.inf).softmax(-1)
        check(seen_of(lambda mask=mask: memory_efficient_attention(q, k, v, attn_bias=mask)), want)
    named = seen_of(lambda: memory_efficient_attention(q, k, v, attn_bias=SomeOtherMask())).unseen
    assert "SomeOtherMask" in named["attn"]
    flat = [x[:, :, 0] for x in (q, k, v)]
    check(seen_of(lambda: memory_efficient_attention(*flat)), scores[:, :1].softmax(-1), "cross")


@pytest.mark.parametrize("kind", [BlockDiagonalMask, BlockDiagonalCausalMask])
def test_blocks_of_xformers_are_one_map(kind):
    q, k, v = some(9, 9, HEADS, batch=1)
    ends = ENDS.tolist()
    seen = seen_of(lambda: memory_efficient_attention(q, k, v, attn_bias=kind(ends), scale=0.5))
    check(seen, blocks(q[0], k[0], ends, ends, causal=kind.causal, scale=0.5))


@pytest.fixture
def torch_varlen(monkeypatch):
    """Torch's module; where torch has none yet, one by its name."""
    name = "torch.nn.attention.varlen"
    if importlib.util.find_spec(name) is None:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    return importlib.import_module(name)


def test_varlen_attention_of_torch(monkeypatch, torch_varlen):
    def varlen_attn(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
        enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
    ):  # fmt: skip
        return by_text(query, key, value, cu_seq_q, cu_seq_k, scale=scale, window=window_size)

    monkeypatch.setattr(torch_varlen, "varlen_attn", varlen_attn, raising=False)
    q, k, v = (x[0] for x in some(9, 9, batch=1))
    for options in ({}, {"window_size": (-1, 0)}, {"window_size": (2, 0), "scale": 0.4}):
        seen = seen_of(lambda options=options: torch_varlen.varlen_attn(q, k, v, ENDS, ENDS, 5, 5, **options))
        plain = {"window" if name == "window_size" else name: value for name, value in options.items()}
        check(seen, blocks(q, k, ENDS, ENDS, **plain))
    used = torch.tensor([2, 1, 4])
    seen = seen_of(lambda: torch_varlen.varlen_attn(q, k, v, ENDS, ENDS, 5, 5, seqused_k=used))
    assert seen.unseen == {"attn": PAGED}


def test_varlen_attention_with_a_flag_for_causal(monkeypatch, torch_varlen):
    """As in versions before windows: it may be given by its place."""

    def varlen_attn(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None, scale=None
    ):  # fmt: skip
        return by_text(query, key, value, cu_seq_q, cu_seq_k, scale=scale, causal=is_causal)

    monkeypatch.setattr(torch_varlen, "varlen_attn", varlen_attn, raising=False)
    q, k, v = (x[0] for x in some(9, 9, batch=1))
    for more in ((), (True,), (True, None, 0.4)):
        seen = seen_of(lambda more=more: torch_varlen.varlen_attn(q, k, v, ENDS, ENDS, 5, 5, *more))
        check(seen, blocks(q, k, ENDS, ENDS, causal=bool(more), scale=0.4 if len(more) == 3 else None))


def test_nothing_stays_in_their_place():
    before = flash_attn_func, sys.modules["flash_attn"].flash_attn_func
    with pytest.raises(ZeroDivisionError):
        seen_of(lambda: 1 / 0)
    assert (flash_attn_func, sys.modules["flash_attn"].flash_attn_func) == before
    assert not hasattr(flash_attn_func, "__wrapped__")
