"""A watched model computes what it would have computed: outputs, losses, gradients and random numbers, to the bit."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sightline as sl
import watch_cases as tiny
from sightline.watching import watch

pytestmark = pytest.mark.filterwarnings("ignore:.*attended without being seen:UserWarning")

FAMILIES = ["llama", "mistral", "gpt2", "bert", "t5", "vit"]
DROPOUT = {
    "llama": {"attention_dropout": 0.3},
    "mistral": {"attention_dropout": 0.3},
    "gpt2": {"attn_pdrop": 0.3, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
    "bert": {"attention_probs_dropout_prob": 0.3, "hidden_dropout_prob": 0.1},
    "t5": {"dropout_rate": 0.3},
    "vit": {"attention_probs_dropout_prob": 0.3, "hidden_dropout_prob": 0.1},
}
PADDED = [
    (family, implementation, padding)
    for family in FAMILIES
    for implementation in ("sdpa", "eager")
    for padding in ([None] if family == "vit" else ["left", "right"])
]


def results(model, given, watched, **options):
    """Output, gradients, and the random number that comes next, of one step at a fixed seed."""
    torch.manual_seed(11)
    model.zero_grad()
    seen = None
    if watched:
        with watch(model, **options) as seen:
            out = tiny.logits(model(**given))
            if torch.is_grad_enabled():
                out.float().square().mean().backward()
    else:
        out = tiny.logits(model(**given))
        if torch.is_grad_enabled():
            out.float().square().mean().backward()
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return (out.detach(), grads, torch.rand(1)), seen


def check_same(model, given, mode=contextlib.nullcontext):
    with mode():
        (out, grads, after), _ = results(model, given, False)
    with mode():
        (mine, my_grads, my_after), seen = results(model, given, True)
    assert torch.equal(mine, out)
    assert torch.equal(my_after, after), "the same random numbers were drawn"
    assert len(grads) == len(my_grads)
    for theirs, ours in zip(grads, my_grads):
        assert (theirs is None) == (ours is None)
        assert theirs is None or torch.equal(ours, theirs)
    return seen


def all_parts(seen):
    return {name: len(layer.parts) for name, layer in seen._layers.items()}


@pytest.mark.parametrize("family, implementation, padding", PADDED)
def test_in_training_with_dropout(family, implementation, padding):
    model = tiny.model(family, implementation, **DROPOUT[family]).train()
    seen = check_same(model, tiny.inputs(family, padding, length=11))
    assert len(seen) == (6 if family == "t5" else 2)


@pytest.mark.parametrize("family, implementation, padding", PADDED)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, "autocast"])
def test_in_evaluation(family, implementation, padding, mode):
    model, given = tiny.model(family, implementation), tiny.inputs(family, padding, length=13)
    check_same(model, given, (lambda: torch.autocast("cpu", torch.bfloat16)) if mode == "autocast" else mode)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "bert", "t5"])
@pytest.mark.parametrize("reentrant", [None, True])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_with_checkpointing(family, reentrant, padding):
    """As transformers has it by default, which is not reentrant, and reentrant."""
    model = tiny.model(family, **DROPOUT[family]).train()
    options = None if reentrant is None else {"use_reentrant": reentrant}
    model.gradient_checkpointing_enable(*([] if options is None else [options]))
    given = tiny.inputs(family, padding, length=11)
    if reentrant:
        model.enable_input_require_grads()
    seen = check_same(model, given)
    assert set(all_parts(seen).values()) == {1}, "running again for gradients is no second call"
    plain = tiny.model(family, **DROPOUT[family]).train()
    _, expected = results(plain, given, True)
    assert seen.layers == expected.layers
    for name in seen.layers:
        # With a cache, keys lie elsewhere in memory, and are summed in another order.
        torch.testing.assert_close(seen[name].entropy, expected[name].entropy, atol=1e-5, rtol=0)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_whose_gradients_come_after_the_block(reentrant):
    model = tiny.model("mistral", **DROPOUT["mistral"]).train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    given = tiny.inputs("mistral", "left", length=11)
    (_, grads, _), _ = results(model, given, False)
    torch.manual_seed(11)
    model.zero_grad()
    with watch(model) as seen:
        out = tiny.logits(model(**given))
    out.square().mean().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, model.parameters()))
    assert set(all_parts(seen).values()) == {1}


def test_the_account_of_a_step_is_of_the_weights_before_dropout():
    given = tiny.inputs("mistral", "left", length=11)
    with torch.no_grad():
        weights = tiny.model("mistral", "eager")(**given, output_attentions=True).attentions
    model = tiny.model("mistral", attention_dropout=0.3).train()
    with watch(model, stats=tiny.STATS) as seen:
        model(**given).logits.sum().backward()
    tiny.check_statistics(seen[0], weights[0], given["attention_mask"])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mask_that_the_model_changes_is_read_as_it_is(mode):
    """transformers' table, changed in place or made anew by the model, is no longer the rule that it was made by."""
    given = tiny.inputs("llama", "left", length=11)
    for change in ("in place", "anew"):
        model, reference = tiny.model("llama"), tiny.model("llama", "eager")

        def hide(module, args, kwargs, change=change):
            mask = kwargs["attention_mask"]
            if change == "in place":
                mask[..., 7] = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
                return args, kwargs
            cells = torch.zeros(11, dtype=torch.bool)
            cells[7] = True
            low = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
            return args, kwargs | {"attention_mask": mask.masked_fill(cells, low)}

        for one in (model, reference):
            for layer in one.model.layers:
                layer.self_attn.register_forward_pre_hook(hide, with_kwargs=True)
        with mode():
            expected = reference(**given, output_attentions=True).attentions
            with watch(model) as seen:
                model(**given)
        rows = given["attention_mask"][:, None, :, None]
        for name, weights in zip(seen.layers, expected):
            tile = seen[name].tile(slice(0, 11), slice(0, 11))
            assert tile[..., 7].max() == 0
            torch.testing.assert_close(tile * rows, weights * rows, atol=1e-5, rtol=0)


def encoder(norm_first=False, activation="relu", heads=4, batch_first=True, nested=True, **options):
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(
        32, heads, 48, batch_first=batch_first, norm_first=norm_first, activation=activation, **options
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested and not norm_first and batch_first).eval()


def hidden_keys(side, length=11):
    """[3, length], True = padding; of the sequences with padding none is as long as the batch where it is "all"."""
    hidden = torch.zeros(3, length, dtype=torch.bool)
    for i, n in enumerate((2, 3, 5) if side == "all" else (0, 3, 5)):
        hidden[i, :n] = side == "left"
        hidden[i, length - n :] |= side != "left"
    return hidden


def run_same(model, *args, mode=torch.no_grad, **kwargs):
    with mode():
        plain = model(*args, **kwargs)
        with watch(model, stats=tiny.STATS, keep_qk=True) as seen:
            out = model(*args, **kwargs)
    assert torch.equal(out, plain)
    return seen


def maps_of(layer, x, visible):
    """The weights of a torch layer's self-attention, in float64."""
    mha = layer.self_attn
    if layer.norm_first:
        x = layer.norm1(x)
    q, k, _ = (x @ mha.in_proj_weight.mT + mha.in_proj_bias).double().chunk(3, -1)
    q, k = (t.unflatten(-1, (mha.num_heads, -1)).transpose(1, 2) for t in (q, k))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0)


@pytest.mark.parametrize("side", ["left", "right", "all"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_fast_path_of_an_encoder_with_padding(side, norm_first, activation):
    model, hidden = encoder(norm_first, activation), hidden_keys(side)
    x = torch.randn(3, 11, 32)
    seen = run_same(model, x, src_key_padding_mask=hidden)
    assert seen.layers == ["layers.0.self_attn", "layers.1.self_attn"]
    real = ~hidden
    visible = real[:, None, None, :].expand(3, 4, 11, 11)
    with torch.no_grad():
        if side != "left" and not norm_first:  # packed: what is padding does not run at all
            visible = visible & real[:, None, :, None]
        want = maps_of(model.layers[0], x, visible)
    tiny.check_statistics(seen[0], want)
    tiny.check_statistics(seen[0], want, real)
    assert seen[1].tile(slice(0, 11), slice(0, 11))[:, :, :, :][hidden[:, None, None].expand(3, 4, 11, 11)].max() == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", ["none", "causal", "both", "numbers", "no padding"])
def test_the_fast_path_of_an_encoder_with_a_mask(kind, mode):
    model, x = encoder(nested=False), torch.randn(3, 11, 32)
    blocked = ~torch.ones(11, 11, dtype=torch.bool).tril()
    given, visible = {}, ~blocked
    if kind == "none":
        visible = torch.ones_like(blocked)
    elif kind == "no padding":
        given, visible = {"src_key_padding_mask": torch.zeros(3, 11, dtype=torch.bool)}, torch.ones_like(blocked)
    elif kind == "numbers":
        # Torch's fast path takes every number but 0 for "hidden": so does the account.
        numbers = torch.randn(11, 11).masked_fill(~blocked, 0)
        given = {"mask": numbers}
    else:
        given = {"mask": blocked}
        if kind == "both":
            given["src_key_padding_mask"] = hidden_keys("right")
            visible = visible & ~given["src_key_padding_mask"][:, None, None]
    seen = run_same(model, x, mode=mode, **given)
    with torch.no_grad():
        tiny.check_statistics(seen[0], maps_of(model.layers[0], x, visible))


@pytest.mark.parametrize("options", [{"heads": 1}, {"batch_first": False}, {"bias": False}])
def test_encoders_without_a_fast_path(options):
    model = encoder(nested=False, **options)
    x = torch.randn(3, 11, 32)
    x = x if options.get("batch_first", True) else x.transpose(0, 1).contiguous()
    for side in ("left", "right"):
        assert len(run_same(model, x, src_key_padding_mask=hidden_keys(side))) == 2


@pytest.mark.parametrize("need_weights", [True, False])
def test_the_fast_path_of_one_layer(need_weights):
    torch.manual_seed(5)
    x, hidden = torch.randn(3, 11, 32), hidden_keys("left")
    layer = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    visible = ~hidden[:, None, None]
    with torch.no_grad():
        plain = layer(x, x, x, key_padding_mask=hidden, need_weights=need_weights)
        weights = layer(x, x, x, key_padding_mask=hidden, average_attn_weights=False)[1]
        with watch(layer, stats=tiny.STATS) as seen:
            out = layer(x, x, x, key_padding_mask=hidden, need_weights=need_weights)
    assert torch.equal(out[0], plain[0])
    assert not need_weights or torch.equal(out[1], plain[1])
    tiny.check_statistics(seen[0], weights)
    one = encoder().layers[0]
    seen = run_same(one, x, src_key_padding_mask=hidden)
    assert seen.layers == ["self_attn"]
    with torch.no_grad():
        tiny.check_statistics(seen[0], maps_of(one, x, visible))
        with pytest.warns(UserWarning, match="a second run began"), watch(one) as twice:
            one(one(x))
    assert twice.layers == ["self_attn"]


def test_a_decoder_with_padding_on_both_sides():
    torch.manual_seed(5)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 48, batch_first=True), 2).eval()
    x, memory = torch.randn(3, 7, 32), torch.randn(3, 11, 32)
    masks = {"tgt_mask": ~torch.ones(7, 7, dtype=torch.bool).tril(), "memory_key_padding_mask": hidden_keys("left")}
    masks["tgt_key_padding_mask"] = hidden_keys("right", 7)
    seen = run_same(model, x, memory, **masks)
    assert [seen.kind(name) for name in seen.layers] == ["self", "cross"] * 2
    for train in (False, True):
        model.train(train)
        grads = []
        for watched in (False, True):
            torch.manual_seed(3)
            model.zero_grad()
            if watched:
                with watch(model):
                    model(x, memory, **masks).square().sum().backward()
            else:
                model(x, memory, **masks).square().sum().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*grads))


def test_a_layer_that_is_not_chosen_keeps_its_fast_path():
    model, x, hidden = encoder(), torch.randn(3, 11, 32), hidden_keys("right")
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=hidden)
        with watch(model, layers=1) as seen:
            out = model(x, src_key_padding_mask=hidden)
    assert torch.equal(out, plain)
    assert seen.layers == ["layers.1.self_attn"]


def test_torchs_switches_are_as_they_were():
    before = torch.overrides.has_torch_function
    with pytest.warns(UserWarning, match="no attention"), watch(encoder()):
        pass
    assert torch.overrides.has_torch_function is before


def test_what_gives_no_account_runs_and_is_named():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model, x = nn.MultiheadAttention(32, 4, batch_first=True), torch.randn(2, 11, 32)
    with sdpa_kernel(SDPBackend.MATH):
        plain = model(x, x, x, need_weights=False)[0]
        with pytest.warns(UserWarning, match="attended without being seen"), watch(model) as seen:
            out = model(x, x, x, need_weights=False)[0]
    assert torch.equal(out, plain)
    assert "no log-sum-exp" in seen.unseen["MultiheadAttention"]


@pytest.mark.parametrize("options", [{}, {"mask": sl.causal()}, {"mask": sl.window(4)}, {"dropout": 0.3}], ids=str)
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_sightlines_own_attention(options, reentrant):
    class Own(nn.Module):
        def forward(self, q, k, v):
            return sl.attention(q, k, v, **options)

    found = []
    for watched in (False, True):
        torch.manual_seed(2)
        model, given = Own(), [torch.randn(2, heads, 11, 8, requires_grad=True) for heads in (4, 2, 2)]
        with watch(model) if watched else contextlib.nullcontext() as seen:
            out = model(*given) if reentrant is None else checkpoint(model, *given, use_reentrant=reentrant)
            out.square().sum().backward()
        found.append([out, torch.rand(1), *(x.grad for x in given)])
    assert all(torch.equal(a, b) for a, b in zip(*found))
    assert all_parts(seen) == {"Own": 1}
