"""Where an edit would give a wrong number without a word: nested blocks, autocast, caches, windows, finite hiding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers

import edit_cases
import sightline as sl
from sightline.errors import InputError


def test_a_block_on_a_part_of_a_model_counts_its_own_layers():
    torch.manual_seed(0)
    model = torch.nn.Transformer(16, 2, 1, 2, 32, batch_first=True).eval()
    x, y = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    with torch.no_grad(), sl.edit(model) as edits:
        edits.scale(2.0, layers="encoder.layers.0.self_attn")
        edits.scale(0.5, layers="decoder.layers.1.self_attn", heads=1)
        expected = model(x, y)
    with torch.no_grad(), sl.edit(model) as outer, sl.edit(model.decoder) as inner:
        outer.scale(2.0, layers=0)
        inner.scale(0.5, layers=2, heads=1)  # self and cross attention of the first layer come before it
        assert torch.allclose(model(x, y), expected, atol=1e-6)


def test_under_autocast_rows_are_as_exact_as_the_kernel_makes_them():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 40, 16) * 4 for _ in range(3))

    class Attends(torch.nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v)

    model = Attends()
    left = torch.arange(40) != 3
    narrow = [t.bfloat16() for t in (q, k, v)]
    exact = sl.attention(*(t.double() for t in narrow), mask=left[None], backend="reference")
    error = (F.scaled_dot_product_attention(*narrow, attn_mask=left[None]) - exact).abs().max()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), sl.edit(model) as edits:
        edits.cut(keys=3)
        found = model(q, k, v)
    assert found.dtype == torch.bfloat16
    assert (found - exact).abs().max() <= 2 * error


def test_a_mean_needs_its_prompt():
    decoder, x = edit_cases.small_decoder(mask=sl.causal()), torch.randn(1, 7, 32)
    cache = decoder.new_cache()
    with torch.no_grad():
        decoder(x[:, :6], cache=cache)
        edits = sl.Edits()
        edits.ablate("mean", heads=[(0, 1)])
        with pytest.raises(InputError, match="was not run inside the block"), sl.edit(decoder, edits):
            decoder(x[:, 6:], cache=cache)


def test_a_step_after_a_prompt_outside_the_block_stands_where_it_stands():
    decoder, x = edit_cases.small_decoder(mask=sl.causal()), torch.randn(1, 7, 32)
    edits = [("cut", {"keys": [2], "queries": 6, "layers": [0]})]
    with torch.no_grad(), edit_cases.ByHand(edit_cases.Reference(edits)):
        expected = decoder.double()(x.double())
    decoder.float()
    cache = decoder.new_cache()
    with torch.no_grad():
        decoder(x[:, :6], cache=cache)
        with sl.edit(decoder) as block:
            edit_cases.apply(block, edits)
            assert (decoder(x[:, 6:], cache=cache) - expected[:, 6:]).abs().max() < 1e-5


def test_one_query_that_asks_all_of_the_others_is_no_step():
    torch.manual_seed(0)

    class Pools(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.query = torch.nn.Parameter(torch.randn(1, 1, 1, 8))

        def forward(self, x):
            return F.scaled_dot_product_attention(self.query.expand(x.shape[0], -1, -1, -1), x, x)

    model, x = Pools(), torch.randn(2, 1, 6, 8)
    with torch.no_grad(), sl.edit(model) as edits:
        edits.cut(queries=0, keys=slice(0, 5))
        assert torch.allclose(model(x), x[:, :, 5:])
        edits.clear()
        edits.force("itself")
        with pytest.raises(InputError, match="another sequence"):
            model(x)
        edits.clear()


@pytest.mark.parametrize("hides", [-1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf])
def test_what_a_finite_number_hides_is_not_what_a_cut_leaves(hides):
    torch.manual_seed(0)
    q = torch.randn(1, 2, 5, 8)
    table = torch.randn(5, 5).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), hides)

    class Attends(torch.nn.Module):
        def forward(self, q):
            return F.scaled_dot_product_attention(q, q, q, attn_mask=table)

    model = Attends()
    with torch.no_grad(), sl.edit(model) as edits, sl.watch(model) as seen:
        edits.cut(queries=2, keys=slice(0, 3))
        edits.force("uniform", queries=3)
        out = model(q)
    assert not out[:, :, 2].any()
    assert torch.allclose(out[:, :, 3], q[:, :, :4].mean(2), atol=1e-6)
    assert not seen[0].tile(slice(2, 3), slice(0, 5)).any()


def test_windows_of_an_image_are_no_examples():
    class Windows(torch.nn.Module):
        def forward(self, x):
            pieces = x.unflatten(-1, (4, -1)).permute(0, 3, 1, 2, 4).flatten(0, 1)
            return F.scaled_dot_product_attention(pieces, pieces, pieces)

    model, x = Windows(), torch.randn(2, 1, 5, 16)
    with torch.no_grad(), sl.edit(model) as edits:
        edits.scale(0.0, heads=0)
        assert not model(x).any()
        edits.clear()
        edits.scale(0.0, heads=0, examples=1)
        with pytest.raises(InputError, match="not examples"):
            model(x)
        edits.clear()


def test_patches_of_some_heads_of_a_group_find_their_keys():
    torch.manual_seed(0)
    model = edit_cases.small_decoder(mask=sl.causal())
    x, y = torch.randn(1, 6, 32), torch.randn(1, 6, 32)
    found = []
    for heads in (None, [0, 3]):
        with sl.watch(model, heads=heads, keep_qk=True, influence=True) as source:
            model(y)
        out = []
        for what in ("keys", "values", "queries"):
            with torch.no_grad(), sl.edit(model) as edits:
                edits.patch(source, what, heads=[(0, 3), (1, 0)])
                out.append(model(x))
        found.append(out)
    for one, two in zip(*found):
        assert torch.allclose(one, two, atol=1e-6)
        assert (one - model(x)).abs().max() > 1e-3


@pytest.mark.parametrize("need_weights", [False, True])
def test_queries_of_torch_layers_are_the_same_whether_weights_are_asked_for(need_weights):
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True).double().eval()
    here, there = torch.randn(2, 2, 7, 16, dtype=torch.float64)
    with sl.watch(layer, keep_qk=True, influence=True) as source:
        expected, _ = layer(there, there, there, need_weights=need_weights)
    with torch.no_grad(), sl.edit(layer) as edits:
        for what in ("queries", "keys", "values"):
            edits.patch(source, what)
        with sl.watch(layer, keep_qk=True) as seen:
            found, _ = layer(here, here, here, need_weights=need_weights)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(seen[0].call.q, source[0].call.q)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("low", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -1e4])
def test_a_mean_leaves_out_padding_by_whatever_number_it_is_hidden(low, by_hand):
    class Attends(torch.nn.Module):
        num_heads = 2

        def forward(self, x, bias):
            q = k = v = x.unflatten(-1, (2, 4)).transpose(1, 2)
            if by_hand:
                return (q @ k.mT + bias).softmax(-1) @ v
            return F.scaled_dot_product_attention(q, k, v, bias)

    torch.manual_seed(0)
    model, x = Attends(), torch.randn(2, 6, 8)
    real = torch.arange(6) < torch.tensor([[4], [6]])
    bias = torch.zeros(2, 1, 1, 6).masked_fill(~real[:, None, None], low)
    with torch.no_grad():
        plain = model(x, bias)
        with sl.edit(model) as edits:
            edits.ablate("mean", heads=[0, 1])
            found = model(x, bias)
    for member, count in enumerate((4, 6)):
        torch.testing.assert_close(found[member], plain[member, :, :count].mean(1, keepdim=True).expand(2, 6, 4))


def small_t5():
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2}
    ends = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 59}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=60, **sizes, **ends)).eval()


def test_layers_counted_from_the_end_are_the_same_at_every_step_of_a_generation():
    """Of a model with an encoder, which runs by itself before: its layers are not all of them."""
    model, ids = small_t5(), torch.randint(1, 59, (2, 7), generator=torch.Generator().manual_seed(1))

    def logits(layer):
        with torch.no_grad(), sl.edit(model) as edits:
            edits.ablate(layers=layer)
            options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
            return torch.stack(model.generate(ids, max_new_tokens=4, min_new_tokens=4, **options).logits)

    with torch.no_grad(), sl.edit(model):
        model(input_ids=ids, decoder_input_ids=ids[:, :3])
    for layer in (5, 2, 1):
        assert torch.equal(logits(layer - 6), logits(layer))


def test_layers_that_are_counted_from_the_end_do_not_change_while_they_are_counted():
    model = torch.nn.Transformer(16, 2, 1, 2, 32, batch_first=True).eval()
    x, y = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    with torch.no_grad():
        with sl.edit(model):
            model.encoder(x)
        with sl.edit(model) as edits:
            edits.scale(2.0, layers=-1)
            model(x, y)  # the last of its encoder, as far as is known
            with pytest.raises(InputError, match="there are others than there were"):
                model(x, y)


def test_a_mean_of_cross_attention_leaves_out_what_the_decoder_is_padded_with():
    model, ids = small_t5(), torch.randint(1, 59, (2, 7), generator=torch.Generator().manual_seed(1))
    layer = "decoder.block.0.layer.1.EncDecAttention"
    real = torch.arange(7) < torch.tensor([[4], [7]])

    def logits(member, end, **given):
        with torch.no_grad(), sl.edit(model) as edits:
            edits.ablate("mean", layers=layer)
            return model(input_ids=ids[member], decoder_input_ids=ids[member, :end], **given).logits

    both = logits(slice(None), 7, decoder_attention_mask=real.long())
    torch.testing.assert_close(both[:1, :4], logits(slice(0, 1), 4))
    torch.testing.assert_close(both[1:], logits(slice(1, 2), 7))


COUNTED = {
    "query": lambda edits: edits.cut(queries=-1, keys=3),
    "keys": lambda edits: edits.cut(keys=slice(0, -2)),
    "key": lambda edits: edits.boost(2.0, keys=[-1]),
    "mean": lambda edits: edits.ablate("mean", layers=0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_prompt_in_pieces_has_no_end_yet(name):
    decoder, x = edit_cases.small_decoder(mask=sl.causal()), torch.randn(1, 9, 32)
    cache = decoder.new_cache()
    with torch.no_grad(), sl.edit(decoder) as edits:
        COUNTED[name](edits)
        decoder(x[:, :4], cache=cache)
        with pytest.raises(InputError, match="comes in pieces"):
            decoder(x[:, 4:], cache=cache)


def test_columns_from_the_front_are_those_of_a_prompt_in_pieces():
    decoder, x = edit_cases.small_decoder(mask=sl.causal()), torch.randn(1, 9, 32)
    with torch.no_grad(), sl.edit(decoder) as edits:
        edits.cut(queries=slice(6, None), keys=slice(2, 5))
        cache = decoder.new_cache()
        pieces = torch.cat([decoder(part, cache=cache) for part in x.split(4, 1)], 1)
        torch.testing.assert_close(pieces, decoder(x))


def test_a_sink_takes_its_share_of_keys_as_they_are_edited():
    """Beside rows that lost keys, the weights of rows whose keys were cut or raised are shown as they are."""
    torch.manual_seed(0)

    class Attends(torch.nn.Module):
        def forward(self, q, k, v):
            return sl.attention(q, k, v, mask=sl.causal(), sinks=torch.tensor([1.5, -0.5]))

    q, k = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    model, v = Attends(), torch.eye(9).expand(1, 2, 9, 9)  # of such values an output is its row's weights
    with torch.no_grad(), sl.watch(model, keep_qk=True) as seen, sl.edit(model) as edits:
        edits.cut(queries=[3, 4], keys=[0, 1])
        edits.boost(50.0, queries=5, keys=2)
        edits.cut(queries=7, keys=slice(2, 5), renormalize=False)
        out = model(q, k, v)
    weights = seen[0].tile(slice(0, 9), slice(0, 9))
    torch.testing.assert_close(weights, out, atol=2e-6, rtol=0)
    torch.testing.assert_close(seen[0].tile(5, slice(0, 9)), out[:, :, 5:6], atol=2e-6, rtol=0)
    assert float(out[0, :, 7].sum(-1).max()) < 0.9


@pytest.mark.parametrize("watched", [True, False])
def test_steps_stand_where_they_stand_in_a_model_that_is_edited_in_part(watched):
    """Of a layer that is not edited it is known how far its queries have come: its next one is a step."""

    class Attends(torch.nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[-2] > 1)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Attends() for _ in range(2))

        def forward(self, calls):  # nothing that says how many tokens there are
            return [layer(*call) for layer, call in zip(self.layers, calls)]

    model, x = Model(), torch.randn(2, 1, 2, 7, 8)
    with torch.no_grad(), sl.edit(model) as edits:
        edits.ablate(layers=[1], queries=slice(5, None))
        with sl.watch(model) if watched else torch.no_grad():
            model([(one[..., :5, :],) * 3 for one in x])
            steps = [model([(one[..., i : i + 1, :], *(one[..., : i + 1, :],) * 2) for one in x]) for i in (5, 6)]
    for first, second in steps:
        assert first.abs().min() > 0
        assert not second.any()
