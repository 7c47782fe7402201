"""Short calls are accounted for when somebody asks: the numbers are those of the pass, whatever was changed since."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sightline as sl
import watch_cases as tiny
from sightline.watching import load, watch
from sightline.watching.record import resting
from sightline.watching.record.gather import Gather
from watching.record.test_gather import check_same


class Attends(nn.Module):
    """Two layers with sinks, a table of padding, and keys in memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(2, 4))
        self.layers = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.held = torch.zeros(2, 4, 40, 8)

    def forward(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        for i, name in enumerate(self.layers):
            self.held[..., : x.shape[-2], :] = name(x)
            keys = self.held[..., : x.shape[-2], :]
            mask = sl.causal() & sl.padding(real) if i else sl.causal()
            x = sl.attention(x, keys, keys, mask=mask, sinks=self.sinks[i])
        return x


def waiting(seen: sl.Seen) -> list[bool]:
    return [part.arriving is None for layer in seen._layers.values() for part in layer.parts]


def watched(model: nn.Module, *given: torch.Tensor, **options: object) -> sl.Seen:
    with torch.no_grad(), watch(model, **options) as seen:
        model(*given)
    return seen


def test_what_changes_afterwards_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x, real = Attends(), torch.randn(2, 4, 33, 8), torch.arange(33)[None] >= torch.tensor([[0], [7]])
    found = []
    for on in (False, True):
        monkeypatch.setattr(Gather, "on", on)
        given = [t.clone() for t in (x, real)]
        seen = watched(model, *given)
        assert waiting(seen) == [on, on]
        if on:
            with torch.no_grad():
                for tensor in (*given, model.held, model.sinks):
                    tensor.zero_()
        found.append(seen)
    check_same(*found)
    assert waiting(seen) == [False, False]
    assert found[0][0].call.sinks.abs().min() > 0


class Reach(sl.Mask):
    """A mask of positions alone that holds a tensor."""

    is_positional = True

    def __init__(self, reach: torch.Tensor) -> None:
        self.reach = reach

    def tile(self, rows, columns, queries, keys, device):
        i, j = torch.arange(rows.start, rows.stop)[:, None], torch.arange(columns.start, columns.stop)
        return (i - j >= 0) & (i - j <= self.reach[i])


def test_a_positional_mask_that_holds_a_tensor_is_copied() -> None:
    class Reaches(nn.Module):
        mask = Reach(torch.arange(20) % 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sl.attention(x, x, x, mask=self.mask)

    model, x = Reaches(), torch.randn(2, 4, 20, 8)
    expected = sl.look(x, x, mask=Reach(torch.arange(20) % 5)).entropy
    seen = watched(model, x)
    assert waiting(seen) == [True]
    model.mask.reach.zero_()
    torch.testing.assert_close(seen[0].entropy, expected)


@pytest.mark.parametrize("length", [1, 13, 300, 509])
def test_asked_for_or_not_it_is_the_same(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    model = tiny.model("llama")
    ids = torch.randint(0, 50, (2, length))
    found = []
    for on in (False, True):
        monkeypatch.setattr(Gather, "on", on)
        found.append(watched(model, ids))
    assert all(waiting(found[1]))
    check_same(*found)


def test_a_long_text_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "_CELLS", 2 * 4 * 50 * 50 - 1)
    model = tiny.model("llama")
    assert not any(waiting(watched(model, torch.randint(0, 50, (2, 300)))))


def test_a_pass_that_another_one_follows_is_accounted_for() -> None:
    """Also where the second one brings an error: what was seen of the first is there."""
    model, ids = tiny.model("llama"), torch.randint(0, 50, (1, 20))
    with torch.no_grad(), watch(model, runs="all") as seen:
        model(ids)
        assert all(waiting(seen))
        model(ids[:, :7])
        assert not any(waiting(seen._runs[0]))
        with pytest.raises(IndexError):
            model(ids + 10**6)
    assert [run[0].shape[-1] for run in seen.runs][:2] == [20, 7]
    assert torch.equal(seen.runs[0][0].entropy, watched(model, ids)[0].entropy)


def test_of_whoever_needs_more_than_the_account_nothing_waits(tmp_path: Path) -> None:
    model, ids = tiny.model("llama"), torch.randint(0, 50, (1, 20))
    for options in ({"folder": tmp_path / "run"}, {"stats": ("entropy", sl.Received(of="norms"))}):
        assert not any(waiting(watched(model, ids, **options)))
    assert load(tmp_path / "run")[0].shape[-1] == 20


def test_it_is_asked_once_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny.model("llama"), torch.randint(0, 50, (2, 60))
    seen, counted, done = watched(model, ids), [], []
    inner = resting.account_of
    monkeypatch.setattr(resting, "account_of", lambda *given: counted.append(1) or inner(*given))
    start = threading.Barrier(4)

    def ask(layer: int) -> None:
        start.wait()
        done.append(seen[layer % 2].entropy)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4
    assert len(counted) == 1, "both layers are alike: one account"


def test_a_copy_has_the_numbers_and_nothing_that_waits() -> None:
    model, ids = tiny.model("llama"), torch.randint(0, 50, (2, 20))
    plain = watched(model, ids)[1].entropy
    for copied in (copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer)), copy.copy):
        layer = watched(model, ids)._layers["model.layers.1.self_attn"]
        other = copied(layer)
        assert other.settle is None
        assert torch.equal(other.sight().entropy, plain)


def test_it_is_freed_with_whoever_asks() -> None:
    model, ids = tiny.model("llama"), torch.randint(0, 50, (2, 20))
    gc.collect()
    gc.disable()
    try:
        seen = watched(model, ids)
        assert all(waiting(seen))
        gone = [weakref.ref(one) for one in (seen, seen._layers["model.layers.1.self_attn"])]
        del seen
        assert [one() for one in gone] == [None, None]
        sight = watched(model, ids)[1]  # of a `Seen` that is gone
        assert sight.entropy.isfinite().all()
    finally:
        gc.enable()


def test_asking_under_another_mode_of_torch() -> None:
    """In inference mode, with gradients, under autocast or another default dtype: the same numbers."""
    model, ids = tiny.model("llama"), torch.randint(0, 50, (2, 20))
    plain = watched(model, ids)[1].entropy
    for mode in (torch.inference_mode(), torch.enable_grad(), torch.autocast("cpu", torch.bfloat16)):
        seen = watched(model, ids)
        with mode:
            assert torch.equal(seen[1].entropy, plain)
            assert not seen[1].entropy.requires_grad
    seen = watched(model, ids)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(seen[1].entropy, plain)
    finally:
        torch.set_default_dtype(torch.float32)
    layer = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 9, 16)
    seen = watched(layer, x, x, x)
    with watch(model) as other, torch.no_grad():
        assert seen[0].entropy.isfinite().all()
        model(ids)
        F.softmax(torch.randn(3), -1)
    assert other.layers
