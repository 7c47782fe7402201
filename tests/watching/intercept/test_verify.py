"""Functions that are not known are believed only as far as their outputs bear them out."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
import torch.nn.functional as F

import watch_cases as tiny
from sightline.watching import load, watch
from sightline.watching.intercept.verify import DIFFERS, DROPOUT, SHAPE

NAMES = ["model.layers.0.self_attn", "model.layers.1.self_attn"]


@pytest.fixture
def register():
    """Register a function for the length of a test; a model of a family that attends by it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    def put(function, family="llama", dtype=torch.float32):
        AttentionInterface.register("tested", function)
        AttentionMaskInterface.register("tested", sdpa_mask)
        model = tiny.model(family, "eager").to(dtype)
        model.set_attn_implementation("tested")
        return model

    yield put
    AttentionInterface._global_mapping.pop("tested", None)
    AttentionMaskInterface._global_mapping.pop("tested", None)


def given_mask(query, key, mask):
    """Additive, of an attention mask or of causality."""
    queries, keys = query.shape[-2], key.shape[-2]
    if mask is None:
        mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    return mask


def attend(query, key, value, mask, scaling, bias=None, cap=None, sink=None):
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = query @ key.mT * scaling
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores + mask
    if sink is not None:
        scores = torch.cat([scores, torch.full_like(scores[..., :1], sink)], dim=-1)
    weights = scores.float().softmax(-1).to(query.dtype)
    return (weights[..., : key.shape[-2]] @ value).transpose(1, 2).contiguous()


def honest(module, query, key, value, attention_mask, scaling, dropout=0.0, **more):
    return attend(query, key, value, given_mask(query, key, attention_mask), scaling), None


def biased(module, query, key, value, attention_mask, scaling, dropout=0.0, **more):
    bias = -0.3 * (torch.arange(query.shape[-2])[:, None] - torch.arange(key.shape[-2])).abs()
    return attend(query, key, value, given_mask(query, key, attention_mask), scaling, bias), None


def maskless(module, query, key, value, attention_mask, scaling, dropout=0.0, **more):
    return attend(query, key, value, None, scaling), None


def sharper(module, query, key, value, attention_mask, scaling, dropout=0.0, **more):
    return attend(query, key, value, given_mask(query, key, attention_mask), 1.1 * scaling), None


def capped(module, query, key, value, attention_mask, scaling, dropout=0.0, **more):
    return attend(query, key, value, given_mask(query, key, attention_mask), scaling, cap=1.0), None


def sunk(module, query, key, value, attention_mask, scaling, dropout=0.0, **more):
    return attend(query, key, value, given_mask(query, key, attention_mask), scaling, sink=0.5), None


def watched(model, given, **options):
    with warnings.catch_warnings(record=True) as said, torch.no_grad(), watch(model, **options) as seen:
        warnings.simplefilter("always")
        output = tiny.logits(model(**given))
    return seen, output, [str(w.message) for w in said]


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("function", [biased, maskless, sharper, capped, sunk])
def test_a_function_that_gives_something_else_is_unseen(register, function, padding):
    model, given = register(function), tiny.inputs("llama", padding)
    with torch.no_grad():
        plain = tiny.logits(model(**given))
    seen, output, said = watched(model, given)
    assert seen.unseen == dict.fromkeys(NAMES, DIFFERS)
    assert seen.layers == []
    assert torch.equal(output, plain), "the run goes on, and is the model's own"
    assert len(said) == 1
    assert NAMES[0] in said[0]
    assert DIFFERS in said[0]


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_an_honest_function_is_seen(register, dtype, padding):
    model, given = register(honest, dtype=dtype), tiny.inputs("llama", padding)
    seen, _, said = watched(model, given)
    assert (seen.layers, seen.unseen, said) == (NAMES, {}, [])
    eager = register(honest, dtype=dtype)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        weights = eager(**given, output_attentions=True).attentions[0]
    real = given["attention_mask"].bool()[:, None, :, None].expand_as(weights)
    tile = seen[0].tile(slice(None), slice(None)).to(weights.dtype)
    loose = 1e-5 if dtype in (torch.float32, torch.float64) else 3e-2
    torch.testing.assert_close(tile[real], weights[real], atol=loose, rtol=0)


@pytest.mark.parametrize("function", [biased, sharper])
def test_half_precision_hides_no_large_difference(register, function):
    seen, _, _ = watched(register(function, dtype=torch.bfloat16), tiny.inputs("llama", "left"))
    assert seen.unseen == dict.fromkeys(NAMES, DIFFERS)


def test_autocast_is_no_difference(register):
    model, given = register(honest), tiny.inputs("llama", "left")
    with torch.autocast("cpu", torch.bfloat16):
        seen, _, said = watched(model, given)
    assert (seen.layers, seen.unseen, said) == (NAMES, {}, [])


def test_options_that_transformers_hands_over_are_no_difference(register):
    def soft(module, query, key, value, attention_mask, scaling, dropout=0.0, softcap=None, **more):
        return attend(query, key, value, given_mask(query, key, attention_mask), scaling, cap=softcap), None

    seen, _, said = watched(register(soft, "gemma2"), tiny.inputs("gemma2", "left"))
    assert (seen.layers, seen.unseen, said) == (NAMES, {}, [])


def test_a_name_that_is_borrowed_is_not_believed(register):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    wrapped = functools.wraps(sdpa_attention_forward)(functools.partial(biased))
    seen, _, _ = watched(register(wrapped), tiny.inputs("llama"))
    assert seen.unseen == dict.fromkeys(NAMES, DIFFERS)


def test_a_function_that_calls_sdpa(register):
    def fused(module, query, key, value, attention_mask, scaling, dropout=0.0, **more):
        mask = given_mask(query, key, attention_mask)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None

    seen, _, said = watched(register(fused), tiny.inputs("llama", "right"))
    assert (seen.layers, seen.unseen, said) == (NAMES, {}, [])


def test_dropout_hides_what_an_unknown_function_does(register):
    def dropping(module, query, key, value, attention_mask, scaling, dropout=0.0, **more):
        return F.dropout(attend(query, key, value, given_mask(query, key, attention_mask), scaling), dropout), None

    model = register(dropping).train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    seen, _, said = watched(model, tiny.inputs("llama"))
    assert seen.unseen == dict.fromkeys(NAMES, DROPOUT)
    assert len(said) == 1


@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_eager_code_is_seen_under_dropout_with_its_own_random_numbers(padding):
    model, given = tiny.model("llama", "eager").train(), tiny.inputs("llama", padding)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with torch.no_grad():
        torch.manual_seed(3)
        plain = tiny.logits(model(**given))
    torch.manual_seed(3)
    seen, output, said = watched(model, given)
    assert torch.equal(output, plain)
    assert (seen.layers, seen.unseen, said) == (NAMES, {}, [])


def test_another_shape_cannot_be_compared(register):
    def short(*args, **kwargs):
        out, _ = honest(*args, **kwargs)
        return out.transpose(1, 2), None

    model = register(short)
    attention = model.model.layers[0].self_attn
    hidden, where = torch.randn(1, 7, 32), torch.arange(7)[None]
    turned = model.model.rotary_emb(hidden, where)
    with pytest.warns(UserWarning, match="shape"), torch.no_grad(), watch(attention) as seen:
        attention(hidden, position_embeddings=turned, attention_mask=None)
    assert list(seen.unseen.values()) == [SHAPE]


def test_eager_code_that_weighs_in_another_way_is_unseen(monkeypatch):
    from transformers.models.llama import modeling_llama

    own = modeling_llama.eager_attention_forward

    def sharpened(module, query, key, value, mask, scaling, **more):
        return own(module, query, key, value, mask, 3 * scaling, **more)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", sharpened)
    for padding in (None, "left", "right"):
        seen, _, said = watched(tiny.model("llama", "eager"), tiny.inputs("llama", padding))
        assert seen.unseen == dict.fromkeys(NAMES, DIFFERS)
        assert len(said) == 1


def test_weights_that_are_given_are_compared_too(register):
    """Values that are all the same tell nothing of the weights."""

    def constant(module, query, key, value, attention_mask, scaling, dropout=0.0, **more):
        scores = 3 * scaling * (query @ key.repeat_interleave(2, dim=1).mT) + given_mask(query, key, attention_mask)
        value = value.repeat_interleave(2, dim=1)
        weights = scores.softmax(-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    model = register(constant)
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight.data.zero_()
    seen, _, _ = watched(model, tiny.inputs("llama"))
    assert seen.unseen == dict.fromkeys(NAMES, DIFFERS)


def test_a_layer_that_differs_later_is_taken_away(register, tmp_path):
    """One token over one key is exact whatever the scale; the next is not."""
    model = register(sharper)

    def generate():
        past = None
        for token in (5, 7, 9, 11):
            past = model(torch.tensor([[token]]), past_key_values=past, use_cache=True).past_key_values
            found.append(list(seen.layers))

    found = []
    folder, warns = tmp_path / "run", pytest.warns(UserWarning, match="without being seen")
    with warns, torch.no_grad(), watch(model, folder=folder) as seen:
        generate()
    assert found[0] == NAMES
    assert seen.layers == []
    assert load(folder).unseen == seen.unseen == dict.fromkeys(NAMES, DIFFERS)
    assert [path.name for path in folder.iterdir()] == ["index.json"]


def test_sharp_attention_in_half_precision_is_seen(register):
    """Scores of some hundred, which bfloat16 rounds by whole numbers."""
    model = register(honest, dtype=torch.bfloat16)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data *= 20
        layer.self_attn.k_proj.weight.data *= 20
    for padding in (None, "left", "right"):
        assert watched(model, tiny.inputs("llama", padding))[0].layers == NAMES
