"""The block: what watches see in it, gradients, caches, compiled and checkpointed models; and that nothing is left."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

import edit_cases
import sightline as sl
import watch_cases
from sightline.errors import InputError

CUT = ("cut", {"queries": slice(4, None), "keys": [1, 3], "heads": [(0, 1), (1, 0), (1, 3)]})
SOFT = ("temperature", {"t": 2.5, "layers": [0], "queries": slice(3, 9)})
MORE = [
    CUT,
    SOFT,
    ("boost", {"factor": 4.0, "keys": slice(2, 5), "heads": [1]}),
    ("cut", {"keys": slice(0, 2), "renormalize": False, "heads": [(1, 2)]}),
    ("force", {"pattern": "uniform", "heads": [(0, 3)], "queries": [-1, 5]}),
    ("force", {"pattern": "previous", "heads": [(1, 1)]}),
    ("ablate", {"by": "mean", "heads": [(0, 0)]}),
]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss"])
@pytest.mark.parametrize("outside", [True, False])
def test_a_watch_around_it_or_inside_shows_the_edited_attention(family, outside):
    eager = "eager" if family in watch_cases.EAGER_ONLY else "sdpa"
    model, inputs = watch_cases.model(family, eager), watch_cases.inputs(family, "left")
    twin, reference = edit_cases.transformers_reference(family, model, MORE, real=inputs["attention_mask"].bool())
    watch, block = sl.watch(model, keep_qk=True, keep_output=True), sl.edit(model)
    with torch.no_grad():
        twin(**inputs)
        first, second = (watch, block) if outside else (block, watch)
        with first as one, second as two:
            seen, edits = (one, two) if outside else (two, one)
            edit_cases.apply(edits, MORE)
            model(**inputs)
    real = inputs["attention_mask"].bool()
    for i in range(2):
        expected = reference.seen[i]
        weights = seen[i].tile(slice(0, 12), slice(0, 12))
        marks = real[:, None, :, None].expand(weights.shape)
        assert (weights - expected["p"])[marks].abs().max() < 2e-5
        received = (expected["p"] * real[:, None, :, None]).sum(-2)
        assert (seen[i].received(weights=real[:, None].float().expand(3, 4, 12)) - received).abs().max() < 2e-4
        kept = torch.cat([part.extra["output"] for part in seen._layer(i).parts], -2)
        assert (kept - expected["o"])[real[:, None].expand(3, 4, 12)].abs().max() < 2e-5


def test_a_long_map_is_shown_without_being_written_out(monkeypatch):
    from sightline.editing import shown

    monkeypatch.setattr(shown, "WRITTEN", 0)
    model, x = edit_cases.small_decoder(), torch.randn(1, 9, 32)
    reference = edit_cases.Reference(MORE)
    with torch.no_grad():
        with edit_cases.ByHand(reference):
            model.double()(x.double())
        with sl.watch(model.float(), keep_qk=True) as seen, sl.edit(model) as edits:
            edit_cases.apply(edits, MORE)
            model(x)
    for i in range(2):
        assert (seen[i].tile(slice(0, 9), slice(0, 9)) - reference.seen[i]["p"]).abs().max() < 2e-5


def test_gradients_flow_through_edits():
    model, x = edit_cases.small_decoder(), torch.randn(2, 9, 32)
    edits = [("temperature", {"t": 2.0, "layers": [0]}), *MORE[2:4]]
    wide, narrow = x.double().requires_grad_(), x.clone().requires_grad_()
    with sl.edit(model) as block:
        edit_cases.apply(block, edits)
        model(narrow).square().mean().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.double().zero_grad()
    with edit_cases.ByHand(edit_cases.Reference(edits)):
        model(wide).square().mean().backward()
    assert (narrow.grad - wide.grad).abs().max() < 1e-5
    for name, p in model.named_parameters():
        assert (grads[name] - p.grad).abs().max() < 1e-4 * p.grad.abs().max().clamp_min(1.0), name


@pytest.mark.parametrize("family, padding", [("llama", "left"), ("mistral", None), ("gpt2", "left")])
def test_generation_with_a_cache(family, padding):
    model, inputs = watch_cases.model(family), watch_cases.inputs(family, padding, length=7)
    edits = [
        ("cut", {"keys": [5], "queries": slice(6, None), "heads": [(0, 1)]}),
        ("boost", {"factor": 3.0, "keys": slice(-2, None), "layers": [1]}),
        ("temperature", {"t": 2.0, "queries": slice(-1, None), "heads": [2]}),
        ("force", {"pattern": "previous", "heads": [(0, 3)]}),
    ]
    with torch.no_grad(), sl.edit(model) as block:
        edit_cases.apply(block, edits)
        made = model.generate(
            **inputs, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    mask = torch.cat([inputs["attention_mask"], torch.ones(3, 4, dtype=torch.long)], 1)
    twin, _ = edit_cases.transformers_reference(family, model, edits, prompt=7)
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        whole = twin(input_ids=made.sequences, attention_mask=mask, position_ids=places).logits
    for step, logits in enumerate(made.logits):
        assert (logits - whole[:, 6 + step]).abs().max() < 2e-5


def test_generation_of_sightlines_own_models_and_the_mean_of_the_prompt():
    torch.manual_seed(0)
    decoder, x = edit_cases.small_decoder(mask=sl.causal()), torch.randn(2, 8, 32)
    edits = [("cut", {"keys": 2, "queries": slice(5, None), "layers": [0]}), ("scale", {"factor": 2.0, "queries": -1})]
    with torch.no_grad(), edit_cases.ByHand(edit_cases.Reference(edits, prompt=6)):
        expected = decoder.double()(x.double())
    decoder.float()
    with torch.no_grad(), sl.edit(decoder) as block:
        edit_cases.apply(block, edits)
        cache = decoder.new_cache()
        found = [decoder(x[:, :6], cache=cache), decoder(x[:, 6:7], cache=cache), decoder(x[:, 7:], cache=cache)]
        assert (torch.cat(found, 1) - expected).abs().max() < 1e-5
        block.clear()
        block.ablate("mean", heads=[(0, 1)])
        cache = decoder.new_cache()
        with sl.watch(decoder, layers=0, keep_output=True) as seen:
            decoder(x[:, :6], cache=cache)
            decoder(x[:, 6:7], cache=cache)
    out = torch.cat([part.extra["output"] for part in seen._layer(0).parts], -2)[:, 1]
    assert torch.allclose(out[:, :1].expand_as(out), out)


def test_patches_equal_what_was_there():
    """Patching everything from another run gives that run; and a run patched with itself is itself."""
    model = edit_cases.small_decoder(mask=sl.causal())
    x, y = torch.randn(2, 9, 32), torch.randn(2, 9, 32)

    def watched(z):
        with sl.watch(model, keep_qk=True, keep_output=True, influence=True) as seen:
            model(z)
        return seen

    here, there = watched(x), watched(y)
    reference = edit_cases.Reference([])
    with torch.no_grad():
        with edit_cases.ByHand(reference):
            model.double()(y.double())
        model.float()
        for what in ("output", "pattern", "queries", "keys", "values"):
            with sl.edit(model) as edits:
                edits.patch(here, what)
                assert torch.allclose(model(x), model(x), atol=1e-6)
            with sl.edit(model) as edits:
                for_all = {"heads": [(0, 1), (1, 2)], "what": what, "positions": None}
                edits.patch(there, what, heads=for_all["heads"])
                found = model(x)
            by_hand = edit_cases.Reference([("patch", for_all | {"there": reference.seen})])
            with edit_cases.ByHand(by_hand):
                expected = model.double()(x.double())
            model.float()
            assert (found - expected).abs().max() < 1e-5, what
        some = {"heads": [(1, 2)], "what": "pattern", "positions": {4: 3, 2: 2, 8: 7}, "there": reference.seen}
        with sl.edit(model) as edits:
            edits.patch(there, "pattern", some["positions"], heads=some["heads"])
            found = model(x)
        with edit_cases.ByHand(edit_cases.Reference([("patch", some)])):
            assert (found - model.double()(x.double())).abs().max() < 1e-5


def test_cross_attention_has_columns_of_its_own():
    torch.manual_seed(1)
    model = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(32, 4, 48, batch_first=True), 2).eval()
    x, memory = torch.randn(2, 5, 32), torch.randn(2, 9, 32)
    edits = [
        ("cut", {"queries": -1, "keys": [7, 8], "layers": [1, 3]}),
        ("force", {"pattern": "first", "layers": [3], "heads": [2]}),
    ]
    with torch.no_grad(), edit_cases.ByHand(edit_cases.Reference(edits)):
        expected = model.double()(x.double(), memory.double())
    model.float()
    with torch.no_grad(), sl.edit(model) as block:
        edit_cases.apply(block, edits)
        assert (model(x, memory) - expected).abs().max() < 1e-5


def test_rows_and_heads_that_no_edit_touches_keep_their_bits():
    model, x = edit_cases.small_decoder(), torch.randn(2, 9, 32)
    heads = []
    for edit in (None, lambda e: e.cut(queries=[7], keys=2, heads=[(0, 1)], examples=1)):
        with torch.no_grad(), sl.watch(model, layers=0, keep_output=True) as seen, sl.edit(model) as edits:
            if edit:
                edit(edits)
            model(x)
        heads.append(seen._layer(0).parts[0].extra["output"])
    changed = heads[0] != heads[1]
    assert changed[1, 1, 7].any()
    changed[1, 1, 7] = False
    assert not changed.any()
    with torch.no_grad(), sl.edit(model):
        inside = model(x)
    assert torch.equal(inside, model(x))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_run_again_as_they_ran(reentrant):
    layer, x = torch.nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(2, 6, 16, requires_grad=True)

    def run(x):
        return layer(x, x, x, need_weights=False)[0]

    grads = []
    for through in (run, lambda x: checkpoint(run, x, use_reentrant=reentrant)):
        with sl.edit(layer) as edits:
            edits.cut(keys=slice(0, 3), heads=[(0, 1)])
            edits.temperature(3.0)
            (grad,) = torch.autograd.grad(through(x).square().sum(), x) if not reentrant else (None,)
            if reentrant:
                x.grad = None
                through(x).square().sum().backward()
                grad = x.grad
        grads.append(grad)
    assert torch.allclose(*grads, atol=1e-6)

    def leaves_early():
        with sl.edit(layer) as edits:
            edits.scale(2.0, heads=0)
            checkpoint(run, x, use_reentrant=reentrant)

    with pytest.warns(UserWarning, match="were not run again inside the block"):
        leaves_early()


def test_compiled_layers_run_uncompiled_and_are_named():
    model, x = edit_cases.torch_encoder(), torch.randn(2, 6, 32)
    with torch.no_grad(), sl.edit(model) as edits:
        edits.cut(keys=2, layers="layers.0")
        expected = model(x)
    model.layers[0].compile(backend="eager")
    model.layers[1].compile(backend="eager")
    with torch.no_grad(), sl.edit(model) as edits:
        edits.cut(keys=2, layers="layers.0")
        assert torch.allclose(model(x), expected, atol=1e-6)
        assert edits.uncompiled == ["layers.0"]
    whole = torch.compile(edit_cases.torch_encoder(), backend="eager")
    with torch.no_grad(), sl.edit(whole) as edits, sl.watch(whole) as seen:
        edits.cut(keys=2, layers="layers.0")
        assert torch.allclose(whole(x), expected, atol=1e-6)
    assert edits.uncompiled == ["TransformerEncoder"]
    assert seen[0].tile(slice(0, 6), slice(2, 3)).max() == 0
    strict = torch.compile(edit_cases.torch_encoder(), backend="eager", fullgraph=True)
    if TorchVersion(torch.__version__) < (2, 9):  # it does not say so of its code, which then runs uncompiled too
        edited = edit_cases.edited(strict, lambda edits: edits.cut(keys=2, layers="layers.0"), x)
        assert torch.allclose(edited, expected, atol=1e-6)
        return
    with pytest.raises(InputError, match="fullgraph"):
        edit_cases.edited(strict, lambda edits: edits.scale(2.0, layers="layers.0"), x)


def test_other_threads_other_models_and_errors_leave_nothing():
    model, other, x = edit_cases.small_decoder(), edit_cases.small_decoder(), torch.randn(1, 5, 32)
    with torch.no_grad():
        before = model(x)
        found = []

        def elsewhere():
            with torch.no_grad():
                found.append(model(x))

        with sl.edit(model) as edits, sl.edit(other) as theirs:
            edits.scale(0.0, heads=1)
            theirs.scale(2.0, heads=2)
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            changed = model(x)
            assert not torch.equal(changed, before)
            with sl.edit(model) as inner:
                inner.scale(3.0, heads=2)
                both = model(x)
            assert torch.equal(model(x), changed)
            assert not torch.equal(both, changed)
        assert torch.equal(found[0], before)

        def stop(edits):
            edits.scale(0.0, heads=1)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            edit_cases.edited(model, stop, x)
        assert torch.equal(model(x), before)
        once = sl.edit(model)
        with once:
            pass
        with pytest.raises(InputError, match="one block"), once:
            pass


def test_a_row_that_is_left_with_nothing_gives_zero_also_where_a_finite_number_hides():
    torch.manual_seed(0)
    q, least = torch.randn(1, 2, 5, 8), torch.finfo(torch.float32).min
    table = torch.full((5, 5), least).triu(1) + torch.randn(5, 5).tril()  # a bias, and what it hides

    class Attends(torch.nn.Module):
        def forward(self, q):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=table)

    model = Attends()
    with torch.no_grad(), warnings.catch_warnings(), sl.edit(model) as edits:
        edits.cut(queries=2, keys=slice(0, 3))
        out = model(q)
    assert not out[:, :, 2].any()
    assert torch.equal(out[:, :, 3:], model(q)[:, :, 3:])
    sinks = sl.nn.MultiHeadAttention(16, 2, sinks=True).eval()
    with torch.no_grad(), sl.watch(sinks, keep_output=True) as seen, sl.edit(sinks) as edits:
        edits.cut(queries=1)
        sinks(torch.randn(1, 3, 16))
    assert not seen._layer(0).parts[0].extra["output"][:, :, 1].any()


def test_calls_of_one_layer_can_be_told_apart():
    layer, x = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval(), torch.randn(1, 5, 16)

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = layer

        def forward(self, x):
            return self.attn(x, x, x)[0], self.attn(x, x, x)[0]

    model = Twice().eval()
    with torch.no_grad(), sl.edit(model) as edits:
        edits.ablate(layers="attn#2")
        first, second = model(x)
    assert torch.allclose(first, layer(x, x, x)[0], atol=1e-6)
    assert torch.allclose(second, layer.out_proj.bias.expand_as(second))


SPREAD = {
    "temperature": lambda edits: edits.temperature(2.0, heads=1),
    "uniform": lambda edits: edits.force("uniform", heads=0, queries=slice(2, None)),
    "lost": lambda edits: edits.cut(keys=1, renormalize=False, heads=1),
}
SINKS, SIGMOID = {"sinks": torch.tensor([0.5, 2.0])}, {"normalizer": "sigmoid"}


@pytest.mark.parametrize(
    "name, options",
    [*((name, SINKS) for name in SPREAD), *((name, {}) for name in SPREAD), ("uniform", SIGMOID), ("lost", SIGMOID)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_do_not_sum_to_one_are_shown_as_what_their_keys_have_among_each_other(name, options, dtype, tmp_path):
    """Entropy and distance are of weights divided by their sum; what a sink has, and what is no softmax, stays so."""
    coarse = dtype == torch.bfloat16
    near = {"rtol": 1e-2, "atol": 1e-2} if coarse else {"rtol": 1e-4, "atol": 1e-5}

    class Attends(torch.nn.Module):
        def forward(self, q, k, v):
            return sl.attention(q, k, v, mask=sl.causal(), **options)

    torch.manual_seed(0)
    model, given = Attends(), torch.randn(3, 2, 2, 6, 4, dtype=dtype, requires_grad=True)
    with torch.no_grad(), sl.watch(model) as before:
        model(*given)
    with sl.watch(model, keep_qk=True, influence=True) as seen, sl.edit(model) as edits:
        SPREAD[name](edits)
        out = model(*given)
        seen.backward(out.sum())
    seen.save(tmp_path / "run")
    with sl.watch(model, stats=("entropy", "distance", "total")) as asked, sl.edit(model) as edits:
        SPREAD[name](edits)
        model(*given)
    sight = seen[0]
    weights = sight.tile(slice(None), slice(None))
    torch.testing.assert_close((weights @ given[2].float()).to(dtype), out, **near)
    shares = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
    far = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    for one in (sight, asked[0], sl.load(tmp_path / "run")[0], sight.select(heads=[0, 1])):
        torch.testing.assert_close(one.entropy, torch.special.entr(shares).sum(-1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one.distance, (shares * far).sum(-1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one.total, weights.sum(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sight.due, weights.sum(-1), rtol=1e-4, atol=1e-5)
    if "sinks" in options:
        # What is taken away and not given to the others is nobody's.
        sink = before[0].sink_share if name == "lost" else 1 - weights.sum(-1)
        torch.testing.assert_close(sight.sink_share, sink, **near)
    elif not options:
        assert not sight.sink_share.any()
        if name == "lost":
            full = sight.row > -torch.inf
            torch.testing.assert_close(sight.lse[full], before[0].lse[full], **near)
    else:
        with pytest.raises(InputError, match="of a softmax"):
            sight.tile(slice(None), slice(None), of="pull")


@pytest.mark.parametrize("family", ["gpt-oss", "llama"])
@pytest.mark.parametrize(
    "change",
    [
        SPREAD["temperature"],
        lambda edits: edits.temperature(3.0, queries=slice(0, 3)),
        lambda edits: edits.cut(keys=1, renormalize=False, queries=slice(0, 5)),
        lambda edits: edits.cut(keys=[1, 2], renormalize=False, queries=slice(8, None), heads=0),
    ],
)
def test_rows_have_their_own_sums_in_steps_that_are_edited_and_in_others(change, family):
    """A generation is one sight: what some steps give to a sink, or have lost, must not be told by another one's."""
    model = watch_cases.model(family, "eager")
    ids = watch_cases.inputs(family, None, batch=2, length=7)["input_ids"]
    with torch.no_grad():
        with sl.watch(model, keep_qk=True) as steps, sl.edit(model) as edits:
            change(edits)
            whole = model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        with sl.watch(model, keep_qk=True) as once, sl.edit(model) as edits:
            change(edits)
            model(whole[:, :-1])
    for layer in steps.layers:
        one, other = steps[layer], once[layer]
        for found, expected in (
            (one.tile(slice(None), slice(None)), other.tile(slice(None), slice(None))),
            (one.entropy, other.entropy),
            (one.distance, other.distance),
            (one.sink_share, other.sink_share),
            (one.due, other.tile(slice(None), slice(None)).sum(-1)),
        ):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:(?s).*were not run again inside the block:UserWarning")
@pytest.mark.parametrize("first", [True, False])
def test_a_checkpoint_does_not_run_again_with_other_edits(first):
    torch.manual_seed(0)
    layer, x = torch.nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(1, 5, 16, requires_grad=True)
    model = torch.nn.Sequential(layer)
    with sl.edit(model) as edits:
        for _ in range(2):  # what has run again is done with
            if first:
                edits.scale(3.0, heads=0)
            y = checkpoint(lambda x: layer(x, x, x)[0], x, use_reentrant=True).square().sum()
            if first:
                y.backward()
        y = checkpoint(lambda x: layer(x, x, x)[0], x, use_reentrant=True).square().sum()
        edits.scale(2.0, heads=1)
        with pytest.raises(InputError, match="runs again with other edits"):
            y.backward()
