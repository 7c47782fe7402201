"""The cache holds what it is given, in the memory that was computed for it."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline import nn as slnn


def pieces(*lengths, batch=(2,), heads=3, dim=4, dtype=torch.float32):
    return [tuple(torch.randn(*batch, heads, n, dim, dtype=dtype) for _ in "kv") for n in lengths]


@pytest.mark.parametrize("capacity", [None, 12])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_it_returns_everything_so_far(capacity, batch):
    cache = slnn.KVCache(capacity)
    given = pieces(3, 1, 1, 0, 4, batch=batch)
    for i, (k, v) in enumerate(given):
        keys, values = cache.append(k, v)
        assert torch.equal(keys, torch.cat([k for k, _ in given[: i + 1]], -2))
        assert torch.equal(values, torch.cat([v for _, v in given[: i + 1]], -2))
    assert cache.length == 9
    assert torch.equal(cache.keys, keys)
    assert torch.equal(cache.values, values)


@pytest.mark.parametrize("dtype, itemsize", [(torch.float32, 4), (torch.bfloat16, 2)])
@pytest.mark.parametrize("batch, heads, dim", [(1, 1, 8), (5, 2, 16)])
def test_bytes_are_as_computed_and_growth_is_bounded(dtype, itemsize, batch, heads, dim):
    per_token = 2 * heads * dim * itemsize * batch
    cache = slnn.KVCache()
    assert cache.bytes == 0
    growths = 0
    for n in range(1, 101):
        before = cache.capacity
        cache.append(*pieces(1, batch=(batch,), heads=heads, dim=dim, dtype=dtype)[0])
        growths += cache.capacity != before
        assert n <= cache.capacity < 2 * n + 1
        assert cache.bytes == cache.capacity * per_token
    assert growths == 8  # 1, 2, 4, ... 128
    fixed = slnn.KVCache(capacity=7)
    fixed.append(*pieces(2, batch=(batch,), heads=heads, dim=dim, dtype=dtype)[0])
    assert fixed.bytes == 7 * per_token


def test_room_is_written_in_place():
    cache = slnn.KVCache(capacity=5)
    first, second = pieces(2, 3)
    keys, _ = cache.append(*first)
    more, _ = cache.append(*second)
    assert keys.data_ptr() == more.data_ptr()
    assert torch.equal(keys, first[0])


def test_value_size_may_differ():
    cache = slnn.KVCache()
    keys, values = cache.append(torch.zeros(2, 3, 4, 8), torch.zeros(2, 3, 4, 5))
    assert keys.shape == (2, 3, 4, 8)
    assert values.shape == (2, 3, 4, 5)


def test_reset_keeps_the_memory_and_takes_other_sequences():
    cache = slnn.KVCache()
    cache.append(*pieces(6)[0])
    taken = cache.bytes
    cache.reset()
    assert cache.length == 0
    k, v = pieces(2)[0]
    keys, values = cache.append(k, v)
    assert torch.equal(keys, k)
    assert torch.equal(values, v)
    assert cache.bytes == taken
    cache.reset()
    k, v = pieces(2, batch=(5,))[0]
    assert torch.equal(cache.append(k, v)[0], k)


def test_reorder_chooses_beams():
    cache = slnn.KVCache()
    k, v = pieces(3)[0]
    cache.append(k, v)
    cache.reorder(torch.tensor([1, 1, 0]))
    assert torch.equal(cache.keys, k[[1, 1, 0]])
    assert torch.equal(cache.values, v[[1, 1, 0]])
    slnn.KVCache().reorder([0])  # nothing held, nothing to do


def test_gradients_flow_through_all_steps():
    given = [(k.requires_grad_(), v.requires_grad_()) for k, v in pieces(2, 1, 1)]
    cache = slnn.KVCache()
    total = 0
    for k, v in given:
        keys, values = cache.append(k, v)
        total = total + keys.square().sum() + values.sum()
    total.backward()
    for i, (k, v) in enumerate(given):
        steps = len(given) - i  # a token is in this and in every later result
        torch.testing.assert_close(k.grad, 2 * steps * k)
        torch.testing.assert_close(v.grad, torch.full_like(v, steps))
    with torch.no_grad():  # and afterwards without a gradient again
        held = cache.keys.clone()
        keys, _ = cache.append(*pieces(1)[0])
        assert not keys.requires_grad
        assert torch.equal(keys[..., :4, :], held)


def test_inference_mode_and_back():
    cache = slnn.KVCache(capacity=8)
    first, second = pieces(2, 1)
    with torch.inference_mode():
        cache.append(*first)
    keys, _ = cache.append(*second)
    assert torch.equal(keys, torch.cat((first[0], second[0]), -2))


@pytest.mark.parametrize(
    "make, text",
    [
        (
            lambda c: c.append(*pieces(1, batch=(3,))[0]),
            r"\[2, 3, time, 4\].*\n  got: \[3, 3, 1, 4\].*\n  try: a new cache",
        ),
        (lambda c: c.append(*pieces(1, heads=1)[0]), "do not fit what the cache holds"),
        (
            lambda c: c.append(*pieces(1, dtype=torch.float64)[0]),
            "expected: .*torch.float32 on cpu\n  got: .*torch.float64",
        ),
        (
            lambda c: c.append(*pieces(5)[0]),
            "the cache is full\n  expected: at most 6 tokens.*\n  got: 2 held and 5 more",
        ),
        (lambda c: c.append(torch.zeros(2, 3, 1, 4), torch.zeros(2, 3, 2, 4)), "one value for each key"),
        (lambda c: c.append(torch.zeros(3, 4), torch.zeros(3, 4)), "k cannot be cached"),
        (lambda c: c.reorder([0.5]), "indices must be a list of whole numbers"),
        (lambda c: slnn.KVCache().keys, "the cache is empty"),
        (lambda c: slnn.KVCache(0), "capacity is too small"),
    ],
)
def test_bad_input_is_explained(make, text):
    cache = slnn.KVCache(capacity=6)
    cache.append(*pieces(2)[0])
    with pytest.raises(sl.errors.SightlineError, match=text):
        make(cache)
    assert cache.length == 2


def test_reorder_without_a_batch_is_refused():
    cache = slnn.KVCache()
    cache.append(*pieces(2, batch=())[0])
    with pytest.raises(sl.errors.InputError, match="a cache without a batch has no order"):
        cache.reorder([0])


def test_a_decoder_cache_is_the_sum_of_its_layers():
    decoder = slnn.Decoder(16, heads=4, layers=3, kv_heads=2, cross=True)
    cache = decoder.new_cache(capacity=10)
    with torch.no_grad():
        decoder(torch.randn(2, 4, 16), torch.randn(2, 7, 16), cache=cache)
    per_token = 2 * 2 * 4 * 4 * 2
    assert cache.length == 4
    assert cache.bytes == 3 * (10 + 7) * per_token  # the memory's keys and values take no more than they need
    cache.reorder([1, 1, 0])
    assert all(part.keys.shape[0] == 3 for part in cache)
    cache.reset()
    assert cache.length == 0
    assert repr(cache) == f"DecoderCache(layers=3, length=0, bytes={3 * 17 * per_token * 3 // 2})"
