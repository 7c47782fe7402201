"""What mattered under edits: where a head's output is replaced or scaled, its weights matter through what is left."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from watch_cases import inputs, model

HEAD = (1, 2)


def seen_under(net, change, given, *, keep=True):
    with sl.edit(net) as edits, sl.watch(net, influence=True, keep_qk=keep) as seen:
        if change is not None:
            change(edits)
        y = net(**given).logits[:, -1, 3].sum()
        seen.backward(y)
    return float(y.detach()), seen


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_weights_matter_through_what_is_left_of_a_head(name, frozen) -> None:
    net = model(name, "sdpa").double().eval().requires_grad_(not frozen)
    given = inputs(name, "left", length=11)

    def scaled(factor):
        return lambda edits: edits.scale(factor, heads=[HEAD])

    half = seen_under(net, scaled(0.5), given)[1]
    step = 1e-2  # Llama norms in float32, whatever it is given
    above, below = (seen_under(net, scaled(0.5 * (1 + x)), given, keep=False)[0] for x in (step, -step))
    sight = half[half.layers[HEAD[0]]]
    assert float(sight.influence[:, HEAD[1]].sum()) == pytest.approx((above - below) / (2 * step), rel=1e-3)
    for change in (scaled(0.5), lambda edits: edits.ablate(heads=[HEAD]), lambda edits: edits.cut(keys=[2]), None):
        seen = seen_under(net, change, given)[1]
        for layer in seen.layers:
            cells = seen[layer].tile(slice(None), slice(None), of="influence")
            torch.testing.assert_close(cells.sum(-1), seen[layer].influence, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("first", [0, 1])
def test_what_is_replaced_does_not_matter(first) -> None:
    """Also in the first layer of a frozen model, whose output nothing else would put into a graph."""
    net = model("llama", "sdpa").eval().requires_grad_(False)
    given = inputs("llama", "right", length=9)
    _, seen = seen_under(net, lambda edits: edits.ablate(heads=[(first, 2)]), given)
    sight = seen[seen.layers[first]]
    cells = sight.tile(slice(None), slice(None), of="influence")
    assert not sight.influence[:, 2].any()
    assert not cells[:, 2].any()
    assert cells[:, 1].abs().max() > 1e-4


@pytest.mark.parametrize("options", [{"sinks": torch.tensor([0.5, -1.0])}, {"normalizer": "sigmoid"}])
@pytest.mark.parametrize("groups", [1, 2])
def test_patched_values_are_what_mattered_also_where_rows_do_not_sum_to_one(options, groups) -> None:
    torch.manual_seed(0)

    class Attends(torch.nn.Module):
        def forward(self, x):
            q, k, v = x.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            return sl.attention(q, k[:, : 2 // groups], v[:, : 2 // groups], **options)

    net = Attends()
    here, there = torch.randn(2, 2, 5, 24, requires_grad=True)
    with sl.watch(net, influence=True, keep_qk=True) as source:
        net(there)
    with sl.edit(net) as edits, sl.watch(net, influence=True, keep_qk=True) as seen:
        edits.patch(source, "values", heads=1)
        edits.force("uniform", heads=0, queries=slice(2, None))
        seen.backward(net(here).square().sum())
    cells = seen[0].tile(slice(None), slice(None), of="influence")
    torch.testing.assert_close(cells.sum(-1), seen[0].influence)
