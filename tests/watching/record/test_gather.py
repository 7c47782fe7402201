"""Calls that wait for others of their kind: the numbers are those of calls that are accounted for one by one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watch_cases as tiny
from sightline.kernels.native import tile as native_tile
from sightline.lens import Picture
from sightline.lens.cpu import whole_maps
from sightline.watching import load, watch
from sightline.watching.record import gather
from watch_cases import STATS

pytestmark = pytest.mark.filterwarnings("ignore:.*attended without being seen:UserWarning")

ROWS = ("previous", "first", "same", "induction", "real", "repeated")


def check_same(one, other):
    """Two runs have the same layers, and these the same numbers."""
    assert one.layers == other.layers
    assert one.unseen == other.unseen
    assert one.ids == other.ids
    for name in one.layers:
        a, b = one[name], other[name]
        assert a.shape == b.shape
        assert repr(a.call.mask) == repr(b.call.mask)
        torch.testing.assert_close(a.row, b.row)
        assert a.kept.keys() == b.kept.keys()
        for what, x in b.kept.items():
            for mine, theirs in zip(*(found if isinstance(found, tuple) else (found,) for found in (a.kept[what], x))):
                torch.testing.assert_close(mine, theirs)
        for what in ROWS:
            mine, theirs = one._layers[name].rows(what), other._layers[name].rows(what)
            assert (mine is None) == (theirs is None), (name, what)
            if mine is not None:
                torch.testing.assert_close(mine, theirs)
        assert a.has_qk == b.has_qk
        if a.has_qk:
            assert torch.equal(a.call.q, b.call.q)
            assert torch.equal(a.call.k, b.call.k)
        if b.call.sinks is not None:
            assert torch.equal(a.call.sinks, b.call.sinks)
    for mine, theirs in zip(one.portraits(), other.portraits(), strict=True):
        assert mine[:2] == theirs[:2]
        assert [x is None for x in mine] == [x is None for x in theirs]
        assert [x for x in mine[2:] if x] == pytest.approx([x for x in theirs[2:] if x], rel=1e-4, abs=1e-6)


def both_ways(monkeypatch, model, run, **options):
    """A run whose calls waited, and one whose calls did not."""
    runs = []
    for on in (True, False):
        monkeypatch.setattr(gather.Gather, "on", on)
        torch.manual_seed(1)
        with torch.no_grad(), watch(model, **({"stats": STATS} | options)) as seen:
            run()
        runs.append(seen)
    return runs


def parts(seen):
    return {name: len(layer.parts) for name, layer in seen._layers.items()}


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("family", [*tiny.CAUSAL, "t5", "whisper"])
def test_a_generation(monkeypatch, family, padding, cache):
    if family == "whisper" and padding:
        return
    model = tiny.model(family, "eager" if family in tiny.EAGER_ONLY else "sdpa")
    given = tiny.inputs(family, padding, 3, **({} if family == "whisper" else {"length": 13}))
    given.pop("decoder_input_ids", None)
    if family == "whisper":
        given = {"input_features": given["input_features"]}
    more = {"cache_implementation": "static"} if cache == "static" else {}

    def run():
        model.generate(**given, max_new_tokens=9, do_sample=False, **more)

    together, single = both_ways(monkeypatch, model, run, keep_qk=True)
    check_same(together, single)
    if family in ("llama", "gpt2") or (family == "gpt-oss" and padding != "right"):
        assert set(parts(together).values()) == {2}, "a prompt, and eight steps"
        assert set(parts(single).values()) == {9}
        assert all(layer.calls == 9 for layer in together._layers.values())


@pytest.mark.parametrize("steps", [1, 2, 3, 31, 32, 33, 45])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_blocks_of_any_length(monkeypatch, family, steps):
    model, given = tiny.model(family), tiny.inputs(family, None, 1, length=3)

    def run():
        model.generate(**given, max_new_tokens=steps + 1, do_sample=False)

    together, single = both_ways(monkeypatch, model, run)
    check_same(together, single)
    # A window that fills begins a block when it moves on.
    blocks = -(-steps // gather.STEPS)
    assert all(blocks < count <= blocks + 3 for count in parts(together).values())


@pytest.mark.parametrize("stats", [("shares",), ("received", "shares"), ("overview_max", "shares"), STATS], ids=str)
@pytest.mark.parametrize("padding", [None, "left"])
def test_whole_maps_of_several_calls(monkeypatch, padding, stats):
    """The kernel in C takes all layers at once, whatever is asked for."""
    monkeypatch.setattr(whole_maps, "_CELLS", 1)
    model, given = tiny.model("llama"), tiny.inputs("llama", padding, 3, length=13)
    check_same(*both_ways(monkeypatch, model, lambda: model(**given), stats=stats))


@pytest.mark.parametrize("padding", [None, "left"])
def test_all_layers_of_a_short_text_are_one_call_of_the_kernel(monkeypatch, padding):
    """Where there is one; padding is of rows of a batch, and its layers do not wait for each other."""
    model, given = tiny.model("llama"), tiny.inputs("llama", padding, 2, length=160)
    maps, run = [], whole_maps.run

    def counting(levels, job, seen):
        maps.append(levels.call.sizes.batch)
        return run(levels, job, seen)

    monkeypatch.setattr(whole_maps, "run", counting)
    together, single = both_ways(monkeypatch, model, lambda: model(**given), stats=("entropy", "received", "overview"))
    check_same(together, single)
    layers = len(together.layers)
    assert layers > 1
    if native_tile.maps() is not None and padding is None:
        cells = 2 * model.config.num_attention_heads * 160 * 160
        assert 1 << 16 < cells <= 1 << 18
        assert maps[0] == (layers, 2), "all at once"


@pytest.mark.parametrize("factor", [1.0, 8.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_any_precision(monkeypatch, family, dtype, factor):
    """Nor are rows of large numbers, or of low precision, taken for those of other keys."""
    model, given = tiny.model(family).to(dtype), tiny.inputs(family, "left", 2, length=9)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(factor)

    def run():
        model.generate(**given, max_new_tokens=14, do_sample=False)

    together, single = both_ways(monkeypatch, model, run, stats=None)
    assert not together.unseen
    check_same(together, single)


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt-oss", "bert", "vit", "t5"])
def test_a_pass(monkeypatch, family, padding):
    model = tiny.model(family, "eager" if family in tiny.EAGER_ONLY else "sdpa")
    given = tiny.inputs(family, padding, 3)
    together, single = both_ways(monkeypatch, model, lambda: model(**given), keep_qk=True)
    check_same(together, single)


@pytest.mark.parametrize("options", [{"layers": [1]}, {"heads": [0, 3]}, {"heads": 2, "keep_qk": True}])
def test_some_layers_and_heads(monkeypatch, options):
    model, given = tiny.model("llama"), tiny.inputs("llama", "left", 2, length=7)

    def run():
        model.generate(**given, max_new_tokens=8, do_sample=False)

    together, single = both_ways(monkeypatch, model, run, **options)
    check_same(together, single)
    assert set(parts(together).values()) == {2}


def test_what_cannot_wait_does_not(monkeypatch):
    model, given = tiny.model("llama"), tiny.inputs("llama", None, 2, length=7)

    def run():
        model.generate(**given, max_new_tokens=5, do_sample=False)

    together, single = both_ways(monkeypatch, model, run, stats=("entropy", Picture(4, 4)))
    check_same(together, single)
    assert parts(together) == parts(single)


def test_a_look_at_any_time(monkeypatch):
    model, given = tiny.model("llama"), tiny.inputs("llama", "left", 2, length=6)
    shapes = {True: [], False: []}
    seen_there = {True: [], False: []}

    def run(seen, on):
        def look(*_):
            if seen.layers:
                sight = seen[0]
                shapes[on].append(sight.shape)
                seen_there[on].append((sight.entropy.clone(), sight.received().clone(), seen.shares(0)["same"].clone()))

        handles = [model.model.norm.register_forward_hook(look), model.model.layers[1].register_forward_pre_hook(look)]
        model.generate(**given, max_new_tokens=6, do_sample=False)
        for handle in handles:
            handle.remove()

    runs = []
    for on in (True, False):
        monkeypatch.setattr(gather.Gather, "on", on)
        with torch.no_grad(), watch(model, stats=STATS) as seen:
            run(seen, on)
        runs.append(seen)
    check_same(*runs)
    assert shapes[True] == shapes[False]
    assert shapes[True][-1] == (2, 4, 11, 11)
    for mine, theirs in zip(seen_there[True], seen_there[False]):
        torch.testing.assert_close(mine, theirs)


def test_a_look_between_steps(monkeypatch):
    model, ids = tiny.model("llama"), tiny.inputs("llama", None, 2, length=9)["input_ids"]
    with torch.no_grad(), watch(model, stats=STATS) as seen:
        cache = model(ids[:, :4]).past_key_values
        for i in range(4, 9):
            model(ids[:, i : i + 1], past_key_values=cache)
            assert seen[1].shape == (2, 4, i + 1, i + 1)
            assert len(seen._layers[seen.layers[0]].parts) == i - 2
    with torch.no_grad(), watch(model, stats=STATS) as other:
        model(ids)
    for name in seen.layers:
        torch.testing.assert_close(seen[name].entropy, other[name].entropy, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(seen[name].received(), other[name].received(), atol=1e-5, rtol=1e-4)


class Broken(Exception):
    pass


def test_an_exception_in_the_middle(monkeypatch):
    model, given = tiny.model("llama"), tiny.inputs("llama", None, 2, length=5)
    runs = []
    for on in (True, False):
        monkeypatch.setattr(gather.Gather, "on", on)
        passes = [0]

        def fail(*_, passes=passes):
            passes[0] += 1
            if passes[0] == 6:
                raise Broken

        handle = model.model.layers[1].register_forward_pre_hook(fail)
        with pytest.raises(Broken), torch.no_grad(), watch(model, stats=STATS) as seen:
            model.generate(**given, max_new_tokens=9, do_sample=False)
        handle.remove()
        runs.append(seen)
    assert [seen[0].shape[-2] for seen in runs] == [10, 10]
    assert [seen[1].shape[-2] for seen in runs] == [9, 9]
    check_same(*runs)


class Rough(nn.Module):
    """Writes over its queries and keys as soon as it has attended."""

    def __init__(self, layers=3):
        super().__init__()
        self.parts = nn.ModuleList(nn.Module() for _ in range(layers))
        for part in self.parts:
            part.forward = self.attend.__get__(part)
            part.add_module("inner", nn.Identity())

    def attend(self, x):
        q, k = x * 1.5, x.flip(-1) * 0.5
        out = F.scaled_dot_product_attention(q, k, x, is_causal=x.shape[-2] > 1)
        q.zero_()
        k.fill_(3.0)
        return x + out

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_tensors_that_are_written_over_at_once(monkeypatch, mode):
    model, x = Rough(), torch.randn(2, 3, 11, 8)

    def run():
        with mode():
            model(x)

    together, single = both_ways(monkeypatch, model, run)
    assert len(together.layers) == 3
    check_same(together, single)


class Cached(nn.Module):
    """Attends to all that came before, in memory of its own that it writes into."""

    def __init__(self, room=64):
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 3, room, 8))
        self.inner, self.used = nn.Identity(), 0

    def forward(self, x):
        q, n = x.clone(), x.shape[-2]
        self.keys[:, :, self.used : self.used + n] = x
        self.used += n
        k = self.keys[:, :, : self.used]
        out = F.scaled_dot_product_attention(q, k, k, is_causal=n > 1)
        q.zero_()
        return out


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_cache_that_is_emptied_after_the_run(monkeypatch, mode):
    model, x = Cached(), torch.randn(2, 3, 21, 8)

    def run():
        model.used = 0
        with mode():
            model(x[:, :, :9])
            for i in range(9, 21):
                model(x[:, :, i : i + 1])
            model.keys.zero_()

    together, single = both_ways(monkeypatch, model, run, keep_qk=True)
    assert not together.unseen
    assert together[0].shape[-2:] == (21, 21)
    assert set(parts(together).values()) == {2}
    check_same(together, single)


@pytest.mark.parametrize("back", [False, True])
def test_a_key_that_changes_between_steps_is_noticed(monkeypatch, back):
    """Also where it is put back before anybody looks."""
    model, x = Cached(), torch.randn(2, 3, 21, 8)

    def run():
        model.used = 0
        model(x[:, :, :9])
        for i in range(9, 21):
            if i == 14:
                model.keys[0, 0, 3] += 5.0
            if i == 16 and back:
                model.keys[0, 0, 3] = x[0, 0, 3]
            model(x[:, :, i : i + 1])

    together, single = both_ways(monkeypatch, model, run)
    assert list(together.unseen) == list(single.unseen) == together.layers
    assert "reordered or changed" in next(iter(together.unseen.values()))
    assert single[0].shape[-2:] == (14, 14)
    assert together[0].shape[-2:] == (9, 9), "which step was the first is not known: all that waited go"
    assert together._layers[together.layers[0]].parts[-1].last == 1


def test_tokens_that_are_taken_back_from_steps_that_wait(monkeypatch):
    model, ids = tiny.model("llama"), tiny.inputs("llama", None, 3, length=12)["input_ids"]

    def run():
        cache = model(ids[:, :4]).past_key_values
        for i in range(4, 10):
            model(ids[:, i : i + 1], past_key_values=cache)
        cache.crop(-3)
        for i in range(4, 6):
            model(ids[:, i : i + 1], past_key_values=cache)

    together, single = both_ways(monkeypatch, model, run)
    assert together[0].shape == (3, 4, 7, 7)
    check_same(together, single)


def test_a_run_in_a_folder(monkeypatch, tmp_path):
    model, given = tiny.model("llama"), tiny.inputs("llama", "left", 2, length=7)
    runs = []
    for on in (True, False):
        monkeypatch.setattr(gather.Gather, "on", on)
        with torch.no_grad(), watch(model, keep_qk=str(tmp_path / str(on)), stats=STATS) as seen:
            model.generate(**given, max_new_tokens=9, do_sample=False)
            held = load(tmp_path / str(on))
            assert held.layers == seen.layers
            assert not held.complete
        runs.append(seen)
    check_same(*runs)
    check_same(*(load(tmp_path / str(on)) for on in (True, False)))
    kept = runs[0].save(tmp_path / "copy")
    check_same(load(kept), load(tmp_path / "False"))


def test_rollout_and_tiles(monkeypatch):
    model, given = tiny.model("llama"), tiny.inputs("llama", "left", 2, length=7)

    def run():
        model.generate(**given, max_new_tokens=9, do_sample=False)

    together, single = both_ways(monkeypatch, model, run, keep_qk=True)
    torch.testing.assert_close(together.rollout(), single.rollout())
    for name in single.layers:
        everything = slice(None), slice(None)
        torch.testing.assert_close(together[name].tile(*everything), single[name].tile(*everything))
        torch.testing.assert_close(together[name].tile(*everything), together[name].overview().sums)


def test_little_waits(monkeypatch):
    model, given = tiny.model("llama"), tiny.inputs("llama", None, 2, length=7)
    monkeypatch.setattr(gather, "_BYTES", 1 << 10)

    def run():
        model.generate(**given, max_new_tokens=9, do_sample=False)

    together, single = both_ways(monkeypatch, model, run)
    check_same(together, single)
    assert all(count > 2 for count in parts(together).values())
