"""Beams, assisted decoding and every kind of cache: the run goes on, and what is not followed is said."""

from __future__ import annotations

import warnings

import pytest
import torch

import watch_cases as tiny
from sightline.watching import load, watch
from sightline.watching.record.follow import Follow, marks
from watch_cases import STATS, check_statistics

pytestmark = pytest.mark.filterwarnings("ignore:.*attended without being seen:UserWarning")

LENGTH, STEPS = 11, 6


def prompt(family="llama", padding=None, batch=3):
    given = tiny.inputs(family, padding, batch, length=LENGTH)
    given.pop("decoder_input_ids", None)
    return given


def run(model, given, **options):
    torch.manual_seed(5)
    return model.generate(**given, **({"max_new_tokens": STEPS, "do_sample": False} | options))


def eager(family, ids, mask):
    """The maps of one eager pass over the text."""
    at = (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        return tiny.model(family, "eager")(
            input_ids=ids, attention_mask=mask, position_ids=at, output_attentions=True
        ).attentions


def watched(model, given, run=run, **options):
    """The run without a watch and with one: the same tokens."""
    keep = options.pop("keep_qk", False)
    with torch.no_grad():
        plain = run(model, given, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nor is it taken for a second run
            warnings.filterwarnings("ignore", ".*attended without being seen")
            with watch(model, stats=STATS, keep_qk=keep) as seen:
                ids = run(model, given, **options)
    assert torch.equal(plain, ids)
    return seen, ids


def generated(family, given, **options):
    """What eager generation returns: the tokens, and the maps of what it returned, of its own and of the encoder's."""
    with torch.no_grad():
        out = run(tiny.model(family, "eager"), given, return_dict_in_generate=True, output_attentions=True, **options)
    own = out.decoder_attentions if "decoder_attentions" in out else out.attentions
    other = out.cross_attentions if "cross_attentions" in out else [()]
    return out.sequences, *(
        [_returned(out.beam_indices.long(), [step[i] for step in steps], steps is own) for i in range(len(steps[0]))]
        for steps in (own, other)
    )


def _returned(beams, steps, grows):
    """The rows of what was returned, one pass after another; those of a window end where the others do."""
    first = steps[0].shape[-1]
    keys = first + len(steps[: beams.shape[1]]) - 1 if grows else first
    rows = []
    for i, (weights, at) in enumerate(zip(steps, beams.unbind(-1), strict=False)):
        end = first + i if grows else first
        weights = weights[at.clamp_min(0)] * (at >= 0)[:, None, None, None]
        rows.append(torch.nn.functional.pad(weights, (end - weights.shape[-1], keys - end)))
    return torch.cat(rows, -2)


def check_returned(seen, family, given, ids, **options):
    """The account is that of the returned sequences, row by row; where one had ended before, of nothing."""
    sequences, own, other = generated(family, given, **options)
    assert torch.equal(sequences, ids), "eager mode wrote something else: there is nothing to compare with"
    assert not seen.unseen
    assert seen.ids == ids[:, : len(seen.ids[0])].tolist()
    decoder = [name for name in seen.layers if not name.startswith("encoder")]
    mask = given["attention_mask"].repeat_interleave(len(ids) // 3, 0)
    for kind, maps in (("self", own), ("cross", other)):
        for name, weights in zip([name for name in decoder if seen.kind(name) == kind], maps, strict=True):
            real = torch.ones(len(ids), weights.shape[-2], dtype=torch.bool)
            if family != "t5":
                real[:, :LENGTH] = mask.bool()
            check_rows(seen[name], weights, real)
    return own[0].sum(-1) == 0


def check_rows(sight, weights, real):
    assert sight.shape == weights.shape
    rows = real[:, None, :, None]
    torch.testing.assert_close(sight.overview().sums * rows, weights * rows, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(
        sight.entropy * rows[..., 0], torch.special.entr(weights).sum(-1) * rows[..., 0], atol=2e-5, rtol=1e-4
    )
    if bool(real.all()):
        torch.testing.assert_close(sight.received(), weights.sum(-2), atol=1e-5, rtol=1e-5)
    nothing = (weights.sum(-1) == 0) & rows[..., 0]
    assert bool((sight.lse[nothing] == -torch.inf).all())
    assert bool((sight.top(2).keys[nothing] == -1).all())


# Padded on the right, a window of mistral may hold nothing but padding: eager mode writes another text then.
CASES = [(family, side) for family in ("llama", "mistral", "gpt2", "t5") for side in (None, "left", "right")]
CASES.remove(("mistral", "right"))


@pytest.mark.parametrize("family,padding", CASES)
def test_beams_are_followed_to_what_is_returned(family, padding):
    model, given = tiny.model(family), prompt(family, padding)
    options = {"num_beams": 3, "num_return_sequences": 2, "pad_token_id": 0}
    seen, ids = watched(model, given, **options)
    check_returned(seen, family, given, ids, **options)
    # Some sequences end early, at different steps.
    options |= {"eos_token_id": [int(ids[0, -2]), int(ids[2, -4])], "do_sample": family == "llama"}
    seen, ids = watched(model, given, **options)
    check_returned(seen, family, given, ids, **options)


def test_what_ended_early_sees_nothing_afterwards(tmp_path):
    model, given = tiny.model("llama"), prompt()
    options = {"num_beams": 3, "pad_token_id": 0}
    with torch.no_grad():
        ids = run(model, given, **options)
    options |= {"eos_token_id": [int(ids[0, -2]), int(ids[1, -4])], "num_return_sequences": 3}
    seen, ids = watched(model, given, **options, keep_qk=True)
    ended = check_returned(seen, "llama", given, ids, **options)
    assert ended.any(), "all were as long: the test tests nothing"
    assert not ended.all(-1).any()
    again = load(seen.save(tmp_path / "run"))
    for sights in (seen, again):
        whole = sights[1].tile(slice(None), slice(None))
        torch.testing.assert_close(whole, seen[1].overview().sums, atol=1e-6, rtol=1e-5)
    # Induction is of each beam's own tokens.
    with torch.no_grad(), watch(model) as one:
        model(ids[:1, :-1])
    torch.testing.assert_close(
        seen.shares(0)["induction"][0][~ended[0]], one.shares(0)["induction"][0][~ended[0]], atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("folder", [False, True])
def test_beams_in_a_folder(tmp_path, folder):
    model, given = tiny.model("llama"), prompt(padding="left")
    options = {"num_beams": 3, "pad_token_id": 0}
    with torch.no_grad(), watch(model, stats=STATS, keep_qk=str(tmp_path / "run") if folder else True) as seen:
        ids = run(model, given, **options)
    check_returned(seen, "llama", given, ids, **options)
    again = load(tmp_path / "run" if folder else seen.save(tmp_path / "run"))
    assert again.ids == seen.ids
    for name in seen.layers:
        whole = again[name].tile(slice(None), slice(None))
        torch.testing.assert_close(whole, seen[name].overview().sums, atol=1e-6, rtol=1e-5)


def test_beams_where_only_cross_attention_is_watched():
    """The encoder's keys are the same for all beams: which is which cannot be told by them."""
    model, given = tiny.model("t5"), prompt("t5", "left")
    with torch.no_grad(), watch(model, layers="*EncDecAttention") as seen:
        run(model, given, num_beams=2)
    assert list(seen.unseen) == seen.layers
    assert all("beam search" in reason for reason in seen.unseen.values())


def test_beams_without_a_cache_are_their_last_pass():
    model, given = tiny.model("llama"), prompt(padding="left")
    seen, sequences = watched(model, given, num_beams=2, use_cache=False)
    assert not seen.unseen
    ids = torch.tensor(seen.ids)
    assert torch.equal(ids, sequences[:, :-1])
    mask = given["attention_mask"]
    mask = torch.cat([mask, mask.new_ones(3, STEPS - 1)], -1)
    for name, weights in zip(seen.layers, eager("llama", ids, mask)):
        check_statistics(seen[name], weights, mask)


def test_a_cache_that_goes_on_after_its_search():
    model, given = tiny.model("llama"), prompt()

    def more(model, given):
        out = run(model, given, num_beams=2, num_return_sequences=2, return_dict_in_generate=True)
        return model(given["input_ids"].repeat(2, 1)[:, :1], past_key_values=out.past_key_values).logits

    seen, _ = watched(model, given, more)
    assert all("search was over" in reason for reason in seen.unseen.values())
    assert list(seen.unseen) == seen.layers
    assert seen[0].shape[-2] == LENGTH + STEPS - 1


def own_beams(model, given, cache="dynamic", moves=((1, 0, 2),), **_):
    """A search of somebody's own, which moves the sequences before its third pass."""
    from transformers import DynamicCache, StaticCache

    kept = DynamicCache() if cache == "dynamic" else StaticCache(model.config, max_cache_len=32)
    ids = [given["input_ids"]]
    order = [None, torch.tensor(moves[0])]
    mask = given["attention_mask"]
    for step in range(4):
        if step == 2:
            kept.reorder_cache(order[1])
            mask = mask[order[1]]
        at = (mask.cumsum(-1) - 1).clamp_min(0)[:, -ids[-1].shape[1] :]
        out = model(
            input_ids=ids[-1], attention_mask=mask, past_key_values=kept, position_ids=at, use_cache=True
        ).logits[:, -1]
        ids.append(out.argmax(-1)[:, None])
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], -1)
    return torch.cat(ids[1:], -1)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_cache_that_somebody_reorders(family, cache, padding):
    model, given = tiny.model(family), prompt(family, padding)
    seen, _ = watched(model, given, own_beams, cache=cache, keep_qk=True)
    assert not seen.unseen
    ids, order = torch.tensor(seen.ids), [1, 0, 2]
    mask = given["attention_mask"][order]
    assert torch.equal(ids[:, :LENGTH], given["input_ids"][order])
    assert ids.shape == (3, LENGTH + 3)
    mask = torch.cat([mask, mask.new_ones(3, 3)], -1)
    for name, weights in zip(seen.layers, eager(family, ids, mask)):
        check_statistics(seen[name], weights, mask)


def test_an_order_that_stays_is_no_change():
    seen, _ = watched(tiny.model("llama"), prompt(), own_beams, moves=((0, 1, 2),))
    assert not seen.unseen
    assert seen[0].shape[-2:] == (LENGTH + 3, LENGTH + 3)


def test_sequences_that_are_dropped():
    model, given = tiny.model("llama"), prompt()

    def fewer(model, given):
        out = model(**given, use_cache=True)
        out.past_key_values.batch_select_indices(torch.tensor([0, 2]))
        return model(given["input_ids"][[0, 2], :1], past_key_values=out.past_key_values).logits

    seen, _ = watched(model, given, fewer)
    assert not seen.unseen
    rest = given["input_ids"][[0, 2]]
    ids = torch.cat([rest, rest[:, :1]], -1)
    assert seen.ids == ids.tolist()
    for name, weights in zip(seen.layers, eager("llama", ids, torch.ones_like(ids))):
        check_statistics(seen[name], weights)


def test_sequences_that_come_from_nowhere():
    model, given = tiny.model("llama"), prompt()

    def other(model, given):
        cache = model(**given, use_cache=True).past_key_values
        for layer in cache.layers:
            layer.keys = torch.zeros_like(layer.keys[:2])
            layer.values = layer.values[:2]
        return model(given["input_ids"][:2, :1], past_key_values=cache).logits

    seen, _ = watched(model, given, other)
    assert all("number of sequences" in reason for reason in seen.unseen.values())
    assert list(seen.unseen) == seen.layers
    assert seen.ids == given["input_ids"].tolist()
    assert seen[1].shape == (3, 4, LENGTH, LENGTH)


def cropped(model, given):
    """Speculation by hand: two tokens of a step are taken back."""
    ids = given["input_ids"]
    out = model(ids[:, :7], use_cache=True)
    cache = model(ids[:, 7:], past_key_values=out.past_key_values).past_key_values
    cache.crop(-2)
    return model(ids[:, :3], past_key_values=cache).logits


def test_tokens_that_are_taken_back():
    model, given = tiny.model("llama"), prompt()
    seen, _ = watched(model, given, cropped, keep_qk=True)
    assert all("cropped" in reason for reason in seen.unseen.values())
    assert list(seen.unseen) == seen.layers
    ids = given["input_ids"][:, :7]
    assert seen.ids == ids.tolist()
    for name, weights in zip(seen.layers, eager("llama", ids, torch.ones_like(ids))):
        check_statistics(seen[name], weights)


@pytest.mark.parametrize("folder", [False, True])
def test_a_folder_holds_what_was_followed(tmp_path, folder):
    model, given = tiny.model("llama"), prompt()
    with torch.no_grad(), watch(model, keep_qk=str(tmp_path / "run") if folder else True) as seen:
        cropped(model, given)
    again = load(tmp_path / "run" if folder else seen.save(tmp_path / "run"))
    assert again.layers == seen.layers
    assert again.ids == seen.ids
    assert len(seen) == 2
    for name in seen.layers:
        assert again[name].shape == (3, 4, 7, 7)
        torch.testing.assert_close(again[name].tile(slice(None), slice(None)), seen[name].overview().sums)


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("how", ["assistant", "lookup"])
@pytest.mark.parametrize("keep", [False, True])
def test_assisted_decoding(family, how, keep):
    model, given = tiny.model(family), prompt(family, batch=1)
    given["input_ids"][:, 6:] = given["input_ids"][:, :5]  # something to look up
    helper = tiny.model(family)
    with torch.no_grad():
        for parameter in helper.parameters():
            parameter.mul_(1.1)
    options = {"assistant_model": helper} if how == "assistant" else {"prompt_lookup_num_tokens": 3}
    seen, ids = watched(model, given, **options, max_new_tokens=9, keep_qk=keep)
    assert not seen.unseen
    read = ids[:, :-1]
    assert seen.ids == read.tolist()
    for name, weights in zip(seen.layers, eager(family, read, torch.ones_like(read)), strict=True):
        check_statistics(seen[name], weights)
        if keep:
            tile = seen[name].tile(slice(None), slice(None))
            torch.testing.assert_close(tile, weights, atol=2e-6, rtol=1e-5)


def test_a_model_that_assists_itself():
    model, given = tiny.model("llama"), prompt(batch=1)
    model.generation_config.assistant_early_exit = 1
    with torch.no_grad():
        plain = run(model, given)
        with watch(model) as seen:
            assert torch.equal(run(model, given), plain)
    assert seen.unseen or seen.layers


def test_what_another_model_does_is_not_said_of_this_one():
    model, other, ids = tiny.model("llama"), tiny.model("gpt2"), prompt()["input_ids"]

    def both(first, second):
        second(ids)
        return first(ids)

    with torch.no_grad(), watch(model) as seen:
        both(model, other)
    assert seen.layers == [f"model.layers.{i}.self_attn" for i in (0, 1)]


def test_a_new_run_after_one_that_was_lost():
    model, given = tiny.model("llama"), prompt()

    def two():
        with watch(model) as seen:
            run(model, given, num_beams=2)
            model(**given)
        return seen

    with torch.no_grad(), pytest.warns(UserWarning, match="a second run began"):
        seen = two()
    assert not seen.unseen
    assert seen[0].shape == (3, 4, LENGTH, LENGTH)


@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("cache", ["whole", "static"])
def test_caches_that_only_grow_are_followed(family, cache, padding):
    from transformers import DynamicCache

    model, given = tiny.model(family), prompt(family, padding)

    def grow(model, given):
        if cache == "static":
            return run(model, given, cache_implementation="static")
        return run(model, given, past_key_values=DynamicCache())  # without a config it lets no key go

    seen, _ = watched(model, given, grow)
    assert not seen.unseen
    ids, mask = torch.tensor(seen.ids), given["attention_mask"]
    mask = torch.cat([mask, mask.new_ones(3, STEPS - 1)], -1)
    for name, weights in zip(seen.layers, eager(family, ids, mask), strict=True):
        check_statistics(seen[name], weights, mask)


def test_a_generation_that_goes_on():
    model, given = tiny.model("llama"), prompt(batch=1)

    def twice(model, given):
        first = run(model, given, return_dict_in_generate=True)
        ids = torch.cat([first.sequences, given["input_ids"][:, :3]], -1)
        return run(model, {"input_ids": ids}, past_key_values=first.past_key_values)

    seen, ids = watched(model, given, twice)
    assert not seen.unseen
    assert seen.ids == ids[:, :-1].tolist()
    for name, weights in zip(seen.layers, eager("llama", ids[:, :-1], torch.ones_like(ids[:, :-1]))):
        check_statistics(seen[name], weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [8, 5])
def test_marks_know_keys_apart(dtype, dim):
    torch.manual_seed(0)
    k = torch.randn(3, 2, 7, dim).to(dtype)
    follow = Follow()
    follow.step("a", k[:, :, :5], 0, False)
    follow.step("a", k, 0, False)
    assert not follow.moved()
    follow.step("a", torch.cat([k, k[:, :, :1]], 2)[:, :, 3:], 3, False)  # a window
    assert not follow.moved()
    other = k.clone()
    other[1, 1, 4, 2] += 1
    follow.step("a", other[:, :, 3:], 3, False)
    assert follow.moved()
    assert not follow.moved(), "it is said once"
    assert marks(k).shape == (3, 7)
