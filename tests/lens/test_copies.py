"""Copies of sights, masks and requests: the same answers, of their own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import sightline as sl
from cases import inputs
from sightline.errors import InputTypeError
from sightline.masks.functions import ModBias, ModMask, Stacked

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}
IDS = torch.tensor([0, 0, 0, 1, 1, 2, 2])
MASKS = [
    sl.causal(),
    sl.causal(align="start"),
    sl.window(2, 1),
    sl.prefix(3),
    sl.documents(IDS),
    sl.documents(IDS[2:], IDS),
    sl.padding([4, 6]),
    sl.padding(torch.arange(14).view(2, 7) % 3 > 0),
    sl.dense(torch.arange(35).view(5, 7) % 2 > 0),
    ~sl.causal() | sl.padding([3, 2]),
    (sl.window(2) & sl.documents(IDS)) | ~(sl.prefix(1) & sl.dense(torch.ones(5, 7, dtype=torch.bool))),
    Stacked([(sl.causal(), 3, 0, 5), (None, 2, 0, 7)]),
]


def everything(sight: sl.Sight) -> list[torch.Tensor]:
    parts = [sight.lse] if sight.call.normalizer.is_softmax else []
    parts += [sight.entropy, sight.total, sight.received(), *sight.top(2), sight.tile(slice(None), slice(None))]
    return [*parts, sight.picture(size=(2, 3))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_copy_of_a_mask(mask: sl.Mask, way: str) -> None:
    q, k, _ = inputs(2, queries=5, keys=7)
    out = sl.attention(q, k, k, mask=mask)
    made = WAYS[way](mask)
    assert made is not mask
    assert type(made) is type(mask)
    assert str(made) == str(mask)
    assert torch.equal(made.to_dense(5, 7), mask.to_dense(5, 7))
    assert torch.equal(sl.attention(q, k, k, mask=made), out)
    assert (made == mask, hash(made) == hash(mask)) == ((True,) * 2 if mask in MASKS[:4] else (False,) * 2)


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_a_copied_mask_does_not_answer_from_what_the_original_kept(way: str) -> None:
    """The changes of its tensors are counted from 0 again."""
    lengths = torch.tensor([4, 6])
    for _ in range(10):
        lengths.add_(1).sub_(1)
    mask = sl.padding(lengths)
    assert mask.row(7, torch.device("cpu")).sum() == 10
    made = WAYS[way](mask)
    made.lengths.fill_(1)
    while made.lengths._version < lengths._version:  # as often as the original was changed
        made.lengths.fill_(1)
    assert made.row(7, torch.device("cpu")).sum() == 2
    assert mask.row(7, torch.device("cpu")).sum() == 10


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "thing",
    [sl.Top(3), sl.Picture(3, 4), sl.Picture(cell=(2, 3), rows=slice(1, 3), visible_only=True), sl.alibi(6)],
    ids=str,
)
def test_a_copy_of_a_request_or_a_bias(thing: Any, way: str) -> None:
    made = WAYS[way](thing)
    assert made == thing
    assert hash(made) == hash(thing)
    if isinstance(thing, sl.positions.Alibi):
        assert torch.equal(made.to_dense(3, 5), thing.to_dense(3, 5))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options",
    [
        {"mask": sl.causal() & sl.padding([4, 6])},
        {"bias": sl.alibi(2), "softcap": 2.0},
        {"bias": torch.ones(5, 7), "sinks": torch.zeros(2)},
        {"normalizer": "relu"},
        {"normalizer": "sigmoid"},
        {"normalizer": "uniform"},
    ],
    ids=lambda o: "-".join(o),
)
def test_a_copy_of_a_sight(options: dict[str, Any], way: str) -> None:
    q, k, _ = inputs(2, queries=5, keys=7)
    sight = sl.look(q, k, **options, stats=("entropy", sl.Top(2)))
    made = WAYS[way](sight)
    assert set(made.kept) == set(sight.kept)
    assert made.call.normalizer is sight.call.normalizer
    assert made.call.k is made.call.v
    expected = everything(sight)
    assert all(torch.equal(a, b) for a, b in zip(everything(made), expected, strict=True))
    if way == "deepcopy":
        q.zero_()
        k.zero_()
        fresh = copy.deepcopy(made)
        fresh._kept.clear()
        assert all(torch.equal(a, b) for a, b in zip(everything(fresh), expected, strict=True))
    made._kept.clear()
    assert sight.kept, "what is kept is each one's own"


@pytest.mark.parametrize("way", WAYS)
def test_a_sight_in_a_graph_of_gradients_or_of_inference(way: str) -> None:
    q, k, _ = inputs(2, grad=True)
    with torch.inference_mode():
        frozen = sl.look(q * 2, k * 3)
    for sight in (sl.look(q * 2, k * 3), frozen):
        made = WAYS[way](sight)
        assert not made.call.q.requires_grad
        assert torch.equal(made.entropy, sight.entropy)


def test_a_part_of_a_large_tensor_does_not_take_all_of_it_along() -> None:
    large = torch.randn(1000, 2, 6, 4)
    sight = sl.look(large[3], large[4])
    assert len(pickle.dumps(sight)) < 5000
    made = copy.deepcopy(sight)
    assert made.call.q.untyped_storage().nbytes() == 2 * 6 * 4 * 4


@pytest.mark.parametrize("of", [ModMask(lambda b, h, i, j: i >= j, 1), ModBias(lambda b, h, i, j: i - j, 1, 2)])
def test_functions_say_what_to_use_instead(of: Any) -> None:
    for way in ("copy", "deepcopy"):
        assert WAYS[way](of).function is of.function
    with pytest.raises(InputTypeError, match=r"cannot be pickled(.|\n)*seen.save\(folder\)"):
        pickle.dumps(of)


def test_a_watched_sight_can_be_copied() -> None:
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 5, 16)
    with torch.no_grad(), sl.watch(layer) as seen:
        layer(x, x, x)
    for way in WAYS.values():
        made = way(seen[0])
        assert torch.equal(made.tile(slice(0, 5), slice(0, 5)), seen[0].tile(slice(0, 5), slice(0, 5)))
        assert made.mask_known
