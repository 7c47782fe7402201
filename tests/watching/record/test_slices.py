"""Maps that are computed a few at a time are one layer, as in sliced diffusers."""

from __future__ import annotations

import pytest
import torch

from sightline.watching import load
from sightline.watching.intercept.by_hand import AXES
from sightline.watching.record.slices import SLICED
from watch_by_hand import DIM, HEADS, TIME, Projected, padding, run
from watch_cases import check_statistics

STATS = ("entropy", "distance", "max_score", "received", "overview", "overview_max", "shares")


class Sliced(Projected):
    """So many of all maps at a time, and of all how many."""

    size, maps = 1, None

    def attend(self, q, k, v):
        every = (q @ k.mT / 4).masked_fill(~self.real[:, None, None], torch.finfo(q.dtype).min)
        self.keep(every)
        hidden = (~self.real).float().repeat_interleave(self.heads, 0)[:, None] * torch.finfo(q.dtype).min
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        found = torch.zeros_like(v)
        for start in range(0, self.maps or len(q), self.size):
            part = slice(start, start + self.size)
            scores = torch.baddbmm(hidden[part], q[part], k[part].transpose(1, 2), alpha=0.25)
            found[part] = torch.bmm(scores.softmax(-1), v[part])
        return found.view(-1, self.heads, *found.shape[1:])


def sliced(size, side=None, heads=HEADS, **options):
    torch.manual_seed(1)
    model = torch.nn.Sequential(Sliced(heads)).eval()
    model[0].size, model[0].real = size, padding(side)
    x = torch.randn(2, TIME, DIM)
    return model[0], run(model, x, **options)


@pytest.mark.parametrize("size", [1, 3, 4, 8])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_slices_are_one_layer(size, side):
    model, seen = sliced(size, side, heads=4, stats=STATS)
    assert seen.layers == ["0"]
    assert not seen.unseen
    weights = model.kept.double().softmax(-1)
    check_statistics(seen[0], weights)
    torch.testing.assert_close(seen[0].lse, model.kept.logsumexp(-1))
    first = padding(side).int().argmax(-1)
    for i in range(2):
        torch.testing.assert_close(seen.shares(0)["first"][i], weights[i, :, :, first[i]].float())
    rows = seen._layers["0"].rows("real")
    assert rows is None if side is None else torch.equal(rows, padding(side))


def test_some_heads_of_slices_and_a_folder(tmp_path):
    model, seen = sliced(3, "left", heads=4)
    chosen = run(torch.nn.Sequential(model), torch.zeros(2, TIME, DIM), heads=[1, 3])
    assert chosen.heads(0) == [1, 3]
    torch.testing.assert_close(chosen[0].lse, model.kept.logsumexp(-1)[:, [1, 3]])
    again = load(seen.save(tmp_path / "run"))
    torch.testing.assert_close(again[0].entropy, seen[0].entropy)


def test_slices_that_are_not_all_are_named():
    torch.manual_seed(1)
    model = torch.nn.Sequential(Sliced(4)).eval()
    model[0].size, model[0].maps = 3, 6
    seen = run(model, torch.randn(2, TIME, DIM))
    assert not seen.layers
    assert seen.unseen == {"0": SLICED}


def test_as_many_maps_as_heads_are_not_taken_for_them():
    """One map for each of four texts, in a module that says that it has four heads."""

    class Alone(Projected):
        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return self.out((q.clone() @ k.clone().mT).softmax(-1) @ v)

    seen = run(torch.nn.Sequential(Alone(4)).eval(), torch.randn(4, TIME, DIM))
    assert set(seen.unseen.values()) <= {AXES, SLICED}
    assert "0" in seen.unseen
