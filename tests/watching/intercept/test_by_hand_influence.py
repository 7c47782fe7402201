"""What attention written by hand mattered: its heads' output and values are known where its product can be followed."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.utils.checkpoint import checkpoint

import sightline as sl
import watch_by_hand as hand
from sightline.errors import InputError

# One of them drops weights by hand, and one asks with a single query.
KINDS = [kind for kind in hand.SEEN if kind not in (hand.Batched, hand.OfTheClass)]
ALL = (slice(None), slice(None))


def target(out):
    return (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_that_of_a_dense_copy(kind, frozen):
    torch.manual_seed(0)
    model, x = kind().eval().requires_grad_(not frozen), torch.randn(2, hand.TIME, hand.DIM)
    plain = model(x)
    with sl.watch(model, influence=True, keep_qk=True, keep_output=True) as seen:
        out = model(x)
        seen.backward(target(out))
    assert torch.equal(out, plain)
    weights = model.kept.view(2, hand.HEADS, hand.TIME, hand.TIME).double().softmax(-1)
    wide = kind().double()
    wide.load_state_dict(model.state_dict())
    v = wide.qkv(x.double()).chunk(3, dim=-1)[2].unflatten(-1, (hand.HEADS, -1)).transpose(1, 2).detach()
    o = (weights @ v).requires_grad_()
    (g,) = torch.autograd.grad(target(wide.out(o.transpose(1, 2).flatten(2))), o)
    close = {"rtol": 1e-4, "atol": 1e-6}
    sight = seen[0]
    cells, pull = (sight.tile(*ALL, of=of).double() for of in ("influence", "pull"))
    torch.testing.assert_close(sight.influence.double(), (g * o.detach()).sum(-1), **close)
    torch.testing.assert_close(cells, weights * (g @ v.mT), **close)
    torch.testing.assert_close(pull, weights * (g @ v.mT - (g * o.detach()).sum(-1, keepdim=True)), **close)
    torch.testing.assert_close(seen.output(0).double(), o.detach(), **close)
    parts = wide.out.weight.view(-1, hand.HEADS, hand.DIM // hand.HEADS).permute(1, 2, 0)
    sizes = (v @ parts).norm(dim=-1).detach()
    assert sight.norms_of == "out"
    torch.testing.assert_close(sight.tile(*ALL, of="norms").double(), weights * sizes[..., None, :], **close)


def small(family):
    torch.manual_seed(0)
    if family == "bloom":
        model = transformers.BloomModel(transformers.BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4))
        return model.eval(), "dense of h.{}.self_attention"
    if family == "gptj":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 32}
        return transformers.GPTJModel(transformers.GPTJConfig(vocab_size=50, **sizes)).eval(), "out_proj of h.{}.attn"
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.DebertaV2Config(vocab_size=50, relative_attention=True, pos_att_type=["p2c", "c2p"], **sizes)
    return transformers.DebertaV2Model(config).eval(), "dense of encoder.layer.{}.attention.output"


@pytest.mark.parametrize("family", ["bloom", "gptj", "deberta"])
def test_real_models_against_autograd(family):
    model, projection = small(family)
    ids = torch.randint(1, 49, (2, 7))
    with sl.watch(model, influence=True, keep_qk=True) as seen:
        seen.backward(target(model(input_ids=ids)[0]))
    taken = {}
    for i in range(2):
        last, _, path = projection.format(i).partition(" of ")
        module = model.get_submodule(f"{path}.{last}")
        module.register_forward_pre_hook(
            lambda _, args, i=i: (args[0].retain_grad(), taken.update({i: args[0]}), None)[2]
        )
    target(model(input_ids=ids)[0]).backward()
    for i, x in taken.items():
        sight, rows = seen[i], (x.grad * x).unflatten(-1, (4, 8)).sum(-1).transpose(1, 2)
        assert sight.norms_of == projection.format(i)
        torch.testing.assert_close(sight.influence, rows.detach(), rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(sight.tile(*ALL, of="influence").sum(-1), rows.detach(), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("kind", [hand.Plain, hand.Capped])
def test_under_edits_it_is_of_what_is_left(kind):
    torch.manual_seed(0)
    model, x = kind().eval().requires_grad_(False), torch.randn(2, hand.TIME, hand.DIM)
    with sl.watch(model, influence=True, keep_qk=True) as other:
        model(x + 1)

    def run(factor):
        with sl.watch(model, influence=True, keep_qk=True) as seen, sl.edit(model) as edits:
            edits.patch(other, "values", heads=0)
            edits.cut(keys=2, heads=1)
            edits.scale(factor, heads=1)
            y = target(model(x))
            seen.backward(y)
        return float(y.detach()), seen[0]

    sight = run(0.5)[1]
    (above, _), (below, _) = run(0.505), run(0.495)
    assert float(sight.influence[:, 1].sum()) == pytest.approx((above - below) / 0.02, rel=1e-3)
    torch.testing.assert_close(sight.tile(*ALL, of="influence").sum(-1), sight.influence, rtol=1e-4, atol=1e-6)
    assert not sight.tile(*ALL, of="influence")[:, 1, :, 2].any()


class TimeFirst(hand.Projected):
    """Values whose axes lie in an order that is not looked for."""

    def attend(self, q, k, v):
        weights = (q @ k.mT / 4).softmax(-1)
        return torch.einsum("bnij,jbnd->ibnd", weights, v.permute(2, 0, 1, 3)).permute(1, 2, 0, 3)


class Checkpointed(hand.Plain):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)


@pytest.mark.parametrize("kind", [TimeFirst, Checkpointed])
def test_where_it_cannot_be_told_that_is_said(kind):
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(2, hand.TIME, hand.DIM, requires_grad=True)
    with sl.watch(model, influence=True, keep_qk=True) as seen:
        y = target(model(x))
        with pytest.raises(InputError, match="writes out by hand"):
            seen.backward(y)
        y.backward()
    for ask in (lambda: seen[0].influence, lambda: seen[0].top(1, of="pull"), lambda: seen[0].top(1, of="norms")):
        with pytest.raises(InputError, match="written by hand"):
            ask()


def test_what_is_refused_of_other_attention_is_refused_here():
    model, x = hand.Batched(), torch.randn(2, hand.TIME, hand.DIM)
    with pytest.raises(InputError, match="dropout"), sl.watch(model, influence=True):
        model(x)
    model = hand.Plain().eval()
    with torch.no_grad(), pytest.raises(InputError, match="needs gradients"), sl.watch(model, influence=True):
        model(x)
