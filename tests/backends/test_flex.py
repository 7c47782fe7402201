"""What of FlexAttention's backend can be tested without a GPU: its refusals, its blocks, and its rules for scores."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import Shape, inputs, masks
from sightline.backends import flex, reference
from sightline.backends.call import make_call
from sightline.errors import BackendError
from sightline.masks import as_mask
from sightline.positions import alibi


class OnCuda:
    """A call that says it is on a GPU, to be asked and not to be run."""

    def __init__(self, call):
        self._call = call
        self.device = torch.device("cuda")

    def __getattr__(self, name):
        return getattr(self._call, name)


def asked(*sizes, **options):
    options = {"dtype": torch.float32, "dim": 16, **options}
    names = {"mask", "bias", "softcap", "sinks", "normalizer", "dropout"}
    tensors = inputs(*sizes, **{n: o for n, o in options.items() if n not in names})
    return flex.refuses(OnCuda(make_call(*tensors, **{n: o for n, o in options.items() if n in names})))


def test_on_the_cpu_it_refuses():
    q, k, v = inputs(2)
    with pytest.raises(BackendError, match="needs a CUDA device"):
        sl.attention(q, k, v, backend="flex")


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"normalizer": "relu"}, "only softmax, not relu"),
        ({"dropout": 0.1}, "no dropout"),
        ({"dtype": torch.float64}, "no float64"),
        ({"bias": torch.zeros(6, 6, requires_grad=True)}, "gradient of a dense bias"),
        ({"dim": 8}, "at least 16"),
        ({"dim": 16, "value_dim": 8}, "at least 16"),
    ],
)
def test_what_it_refuses_on_a_gpu(options, reason):
    assert reason in asked(2, **options)


def test_it_refuses_nothing_to_do():
    q = torch.zeros(2, 2, 0, 16)
    assert "empty" in flex.refuses(OnCuda(make_call(q, q, q)))


@pytest.mark.parametrize(
    "options", [{}, {"mask": sl.window(2)}, {"softcap": 3.0}, {"sinks": torch.zeros(2)}, {"bias": alibi(2)}], ids=str
)
def test_what_it_takes_on_a_gpu(options):
    assert asked(2, **options) is None


@settings(max_examples=60)
@given(st.data())
def test_blocks_to_visit_come_from_the_kinds_of_tiles(data):
    shape = Shape(
        (2,), 1, data.draw(st.sampled_from((1, 100, 128, 300))), data.draw(st.sampled_from((5, 128, 256, 301)))
    )
    mask, table = data.draw(masks(shape, depth=2))
    q, k, v = inputs(2, heads=1, queries=shape.queries, keys=shape.keys, dim=1)
    blocks = flex._block_mask(make_call(q, k, v, mask=as_mask(mask)))
    partial, full = set(), set()
    for name, found in (("kv", partial), ("full_kv", full)):
        count, order = getattr(blocks, f"{name}_num_blocks")[0, 0], getattr(blocks, f"{name}_indices")[0, 0]
        for i, n in enumerate(count.tolist()):
            found.update((i, j) for j in order[i, :n].tolist())
    assert not partial & full
    for i in range(-(-shape.queries // 128)):
        for j in range(-(-shape.keys // 128)):
            part = table[..., i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128]
            assert (i, j) in partial | full or not part.any()
            if (i, j) in full:
                assert part.all()
                assert part.shape[-2:] == (128, 128), "a block beyond the last query or key is looked at cell by cell"


OPTIONS = {
    "plain": {},
    "causal": {"mask": sl.causal()},
    "padding": {"mask": sl.padding([0, 9])},
    "alibi": {"bias": alibi(4), "mask": sl.window(3)},
    "softcap": {"softcap": 2.0, "mask": sl.prefix(2)},
    "sinks": {"sinks": torch.tensor([0.0, 1.0, -1.0, 2.0]), "mask": sl.padding([3, 9])},
    "bias of all": {"bias": torch.randn(2, 4, 6, 9, generator=torch.Generator().manual_seed(1))},
    "bias of heads": {"bias": torch.randn(4, 1, 9, generator=torch.Generator().manual_seed(1))},
    "bias of rows": {"bias": torch.randn(6, 1, generator=torch.Generator().manual_seed(1)), "softcap": 2.0},
    "bias of one": {"bias": torch.tensor(1.5)},
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_its_rules_run_eagerly_give_the_definition(monkeypatch, options):
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(flex, "_compiled", lambda kind, scale: partial(flex_attention, scale=scale))
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=6, keys=9, dim=16, dtype=torch.float32)
    out, lse = flex.run_with_lse(make_call(q, k, v, **options))
    torch.testing.assert_close(out, reference.matrix_view(q, k, v, **options))
    scores = reference.scores(q, k, bias=options.get("bias"), softcap=options.get("softcap"))
    if "mask" in options:
        scores = scores.masked_fill(~options["mask"].to_dense(6, 9), -torch.inf)
    expected = scores.logsumexp(-1)
    if "sinks" in options:
        expected = torch.logaddexp(expected, options["sinks"][:, None])
    torch.testing.assert_close(lse, expected)


def test_an_older_torch_is_asked_for_the_lse_in_its_own_way(monkeypatch):
    """It gives the lse by itself, as torch 2.6 does, or in a tuple, as it does now."""
    from torch.nn.attention import flex_attention as torch_flex

    monkeypatch.delattr(torch_flex, "AuxRequest", raising=False)
    asked = {}

    def older(q, k, v, **options):
        asked.update(options)
        return q, q[..., 0]

    monkeypatch.setattr(flex, "_compiled", lambda kind, scale: older)
    q, k, v = inputs(2, heads=4, queries=6, keys=6, dim=16, dtype=torch.float32)
    out, lse = flex.run_with_lse(make_call(q, k, v))
    assert asked["return_lse"] is True
    assert "return_aux" not in asked
    assert torch.equal(out, q)
    assert torch.equal(lse, q[..., 0])


def test_a_number_is_the_same_whatever_the_default_dtype_and_can_be_trained_with():
    flex._number.cache_clear()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.inference_mode():
            cap = flex._number(33.3, torch.device("cpu"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert cap.dtype == torch.float32
    assert not cap.is_inference()


def test_what_was_compiled_too_often_is_refused_too(monkeypatch):
    """Torch says so by an error of another family than its others."""

    def compiled(kind, scale):
        def attend(*given, **options):
            raise torch._dynamo.exc.FailOnRecompileLimitHit("")

        return attend

    monkeypatch.setattr(flex, "_compiled", compiled)
    monkeypatch.setattr(flex, "_refused", {})
    q, k, v = inputs(2, dim=16, dtype=torch.float32)
    call = make_call(q, k, v)
    with pytest.raises(flex.NotCompiled):
        flex.run_with_lse(call)
    assert list(flex._refused) == [flex._kind(call)]


def test_functions_that_refer_to_themselves_or_to_what_is_not_there_yet_have_a_kind():
    def again(b, h, i, j):
        return again(b, h, i, j) if later else i

    found = flex.code_of(again)
    later = 5
    assert hash(found) != hash(flex.code_of(again))


@pytest.mark.parametrize("length", [5, 128, 777, 1281])
@pytest.mark.parametrize("mask", [sl.window(256), sl.prefix(100), sl.causal() & sl.padding([4])], ids=str)
def test_blocks_are_those_that_torch_lists(length, mask):
    """For each block of keys the queries that see it, which torch would find from the keys of each block of queries."""
    from torch.nn.attention.flex_attention import BlockMask

    ours = flex._make_blocks(mask, (1,), length, length, torch.device("cpu"))
    keys = (ours.kv_num_blocks, ours.kv_indices, ours.full_kv_num_blocks, ours.full_kv_indices)
    torchs = BlockMask.from_kv_blocks(*keys, BLOCK_SIZE=128, mask_mod=ours.mask_mod, seq_lengths=(length, length))
    assert ours.shape == torchs.shape
    for name in ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"):
        assert torch.equal(getattr(ours, name), getattr(torchs, name)), name
    table = mask.tile(slice(0, length), slice(0, length), length, length, torch.device("cpu"))
    assert torch.equal(ours.to_dense()[0, 0].bool()[0, 0], table[..., :128, :128].any())


def test_each_kind_is_a_piece_of_code_of_its_own_with_a_place():
    """Torch compiles a piece of code only so often, and puts one from no file into a function that all share."""
    from torch._dynamo import trace_rules

    one, other = flex._attend(0.5), flex._attend(0.5)
    assert one.__code__ is not other.__code__
    assert inspect.getsourcefile(one) == flex.__file__
    assert not trace_rules.check(one)
