"""One head of a sight is the same map as in the sight of all heads, whatever the mask, bias and grouping."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.errors import InputError

Q, K = (2, 3, 6, 40, 8), (2, 3, 2, 50, 8)
EVERYTHING = slice(None), slice(None)

OPTIONS = {
    "plain": {},
    "causal": {"mask": sl.causal()},
    "padding": {"mask": sl.padding(torch.tensor([[50, 40, 3], [0, 49, 1]]))},
    "documents": {
        "mask": sl.documents(torch.randint(0, 3, (2, 3, 40)), torch.randint(0, 3, (2, 3, 50))),
    },
    "dense per head": {"mask": sl.dense(torch.rand(2, 1, 6, 40, 50) > 0.3)},
    "combined": {"mask": sl.causal() & ~sl.padding(torch.full((2, 3), 9))},
    "bias per head": {"bias": torch.randn(6, 40, 50)},
    "bias per key": {"bias": torch.randn(50)},
    "bias per batch": {"bias": torch.randn(2, 1, 1, 40, 50)},
    "alibi": {"bias": sl.alibi(6)},
    "sinks": {"sinks": torch.randn(6)},
    "relu": {"normalizer": "relu", "mask": sl.causal()},
    "softcap": {"softcap": 2.0, "scale": 0.7},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("batch, head", [(0, 0), (1, 5), (4, 2)])
def test_one_head_is_that_head(options: dict, batch: int, head: int) -> None:
    sight = sl.look(torch.randn(Q), torch.randn(K), stats=("entropy", sl.Top(3)), **options)
    one = sight.select(batch, [head])
    index = (batch // 3, batch % 3, head)
    assert one.shape == (1, 40, 50)
    torch.testing.assert_close(one.tile(*EVERYTHING)[0], sight.tile(*EVERYTHING)[index])
    torch.testing.assert_close(one.received()[0], sight.received()[index])
    for reduce in ("mean", "max"):
        picture = {"cell": (8, 16), "reduce": reduce, "visible_only": True}
        torch.testing.assert_close(one.picture(**picture)[0], sight.picture(**picture)[index], equal_nan=True)


def test_what_was_computed_comes_along() -> None:
    sight = sl.look(torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8), stats=("entropy", "received", sl.Top(2)))
    one = sight.select(1, [3])
    assert set(one.kept) == set(sight.kept)
    assert torch.equal(one.entropy[0], sight.entropy[1, 3])
    assert torch.equal(one.top(2).keys[0], sight.top(2).keys[1, 3])


def test_a_sight_without_q_and_k_still_has_its_statistics(tmp_path) -> None:
    sight = sl.look(torch.randn(4, 9, 8), torch.randn(4, 9, 8), stats=("entropy",))
    sight.save(tmp_path / "sight.safetensors", keep_qk=False)
    one = sl.Sight.load(tmp_path / "sight.safetensors").select(0, [2])
    assert torch.equal(one.entropy[0], sight.entropy[2])


def test_a_flat_sight_has_one_head() -> None:
    sight = sl.look(torch.randn(9, 8), torch.randn(9, 8))
    assert torch.equal(sight.select(0, [0]).tile(*EVERYTHING)[0], sight.tile(*EVERYTHING))


def test_what_was_changed_since_cannot_be_selected():
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)
    sight = sl.look(q, k, stats=("entropy",))
    q.mul_(2)
    with pytest.raises(InputError, match="q was changed after the call"):
        sight.select(batch=1)
