"""The gradient of a target at the heads' outputs: against autograd, however a model attends, and refused in words."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import sightline as sl
import watch_cases as tiny
from model_cases import smollm2, smollm2_tokenizer
from sightline.errors import InputError, InputTypeError
from sightline.watching import load, watch
from sightline.watching.record import influence
from sightline.watching.record.layer import Part

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*attended without being seen:UserWarning"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
]

FAMILIES = ["llama", "mistral", "gpt2", "bert", "t5", "vit"]


def target(output):
    logits = tiny.logits(output)
    return logits[:, -1].square().sum(-1) if logits.dim() == 3 else logits.square().sum(-1)


class OnItsWay:
    """g . o of a layer as a GPU sends it: here once somebody asks, beside that of other layers, and never pickled."""

    def __init__(self, x, reads=None):
        self.every, self.reads, self.lock = torch.stack([x, x]), [] if reads is None else reads, threading.Lock()

    def result(self):
        with self.lock:
            self.reads.append(self)
            return {"along": self.every[0]}


def on_their_way(monkeypatch):
    """Have all of it arrive late; who asked for what comes in the list."""
    reads = []
    monkeypatch.setattr(influence, "_sent", lambda found: [OnItsWay(x, reads) for x in found])
    return reads


def part_with(**extra):
    return Part(None, 0, 0, 3, (1, 1), {}, extra=extra)


def projection(model, sight):
    """The module that `norms_of` names."""
    last, _, path = sight.extra.norms_of.partition(" of ")
    return model.get_submodule(f"{path}.{last}")


def by_hand(model, given, modules):
    """g . o of every head, from the inputs of the output projections in a run of its own."""
    taken = {}

    def keep(module, args):
        args[0].retain_grad()
        taken[module] = args[0]

    hooks = [module.register_forward_pre_hook(keep) for module in modules]
    target(model(**given)).sum().backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad()
    return [taken[module] for module in modules]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_against_autograd_frozen_and_not(family, implementation):
    model = tiny.model(family, implementation).double()
    given = tiny.inputs(family, "left" if implementation == "sdpa" and family != "vit" else None, length=7)
    given = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    with watch(model, influence=True, keep_qk=True) as seen:
        out = model(**given)
        seen.backward(target(out))
    assert all(p.grad is None for p in model.parameters())
    expected = by_hand(model, given, [projection(model, seen[name]) for name in seen.layers])
    model.requires_grad_(False)
    out = model(**given)
    with watch(model, influence=True) as frozen:
        again = model(**given)
        frozen.backward(target(again))
    assert torch.equal(tiny.logits(out), tiny.logits(again))
    for name, x in zip(seen.layers, expected):
        sight = seen[name]
        batch, heads, queries, _ = sight.shape
        four = [t.reshape(batch, queries, heads, -1).transpose(1, 2) for t in (x.detach(), x.grad)]
        assert (sight.extra.grad - four[1]).abs().max() <= 1e-12 * four[1].abs().max()
        along = (four[0] * four[1]).sum(-1)
        for extra in (sight.extra, frozen[name].extra):
            assert (extra.along - along).abs().max() <= 1e-12 * along.abs().max()
        assert frozen[name].extra.grad is None
        assert frozen[name].extra.v is None
        # Cells: the weights times g . v.
        groups = heads // sight.extra.v.shape[1]
        cells = sight.tile(slice(None), slice(None), of="influence")
        by_hand_too = sight.extra.grad @ sight.extra.v.repeat_interleave(groups, 1).mT
        torch.testing.assert_close(cells, sight.tile(slice(None), slice(None)) * by_hand_too)
        # Some models take their softmax in float32.
        assert (cells.sum(-1) - along).abs().max() <= 1e-6 * along.abs().max()
        weight = projection(model, sight).weight
        weight = weight if isinstance(projection(model, sight), nn.Linear) else weight.mT
        dim = sight.extra.v.shape[-1]
        for head in range(heads):
            part = sight.extra.v[:, head // groups] @ weight[:, head * dim : (head + 1) * dim].mT
            torch.testing.assert_close(sight.extra.sizes[:, head], part.norm(dim=-1).detach())


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_models_own_backward_pass_and_checkpoints(reentrant):
    given = tiny.inputs("llama", "left", length=9)
    plain = tiny.model("llama")
    with watch(plain, influence=True) as expected:
        expected.backward(target(plain(**given)))
    model = tiny.model("llama").train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    with watch(model, influence=True, keep_qk=True) as seen:
        y = target(model(**given)).sum()
        if reentrant:
            with pytest.raises(InputError, match="reentrant checkpoint"):
                seen.backward(y)
        y.backward()
    assert all(len(layer.parts) == 1 for layer in seen._layers.values()), "running again is no second call"
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    target(model(**given)).sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, model.parameters()))
    for name in seen.layers:
        torch.testing.assert_close(seen[name].extra.along, expected[name].extra.along, atol=1e-6, rtol=1e-4)
        assert seen[name].extra.grad.abs().sum() > 0


class Attends(nn.Module):
    """One attention call, and a projection."""

    def __init__(self, how, width=16, heads=2):
        super().__init__()
        self.how, self.heads = how, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(self.how(q, k, v).transpose(1, 2).reshape(batch, time, width))


class ByMultihead(nn.Module):
    def __init__(self, weights, first, batched=True):
        super().__init__()
        self.attn, self.weights, self.batched = nn.MultiheadAttention(16, 2, batch_first=first), weights, batched

    def forward(self, x):
        x = x if self.batched else x[0]
        out = self.attn(x, x, x, need_weights=self.weights)[0]
        return out if self.batched else out[None]


WAYS = {
    "sdpa": lambda: Attends(F.scaled_dot_product_attention),
    "causal": lambda: Attends(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    "three axes": lambda: Attends(
        lambda q, k, v: F.scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0])[:, None], 16, 1
    ),
    "flex": lambda: Attends(flex_attention),
    "sl.attention": lambda: Attends(lambda q, k, v: sl.attention(q, k, v, mask=sl.causal())),
    "sl.attention, relu": lambda: Attends(lambda q, k, v: sl.attention(q, k, v, normalizer="relu")),
    "multihead": lambda: ByMultihead(False, True),
    "multihead, weights": lambda: ByMultihead(True, True),
    "multihead, time first": lambda: ByMultihead(True, False),
    "multihead, one text": lambda: ByMultihead(False, True, False),
    "sl.nn": lambda: sl.nn.Encoder(16, 2, layers=2),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_attend_gives_the_change_of_a_scaled_head(way):
    """Influence is the derivative of y by a factor at the head's output: measured by differences, in float64."""
    model = WAYS[way]().double().eval()
    x = torch.randn(1 if way == "multihead, one text" else 3, 5, 16, dtype=torch.float64)
    for frozen in (True,) if way == "flex" else (False, True):  # torch has no backward of it on the CPU
        model.requires_grad_(not frozen)
        with torch.enable_grad():
            expected = model(x)
        with watch(model, influence=True, keep_qk=True) as seen:
            out = model(x)
            assert torch.equal(out, expected) or "multihead" in way or way == "encoder", "but for the fast path"
            torch.testing.assert_close(out, expected)
            seen.backward(out[..., 0].square().sum(-1).flatten())
        sight = seen[-1]
        last = sight.extra
        cells = sight.tile(slice(None), slice(None), of="influence")
        torch.testing.assert_close(cells.sum(-1), last.along)
        assert "the values alone" not in last.norms_of, last.norms_of
        layer = model.get_submodule(seen.layers[-1]) if seen.layers[-1] in dict(model.named_modules()) else model
        weight = next(getattr(layer, name).weight for name in ("out", "out_proj", "output") if hasattr(layer, name))
        # dy / d(factor of head 0): its part of the projection's output, times the gradient there.
        heads, dim = sight.shape[1], last.v.shape[-1]
        scaled = out.detach()
        if way not in ("sl.nn", "encoder"):
            output = (sight.tile(slice(None), slice(None)) @ last.v)[:, 0]  # [batch, queries, dim]
            part = output @ weight[:, :dim].mT
            if way == "multihead, time first":
                # torch's first axis is time there.
                part, scaled = part.transpose(0, 1), scaled
            change = (2 * scaled[..., 0] * part[..., 0]).sum()
            torch.testing.assert_close(last.along[:, 0].sum(), change.detach())
        assert heads * dim == 16


def test_a_second_target_takes_the_place_of_the_first_or_is_added():
    model, given = tiny.model("llama"), tiny.inputs("llama")
    with watch(model, influence=True, keep_qk=True) as seen:
        logits = model(**given).logits
        one, two = logits[:, -1, 3], logits[:, 2, 5]
        seen.backward(two)
        of_two = seen[0].extra
        seen.backward(one)
        of_one = seen[0].extra
        seen.backward(two, add=True)
        both = seen[0].extra
    assert not torch.allclose(of_one.along, of_two.along)
    torch.testing.assert_close(both.along, of_one.along + of_two.along)
    torch.testing.assert_close(both.grad, of_one.grad + of_two.grad)
    seen.backward(two)
    torch.testing.assert_close(seen[0].extra.along, of_two.along)
    with watch(model, influence=True) as seen:
        seen.backward(model(**given).logits[:, 4, 3].sum())
    assert (seen[0].extra.along[..., 5:] == 0).all(), "what y does not read has no influence"
    with watch(model, influence=True) as seen:
        logits = model(**given).logits
        logits[:, -1, 3].sum().backward(retain_graph=True)
        logits[:, 2, 5].sum().backward()
    torch.testing.assert_close(seen[0].extra.along, of_two.along)


def test_heads_and_layers_that_are_chosen():
    model, given = tiny.model("llama"), tiny.inputs("llama")
    with watch(model, influence=True, keep_qk=True) as every:
        every.backward(target(model(**given)))
    with watch(model, layers=1, heads=[1, 3], influence=True, keep_qk=True) as seen:
        seen.backward(target(model(**given)))
    all_of_it, some = every[1].extra.select(every[1].call.sizes.groups, None, [1, 3]), seen[0].extra
    for a, b in zip(some[:4], all_of_it[:4]):
        torch.testing.assert_close(a, b)


def test_steps_with_a_cache_have_their_own_gradients():
    model, ids = tiny.model("llama"), tiny.inputs("llama")["input_ids"]
    with watch(model, influence=True, keep_qk=True) as whole:
        whole.backward(model(input_ids=ids).logits[:, -1, 3])
    with watch(model, influence=True, keep_qk=True) as seen:
        cache = model(input_ids=ids[:, :-2], use_cache=True).past_key_values
        for i in (-2, -1):
            out = model(input_ids=ids[:, i:][:, :1], past_key_values=cache)
        seen.backward(out.logits[:, -1, 3])
    for name in seen.layers:
        assert seen[name].shape == whole[name].shape
        for a, b in zip(seen[name].extra[:4], whole[name].extra[:4]):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-3)


def test_it_works_after_the_block_and_gives_other_runs_nothing():
    model, given = tiny.model("gpt2"), tiny.inputs("gpt2")
    with watch(model, influence=True) as seen:
        y = target(model(**given))
    seen.backward(y)
    assert seen[0].extra.along is not None
    with watch(model) as plain:
        model(**given)
    assert plain[0].extra == sl.look(torch.eye(2), torch.eye(2)).extra, "nothing is known where nothing was asked"
    with pytest.raises(InputError, match="influence=True"):
        plain.backward(y)


def test_what_cannot_be_told_is_refused_in_one_line_each():
    model, given = tiny.model("llama"), tiny.inputs("llama")
    for mode, said in ((torch.no_grad, "torch.no_grad"), (torch.inference_mode, "torch.inference_mode")):
        with pytest.raises(InputError, match=said), mode(), watch(model, influence=True):
            model(**given)
    with watch(model, influence=True) as seen:
        with pytest.raises(InputError, match="no attention was seen"):
            seen.backward(torch.zeros((), requires_grad=True))
        y = target(model(**given))
        with pytest.raises(InputError, match="y is detached"):
            seen.backward(y.detach())
        with pytest.raises(InputError, match="does not depend"):
            seen.backward(torch.zeros(3, requires_grad=True) * 2)
        for wrong in (1.0, torch.zeros(2, 2), torch.ones(3, dtype=torch.int64)):
            with pytest.raises(InputTypeError, match="one number per example"):
                seen.backward(wrong)
        y.sum().backward()
        with pytest.raises(InputError, match="the graph of y is gone"):
            seen.backward(y)
    trained = tiny.model("llama", attention_dropout=0.3).train()
    state = torch.get_rng_state()
    with pytest.raises(InputError, match="no influence under dropout"), watch(trained, influence=True):
        trained(**given)
    assert torch.equal(torch.get_rng_state(), state), "refused before a number was drawn"
    dropped = nn.MultiheadAttention(16, 2, dropout=0.5, batch_first=True).train()
    x = torch.randn(1, 4, 16)
    with pytest.raises(InputError, match="dropout"), watch(dropped, influence=True):
        dropped(x, x, x)


def test_attention_that_is_written_by_hand_and_cannot_be_told_says_so():
    """Of these the weights are seen, and not how what the heads gave lies."""

    def attend(q, k, v):
        weights = (q @ k.mT / 8**0.5).softmax(-1)
        return torch.einsum("bnij,jbnd->ibnd", weights, v.permute(2, 0, 1, 3)).permute(1, 2, 0, 3)

    both = nn.Sequential(Attends(attend), Attends(F.scaled_dot_product_attention))
    with watch(both, influence=True, keep_qk=True) as seen:
        seen.backward(both(torch.randn(1, 5, 16)).sum())
    table = seen.by_head()
    assert table[:, 0].isnan().all()
    assert table[:, 1].isfinite().all()


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attends(F.scaled_dot_product_attention) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return {"hidden": x, "length": x.shape[1]}


@pytest.mark.parametrize("whole, frozen", [(True, False), (False, True)], ids=["the model", "each layer, frozen"])
def test_a_compiled_model(whole, frozen):
    """Influence is that of the same model uncompiled; its own output and gradients are those of its compiled code."""
    torch.manual_seed(0)
    model = TwoLayers().requires_grad_(not frozen)
    x = torch.randn(2, 5, 16)
    with watch(model, influence=True, keep_qk=True) as plain:
        plain.backward(model(x)["hidden"][:, -1].sum(-1))
    for part in (model,) if whole else model.layers:
        part.compile(backend="eager")
    expected, grads = model(x)["hidden"], []
    for again in range(2):
        model.zero_grad()
        with watch(model, influence=True, keep_qk=True) if again else contextlib.nullcontext() as seen:
            out = model(x)["hidden"]
            assert torch.equal(out, expected)
            if not frozen or again:
                out[:, -1].sum().backward(retain_graph=True)
        grads.append([p.grad for p in model.parameters()])
    assert all((a is None and b is None) or torch.equal(a, b) for a, b in zip(*grads))
    for passes in range(2):  # the model's own backward pass, and seen.backward
        assert seen.layers == plain.layers
        for name in plain.layers:
            torch.testing.assert_close(seen[name].influence, plain[name].influence, atol=1e-5, rtol=1e-4)
            assert torch.equal(seen[name].top(1, of="pull").keys, plain[name].top(1, of="pull").keys)
        if not passes:
            seen.backward(out[:, -1].sum(-1))
    assert [p.requires_grad for p in model.parameters()] == [not frozen] * len(list(model.parameters()))
    with pytest.raises(InputError, match="needs gradients"), torch.no_grad(), watch(model, influence=True):
        model(x)


def test_a_compiled_model_that_gives_what_nobody_can_follow():
    class Box:
        def __init__(self, x):
            self.x = x

    model = Attends(F.scaled_dot_product_attention)
    plain = model.forward
    model.forward = lambda x: Box(plain(x))
    model.compile(backend="eager")
    with pytest.raises(InputError, match="no gradient can be followed"), watch(model, influence=True):
        model(torch.randn(1, 5, 16))
    assert all(p.requires_grad for p in model.parameters())
    with torch.compiler.set_stance("force_eager"), watch(model, influence=True) as seen:
        seen.backward(model(torch.randn(1, 5, 16)).x.sum())
    assert seen[0].extra.along.shape == (1, 2, 5)


def test_a_model_that_writes_into_the_heads_output():
    """The gradient is that of the output before; its numbers are gone, and that is said."""
    model = Attends(lambda q, k, v: F.scaled_dot_product_attention(q, k, v).mul_(2.0)).requires_grad_(False)
    x = torch.randn(1, 5, 16)
    expected = model(x)
    with watch(model, influence=True) as seen:
        out = model(x)
        assert torch.equal(out, expected)
        with pytest.raises(InputError, match="changed in place"):
            seen.backward(out.sum())


def test_a_gradient_that_is_refused_leaves_what_was_known():
    """Of two layers the second one writes into its heads' output, after a first gradient was taken."""
    first, second = (Attends(F.scaled_dot_product_attention) for _ in range(2))
    model, x = torch.nn.Sequential(first, second).requires_grad_(False), torch.randn(1, 5, 16)
    with watch(model, influence=True) as seen:
        y = model(x).sum()
    seen.backward(y)
    before = [seen[i].influence for i in range(2)]
    tap = seen._influence.taps[1]
    tap.count -= 1  # as if somebody had written into it
    with pytest.raises(InputError, match="changed in place"):
        seen.backward(2 * y)
    for i in range(2):
        assert torch.equal(seen[i].influence, before[i])


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_bits_and_gradients(family, frozen):
    model, given = tiny.model(family).requires_grad_(not frozen), tiny.inputs(family)
    results = []
    for around in (contextlib.nullcontext(), watch(model, influence=True)):
        model.zero_grad()
        with around:
            out = tiny.logits(model(**given))
            if not frozen:
                out.float().square().mean().backward()
        results.append([out.detach(), *(p.grad for p in model.parameters() if not frozen)])
    assert all((a is None and b is None) or torch.equal(a, b) for a, b in zip(*results))


def test_checkpoints_by_hand_and_a_layer_that_runs_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Attends(F.scaled_dot_product_attention)

        def forward(self, x, again=None):
            for _ in range(2):
                x = self.layer(x) if again is None else checkpoint(self.layer, x, use_reentrant=again)
            return x

    model, x = Twice(), torch.randn(2, 5, 16, requires_grad=True)
    found = []
    for again in (None, False, True):
        with watch(model, influence=True) as seen:
            model(x, again)[:, -1].sum().backward()
        assert seen.layers == ["layer", "layer#2"]
        found.append([seen[name].extra.along for name in seen.layers])
    for other in found[1:]:
        for a, b in zip(found[0], other):
            torch.testing.assert_close(a, b)
    assert not torch.allclose(*found[0])


def test_on_a_trained_model_one_head_names_the_one_who_gets_the_drink():
    """SmolLM2 says Mary and not John by what one head reads at the second John; ablated exactly, heads agree."""
    model = smollm2()
    tokenizer = smollm2_tokenizer()
    ids = torch.tensor([tokenizer.encode("When Mary and John went to the store, John gave a drink to").ids])
    mary, john = (tokenizer.encode(name).ids[0] for name in (" Mary", " John"))
    difference = sl.targets.logit(mary, than=john)
    with watch(model, influence=True, keep_qk=True) as seen:
        y = difference(model(ids))
        seen.backward(y)
    assert abs(y.item() - 6.12) < 0.005
    table = seen.by_head()[0]
    assert abs(table[23, 3].item() - 2.60) < 0.005
    assert table[2:].argmax() == 21 * 9 + 3
    edge = seen[23].top(1, of="influence")
    assert edge.keys[0, 3, -1, 0] == 9
    assert abs(edge.weights[0, 3, -1, 0].item() - 2.785) < 0.001
    # Every head of the upper layers left out, exactly: one example of a batch for each, from that layer on.
    decoder, layers, streams = model.decoder, list(model.decoder.layers), []
    hooks = [layer.register_forward_pre_hook(lambda _, args: streams.append(args[0])) for layer in layers]
    exact = torch.zeros(10, 9)
    with torch.no_grad():
        model(ids)
        [hook.remove() for hook in hooks]
        for i, start in enumerate(range(20, 30)):
            rest = copy.copy(decoder)
            rest._modules = dict(decoder._modules) | {"layers": nn.ModuleList(layers[start:])}
            hook = layers[start].attention.output.register_forward_pre_hook(without_one_each)
            logits = model.head(rest(streams[start].expand(9, -1, -1))[:, -1:])
            hook.remove()
            exact[i] = y - difference(logits)
    assert abs(exact[3, 3].item() - 3.04) < 0.005
    assert torch.corrcoef(torch.stack([table[20:].flatten(), exact.flatten()]))[0, 1] > 0.97


def without_one_each(module, args):
    """The first example without its first head, the second without its second, and so on."""
    heads = args[0].unflatten(-1, (9, -1)).clone()
    heads[torch.arange(9), :, torch.arange(9)] = 0
    return heads.flatten(-2)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_under_edits_it_is_of_what_the_model_was_given(implementation):
    model, given = tiny.model("llama", implementation).requires_grad_(False), tiny.inputs("llama")
    everything = slice(None), slice(None)
    with sl.edit(model) as edits:
        edits.scale(0.5, layers=0, heads=[1])
        edits.cut(keys=2, layers=1)
        with watch(model, influence=True, keep_qk=True) as seen:
            seen.backward(model(**given).logits[:, -1, 3])
    cut, scaled = seen[1], seen[0]
    assert cut.tile(*everything)[..., 2].sum() == 0
    assert cut.influence.abs().sum() > 1
    torch.testing.assert_close(cut.tile(*everything, of="influence").sum(-1), cut.influence, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(scaled.tile(*everything, of="influence").sum(-1), scaled.influence, atol=1e-5, rtol=1e-4)


def test_a_checkpoint_in_which_nothing_requires_a_gradient_is_refused_in_words():
    """What was put into the graph for influence is not there when the checkpoint runs again."""
    layer = Attends(F.scaled_dot_product_attention).requires_grad_(False)
    model = nn.Sequential(layer)
    model.forward = lambda x: checkpoint(layer, x, use_reentrant=False)
    with watch(model, influence=True) as seen:
        y = model(torch.randn(1, 5, 16)).sum()
        with pytest.raises(InputError, match="a checkpoint of a frozen model"):
            seen.backward(y)
    x = torch.randn(1, 5, 16, requires_grad=True)
    with watch(model, influence=True) as seen:
        seen.backward(model(x).sum())
    assert seen[0].influence.abs().max() > 0


def test_what_is_on_its_way_is_fetched_once_and_kept():
    x = torch.randn(1, 2, 3)
    assert part_with().along() is None
    assert part_with(along=x).along() is x
    late = OnItsWay(x)
    part = part_with(along=late)
    here = part.along()
    assert part.along() is here is part.extra["along"]
    assert torch.equal(here, x)
    assert len(late.reads) == 1
    assert here.untyped_storage().nbytes() == x.nbytes, "and not the memory of all layers"
    with torch.inference_mode():
        assert not part_with(along=OnItsWay(x)).along().is_inference()


def test_a_gradient_that_comes_while_the_last_one_is_fetched_stays():
    x, y = torch.randn(2, 1, 2, 3)

    class Slow(OnItsWay):
        def result(self):
            part.extra["along"] = y
            return super().result()

    part = part_with(along=Slow(x))
    assert torch.equal(part.along(), x)
    assert part.along() is y


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda part: pickle.loads(pickle.dumps(part))])
def test_copies_have_what_was_on_its_way(copied):
    x = torch.randn(1, 2, 3)
    part = part_with(along=OnItsWay(x))
    part.arriving = OnItsWay(x)
    found = copied(part)
    assert torch.equal(found.extra["along"], x)
    assert torch.equal(found.arriving["along"], x)


def test_nobody_waits_before_it_is_read(monkeypatch, tmp_path):
    """The same numbers as at once: read, replaced, added to, left alone, copied and saved."""
    model, given = tiny.model("llama"), tiny.inputs("llama", "left")
    with watch(model, influence=True) as expected:
        known = target(model(**given))
    expected.backward(known)
    reads = on_their_way(monkeypatch)
    with watch(model, influence=True) as seen:
        y = target(model(**given))
        seen.backward(2 * y)
        seen.backward(y)
    assert not reads
    first, last = seen.layers[0], seen.layers[-1]
    copies = [copy.deepcopy(seen._layers[last]), pickle.loads(pickle.dumps(seen._layers[last]))]
    assert len(reads) == 1
    for layer in copies:
        assert torch.equal(layer.sight().influence, expected[last].influence)
    threads = [threading.Thread(target=lambda: seen[first].influence) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in load(seen.save(tmp_path / "run")).layers:
        assert torch.equal(load(tmp_path / "run")[name].influence, expected[name].influence)
    before = len(reads)
    assert torch.equal(seen.by_head(), expected.by_head())
    assert len(reads) == before, "it is here"
    expected.backward(known, add=True)
    seen.backward(y, add=True)
    assert len(reads) == before, "what came last is on its way"
    assert torch.equal(seen.by_head(), expected.by_head())


def test_what_the_models_own_backward_pass_and_steps_give_may_be_on_its_way(monkeypatch):
    model, ids = tiny.model("llama"), tiny.inputs("llama")["input_ids"]

    def run(own):
        with watch(model, influence=True, keep_qk=True, stats=(sl.Top(2, of="pull"),)) as seen:
            cache = model(input_ids=ids[:, :-1], use_cache=True).past_key_values
            y = model(input_ids=ids[:, -1:], past_key_values=cache).logits[:, -1, 3].sum()
            if own:
                y.backward(retain_graph=True)
                model.zero_grad()
                seen._influence.forget_gradients()
                assert seen[0].extra.along is None
                y.backward()
                model.zero_grad()
            else:
                seen.backward(y)
        return seen

    for own in (False, True):
        with monkeypatch.context() as patch:
            expected = run(own)
            reads = on_their_way(patch)
            seen = run(own)
        for name in seen.layers:
            assert torch.equal(seen[name].influence, expected[name].influence)
            assert torch.equal(seen[name].extra.grad, expected[name].extra.grad)
        # Of the prompt and of the step, each once; y does not depend on what the last layer gave in the prompt.
        assert len(reads) == (3 if own else 4)


def test_what_stats_ask_is_read_before_it_arrives(monkeypatch):
    model, given = tiny.model("llama"), tiny.inputs("llama")
    asked = sl.Top(2, of="pull")

    def run():
        with watch(model, influence=True, stats=(asked,)) as seen:
            seen.backward(target(model(**given)))
        return seen

    expected = run()
    reads = on_their_way(monkeypatch)
    seen = run()
    assert not reads
    for name in seen.layers:
        for a, b in zip(seen[name].value(asked), expected[name].value(asked)):
            assert torch.equal(a, b)


def test_a_row_that_is_not_read_may_be_anything():
    """As it is told of a GPU, where nobody asks whether there is such a row, and as on the CPU."""
    g, out = torch.randn(2, 1, 2, 5, 4)
    g[:, :, 1:3], g[0, 0, 3, 2] = 0, torch.nan
    out[:, :, 2], out[:, :, 4] = torch.nan, torch.inf
    found = influence._without_unread(influence._dot(g, out), g)
    assert (found[:, :, 1:3] == 0).all()
    assert found[0, 0, 3].isnan()
    assert not found[:, :, 4].isfinite().any()
    assert torch.equal(~g.any(-1), (g == 0).all(-1)), "a NaN is no 0"
