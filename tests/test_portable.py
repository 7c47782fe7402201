"""Things that are taken along: what they are made of is found, replaced, and told apart from what cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

import sightline as sl
from sightline.errors import InputError
from sightline.portable import Portable, at_cells, leaves, one_batch_axis, one_member, replaced, some_heads


class Pair(NamedTuple):
    a: Any
    b: Any


class Thing(Portable):
    known: ClassVar[dict] = {}
    saved_as = None

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


@dataclass(frozen=True, slots=True)
class Slotted(Thing):
    numbers: torch.Tensor
    step: int = 2


def test_tensors_and_parts_are_found_wherever_they_are() -> None:
    a, b, c = (torch.full((1,), float(n)) for n in range(3))
    inner = Thing(numbers=[c])
    thing = Thing(x=a, more={"y": (b, 3)}, inner=[inner, None], _kept=(torch.ones(9),))
    assert [float(t) for t in thing.tensors()] == [0.0, 1.0, 2.0]
    assert thing.parts() == (inner,)
    slotted = Slotted(a)
    assert list(slotted.tensors()) == [a]
    assert set(slotted.fields()) == {"numbers", "step"}


def test_a_copy_shares_nothing_and_an_unchanged_one_is_itself() -> None:
    thing = Thing(x=torch.zeros(2), pair=Pair(torch.zeros(1), 5), n=3)
    assert thing.to("cpu") is thing
    copy = thing.to("cpu", copy=True)
    thing.x += 1
    thing.pair.a.add_(1)
    assert copy is not thing
    assert copy.x.tolist() == [0, 0]
    assert isinstance(copy.pair, Pair)
    assert (float(copy.pair.a), copy.pair.b, copy.n) == (0.0, 5, 3)
    numbers = torch.zeros(2)
    frozen = Slotted(numbers, 7)
    moved = frozen.to("cpu", copy=True)
    numbers += 1
    assert (moved.numbers.tolist(), moved.step) == ([0, 0], 7)
    assert Thing(n=3).to("cpu", copy=True).n == 3


@pytest.mark.parametrize(
    "value, plain",
    [
        (torch.ones(1), True),
        ([1, (2.5, None), {"a": True, "b": "c"}], True),
        (Thing(x=1), True),
        (lambda x: x, False),
        ([1, {2}], False),
        (Pair(1, 2), False),  # which would come back as a tuple
        ({"a": torch.float32}, False),
        (Thing(f=print), False),
    ],
)
def test_what_a_file_can_hold(value: Any, plain: bool) -> None:
    assert Thing(x=value).is_plain == plain


def test_leaves_and_replaced() -> None:
    assert list(leaves([1, ({"a": 2}, [3])])) == [1, 2, 3]
    given = {"a": [torch.zeros(1), 2], "b": 3}
    assert replaced(given, lambda x: x) is given
    made = replaced(given, lambda x: x + 1)
    assert float(made["a"][0]) == 1
    assert (made["a"][1], made["b"], float(given["a"][0])) == (2, 3, 0.0)


def test_a_name_of_ours_is_taken() -> None:
    with pytest.raises(InputError, match="Sightline has a class of this name"):
        type("mine", (sl.Mask,), {"saved_as": "band"})


@pytest.mark.parametrize("shape", [(2, 3, 4, 5, 6), (3, 4, 5, 6), (2, 1, 1, 5, 6), (1, 1, 4, 5, 6), (5, 6), (1, 5, 6)])
def test_parts_of_tensors_that_broadcast(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    full = x.expand(2, 3, 4, 5, 6)
    one = one_member(some_heads(x, [3, 1], 2), (1, 2), 3)
    assert one.dim() <= 3
    assert torch.equal(one.expand(2, 5, 6), full[1, 2, [3, 1]])
    assert torch.equal(some_heads(x, [2], 2).expand(2, 3, 1, 5, 6), full[:, :, 2:3])
    flat = one_batch_axis(x, (2, 3), 3)
    assert flat.dim() <= 4
    assert torch.equal(flat.expand(6, 4, 5, 6), full.reshape(6, 4, 5, 6))
    assert one_batch_axis(x, (7,), 3) is x


@pytest.mark.parametrize("shape", [(2, 3, 4, 600, 700), (3, 1, 600, 700), (4, 600, 1), (600, 700), (1, 700)])
def test_single_cells_of_tiles(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    rows, columns = x.shape[-2] > 1, x.shape[-1] > 1

    def tile(band: slice, span: slice) -> torch.Tensor:
        assert band.stop - band.start <= 256
        assert span.stop - span.start <= 256
        return x[..., band if rows else slice(None), span if columns else slice(None)]

    b, h = torch.arange(6).view(-1, 1, 1), torch.arange(4).view(1, -1, 1)
    i = torch.randint(0, 600, (1, 1, 50))
    j = torch.randint(0, 700, (6, 1, 50))
    want = x.expand(2, 3, 4, 600, 700).reshape(6, 4, 600, 700)[b, h, i, j]
    assert torch.equal(at_cells(tile, (2, 3), b, h, i, j), want)
    assert at_cells(tile, (2, 3), b, h, i[..., :0], j[..., :0]).shape == (6, 4, 0)
