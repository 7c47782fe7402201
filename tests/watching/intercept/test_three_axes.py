"""Attention of torch over [batch, time, dim]: one head for each member of the batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sightline as sl
from sightline.watching import watch
from watch_cases import STATS, check_statistics

BATCH, LENGTH, DIM = 3, 11, 8


class OneHead(nn.Module):
    """Somebody's single head, over as many axes as it is given."""

    def __init__(self, own=False, **options):
        super().__init__()
        self.project, self.own, self.options = nn.Linear(DIM, 3 * DIM), own, options

    def forward(self, x, mask=None):
        q, k, v = self.project(x).chunk(3, -1)
        if self.own:
            return sl.attention(q, k, v)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)


def weights_of(model, x, mask=None, causal=False):
    q, k, _ = model.project(x).chunk(3, -1)
    scores = q @ k.mT / DIM**0.5
    if causal:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1).nan_to_num(0.0)


def padded(side):
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    for i, hidden in enumerate((0, 3, 5)):
        real[i, slice(0, hidden) if side == "left" else slice(LENGTH - hidden, LENGTH)] = False
    return real


MASKS = {
    "none": None,
    "left": padded("left")[:, None],
    "right": padded("right")[:, None],
    "left and causal": padded("left")[:, None] & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(),
    "right and causal": padded("right")[:, None] & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(),
    "table": torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(2),
    "bias": torch.randn(BATCH, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)),
    "one bias": torch.randn(1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("keep", [False, True])
def test_three_axes_are_a_batch_of_one_head(name, keep):
    torch.manual_seed(2)
    model, x, mask = OneHead(), torch.randn(BATCH, LENGTH, DIM), MASKS[name]
    with torch.no_grad():
        plain = model(x, mask)
        with watch(model, stats=STATS, keep_qk=keep) as seen:
            assert torch.equal(model(x, mask), plain)
        weights = weights_of(model, x, mask)[:, None]
    assert seen[0].shape == (BATCH, 1, LENGTH, LENGTH)
    exists = None if weights.sum(-1).all() else (weights.sum(-1) > 0)[:, 0].long()
    check_statistics(seen[0], weights, exists)


def test_causal_and_one_sequence():
    torch.manual_seed(2)
    model, x = OneHead(is_causal=True), torch.randn(BATCH, LENGTH, DIM)
    with torch.no_grad():
        for given in (x, x[0]):
            with watch(model, stats=STATS) as seen:
                model(given)
            want = weights_of(model, given, causal=True).reshape(-1, 1, LENGTH, LENGTH)
            check_statistics(seen[0], want)


def test_a_query_for_all_members():
    torch.manual_seed(2)
    q, k = torch.randn(1, 1, DIM), torch.randn(BATCH, LENGTH, DIM)

    class Pool(nn.Module):
        def forward(self, k):
            return F.scaled_dot_product_attention(q, k, k)

    model = Pool()
    with torch.no_grad(), watch(model) as seen:
        model(k)
    assert seen[0].shape == (BATCH, 1, 1, LENGTH)
    torch.testing.assert_close(
        seen[0].tile(slice(None), slice(None))[:, 0], (q @ k.mT / DIM**0.5).softmax(-1), atol=1e-6, rtol=0
    )


def test_grouped_heads_and_attention_of_our_own_keep_their_heads():
    torch.manual_seed(2)
    q, k = torch.randn(4, LENGTH, DIM), torch.randn(2, LENGTH, DIM)

    class Grouped(nn.Module):
        def forward(self):
            return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    model, own = Grouped(), OneHead(own=True)
    with torch.no_grad():
        with watch(model) as seen:
            model()
        with watch(own) as ours:
            own(torch.randn(4, LENGTH, DIM))
    assert seen[0].shape == ours[0].shape == (1, 4, LENGTH, LENGTH)
