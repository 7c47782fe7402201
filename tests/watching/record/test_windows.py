"""Windows that are attended to one after another are one sight; other calls of one module are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.watching import load, watch
from watch_cases import STATS, check_statistics

HEADS, DIM = 2, 8
LENGTHS = [4, 1, 6, 3]
TIME = sum(LENGTHS)


class Windowed(nn.Module):
    """As Qwen-VL's vision layers do it."""

    def __init__(self, how):
        super().__init__()
        self.how, self.qkv = how, nn.Linear(HEADS * DIM, 3 * HEADS * DIM)

    def forward(self, x):
        q, k, v = self.qkv(x).view(TIME, 3, HEADS, DIM).permute(1, 2, 0, 3).unsqueeze(1)
        if self.how == "copies":
            parts = [[part.contiguous() for part in t.split(LENGTHS, 2)] for t in (q, k, v)]
        else:
            parts = [t.split(LENGTHS, 2) for t in (q, k, v)]
        if self.how == "backwards":
            parts = [list(reversed(t)) for t in parts]
        self.maps = [(a @ b.mT * DIM**-0.5).softmax(-1).detach() for a, b in zip(*parts[:2])]
        return torch.cat([F.scaled_dot_product_attention(*each) for each in zip(*parts)], 2)


@pytest.mark.parametrize("keep", [False, True])
def test_windows_are_one_sight(keep, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(Windowed("views")).eval()
    with torch.no_grad(), watch(model, stats=STATS, keep_qk=keep) as seen:
        model(torch.randn(TIME, HEADS * DIM))
    assert seen.layers == ["0"]
    want = torch.block_diag(*[m[0, 0] for m in model[0].maps]), torch.block_diag(*[m[0, 1] for m in model[0].maps])
    for found in (seen, load(seen.save(tmp_path / "run"))):
        check_statistics(found[0], torch.stack(want)[None])
    with torch.no_grad(), watch(model, runs="all") as seen:
        for _ in range(2):
            model(torch.randn(TIME, HEADS * DIM))
    assert [run[0].shape for run in seen.runs] == [(1, HEADS, TIME, TIME)] * 2


@pytest.mark.parametrize("how", ["copies", "backwards"])
def test_calls_that_do_not_follow_each_other_stay_apart(how):
    model = nn.Sequential(Windowed(how)).eval()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(TIME, HEADS * DIM))
    assert seen.layers == ["0", "0#2", "0#3", "0#4"]
