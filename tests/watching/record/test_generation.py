"""Generation: the prompt and every step joined into one sight, against one eager pass over the finished text."""

from __future__ import annotations

import pytest
import torch

import watch_cases as tiny
from sightline.watching import watch
from watch_cases import STATS, check_statistics, layers_of

STEPS = 6
RUNS = [
    (family, implementation, cache, padding)
    for family in [*tiny.CAUSAL, "t5", "whisper"]
    for implementation in (["eager"] if family in tiny.EAGER_ONLY else ["sdpa"])
    for cache in ("dynamic", "static")
    for padding in (None, "left")
    if not (family == "whisper" and padding)
]


def prompt(family, padding=None, batch=3):
    given = tiny.inputs(family, padding, batch)
    if family == "whisper":
        return {"input_features": given["input_features"]}
    given.pop("decoder_input_ids", None)
    return given


def generate(model, given, cache="dynamic", **more):
    options = {"max_new_tokens": STEPS, "do_sample": False} | more
    if cache == "static":
        options["cache_implementation"] = "static"
    return model.generate(**given, **options)


def whole(family, given, seen):
    """What one pass over all the text needs."""
    ids = torch.tensor(seen.ids)
    if family in ("t5", "whisper"):
        return given | {"decoder_input_ids": ids}
    mask = torch.cat([given["attention_mask"], torch.ones(len(ids), STEPS - 1, dtype=torch.long)], -1)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp_min(0)}


@pytest.mark.parametrize("family, implementation, cache, padding", RUNS)
def test_a_generation_is_one_sight(family, implementation, cache, padding):
    model, given = tiny.model(family, implementation), prompt(family, padding)
    reference = tiny.model(family, "eager")
    with torch.no_grad():
        plain = generate(model, given, cache)
        with watch(model, stats=STATS) as seen:
            ids = generate(model, given, cache)
        assert torch.equal(plain, ids)
        expected = reference(**whole(family, given, seen), output_attentions=True)
    names = layers_of(family, seen)
    for kind, maps in tiny.attentions(family, expected).items():
        assert len(maps) == len(names[kind])
        for name, weights in zip(names[kind], maps):
            exists = whole(family, given, seen)["attention_mask"] if kind == "self" else None
            if kind == "encoder":
                exists = given.get("attention_mask")
            check_statistics(seen[name], weights, exists)


@pytest.mark.parametrize(
    "family, implementation",
    [(family, "eager") for family in [*tiny.CAUSAL, "t5"]] + [(family, "sdpa") for family in ("llama", "gpt2", "t5")],
)
def test_a_prompt_padded_on_the_right(family, implementation):
    """The padding then stands between prompt and answer; transformers counts positions through it as it likes."""
    model, given = tiny.model(family, implementation), prompt(family, "right")
    with torch.no_grad():
        told = {"output_attentions": True, "return_dict_in_generate": True}
        expected = generate(tiny.model(family, "eager"), given, **told)
        with watch(model, stats=STATS) as seen:
            ids = generate(model, given)
    assert torch.equal(ids, expected.sequences)
    names = layers_of(family, seen)
    steps = expected.decoder_attentions if family == "t5" else expected.attentions
    real = given["attention_mask"][:, None, :, None]
    for layer, name in enumerate(names["decoder" if family == "t5" else "self"]):
        tile = seen[name].tile(slice(None), slice(None))
        row = 0
        for maps in steps:
            weights = maps[layer]
            queries, keys = weights.shape[-2:]
            # A window that is full has dropped its first keys.
            got = tile[..., row : row + queries, : row + queries][..., -keys:]
            rows = real if row == 0 and family != "t5" else 1
            torch.testing.assert_close(got * rows, weights * rows, atol=1e-4, rtol=0)
            row += queries
        assert row == tile.shape[-2]
    if family == "t5":
        for name, weights in zip(names["encoder"], expected.encoder_attentions):
            check_statistics(seen[name], weights, given["attention_mask"])
        for layer, name in enumerate(names["cross"]):
            check_statistics(seen[name], torch.cat([maps[layer] for maps in expected.cross_attentions], -2))


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt-oss", "t5"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_kept_queries_and_keys_give_the_same_map(family, cache):
    model = tiny.model(family, "eager" if family in tiny.EAGER_ONLY else "sdpa")
    with torch.no_grad(), watch(model, keep_qk=True, stats=("overview", "entropy")) as seen:
        generate(model, prompt(family, "left"), cache)
    for name in seen.layers:
        sight = seen[name]
        assert sight.has_qk
        *_, queries, keys = sight.shape
        tile = sight.tile(slice(0, queries), slice(0, keys))
        torch.testing.assert_close(tile, sight.overview().sums, atol=1e-5, rtol=0)
        torch.testing.assert_close(sight.received(), tile.sum(-2), atol=1e-5, rtol=0)


def test_chunks_of_a_prompt_are_joined():
    model, given = tiny.model("llama"), prompt("llama", batch=1)
    with torch.no_grad():
        with watch(model, stats=STATS) as seen:
            first = model(given["input_ids"][:, :5], use_cache=True)
            model(given["input_ids"][:, 5:], past_key_values=first.past_key_values, use_cache=True)
        expected = tiny.model("llama", "eager")(given["input_ids"], output_attentions=True)
    assert seen.ids == given["input_ids"].tolist()
    for name, weights in zip(seen.layers, expected.attentions):
        check_statistics(seen[name], weights)


def test_a_run_that_begins_with_a_full_cache():
    model, given = tiny.model("llama"), prompt("llama", batch=1)
    with torch.no_grad():
        first = model(given["input_ids"][:, :5], use_cache=True)
        with watch(model, stats=STATS) as seen:
            model(given["input_ids"][:, 5:], past_key_values=first.past_key_values, use_cache=True)
        expected = tiny.model("llama", "eager")(given["input_ids"], output_attentions=True)
    for name, weights in zip(seen.layers, expected.attentions):
        check_statistics(seen[name], weights[:, :, 5:])


def test_only_cross_attention_is_watched():
    model, given = tiny.model("t5"), prompt("t5")
    with torch.no_grad(), watch(model, layers="*EncDecAttention") as seen:
        generate(model, given)
    assert [seen.kind(name) for name in seen.layers] == ["cross", "cross"]
    assert seen[0].shape == (3, 4, STEPS, 12)
    assert seen.memory_ids == given["input_ids"].tolist()


def test_a_generation_without_a_cache_is_its_last_pass():
    model, given = tiny.model("llama"), prompt("llama", batch=1)
    with torch.no_grad(), watch(model) as seen:
        generate(model, given, use_cache=False)
    assert seen[0].shape == (1, 4, 12 + STEPS - 1, 12 + STEPS - 1)
    assert seen.meta["runs"] == STEPS


def test_a_second_run_takes_the_place_of_the_first_and_says_so():
    model, given = tiny.model("llama"), prompt("llama")
    other = {"input_ids": given["input_ids"].flip(0)[:, :7]}

    def run_twice():
        with watch(model) as seen:
            model(**given)
            model(**other)
        return seen

    with torch.no_grad(), pytest.warns(UserWarning, match="a second run began"):
        seen = run_twice()
    assert seen.ids == other["input_ids"].tolist()
    assert seen[0].shape == (3, 4, 7, 7)


def test_a_sight_can_be_asked_while_it_grows():
    model, given = tiny.model("llama"), prompt("llama", batch=1)
    lengths = []

    class Look:
        def __call__(self, ids, scores, **more):
            lengths.append(seen[0].shape[-2])
            return torch.zeros(len(ids), dtype=torch.bool)

    from transformers import StoppingCriteriaList

    with torch.no_grad(), watch(model) as seen:
        generate(model, given, stopping_criteria=StoppingCriteriaList([Look()]))
    assert lengths == [12, 13, 14, 15, 16, 17]
