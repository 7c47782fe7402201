"""Every bad argument of `sl.attention` by the text of its error."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import sightline as sl
from cases import inputs
from sightline.backends.call import make_call
from sightline.errors import BackendError, InputError, InputTypeError
from sightline.positions import alibi


def tensors(**changes):
    given = dict(zip("qkv", inputs(2, heads=4, kv_heads=2, queries=5, keys=7, dtype=torch.float32), strict=True))
    return {**given, **changes}


def said(kind, facts, **arguments):
    with pytest.raises(kind) as caught:
        sl.attention(**tensors(**arguments))
    text = str(caught.value)
    assert [line.split(":")[0] for line in text.splitlines()][1:] == ["  expected", "  got", "  try"]
    for fact in facts:
        assert fact in text


BOOL, META = {"dtype": torch.bool}, {"device": "meta"}


@pytest.mark.parametrize(
    "name, value, kind, facts",
    [
        ("q", torch.randn(4, 5, 4), InputError, ["same number of axes", "q (4, 5, 4)"]),
        ("k", torch.randn(2, 2, 7, 3), InputError, ["last axis", "dim 4 in k"]),
        ("v", torch.randn(2, 2, 6, 4), InputError, ["same length", "7 keys in v"]),
        ("v", torch.randn(2, 4, 7, 4), InputError, ["k and v must have the same number of heads"]),
        ("q", torch.randn(2, 3, 5, 4), InputError, ["a multiple of 2 heads", "q (2, 3, 5, 4)"]),
        ("q", torch.randn(3, 4, 5, 4), InputError, ["same batch axes"]),
        ("k", torch.randn(2, 2, 7, 4, **META), InputError, ["same device", "k meta"]),
        ("v", torch.randn(2, 2, 7, 4).double(), InputTypeError, ["same dtype", "v torch.float64"]),
        ("q", torch.ones(2, 4, 5, 4, dtype=torch.int64), InputTypeError, ["same dtype", "q torch.int64"]),
        ("q", None, InputTypeError, ["q must be a tensor", "NoneType"]),
        ("v", None, InputTypeError, ["v must be a tensor", "NoneType"]),
        ("mask", torch.ones(5, 6, **BOOL), InputError, ["mask does not fit", "(2, 4, 5, 7)", "(5, 6)"]),
        ("mask", torch.ones(2, 5, 7, **BOOL), InputError, ["mask does not fit", "(2, 5, 7)"]),
        (
            "mask",
            torch.ones(5, 7, dtype=torch.int32),
            InputTypeError,
            ["must be boolean", "torch.int32", "mask.bool()"],
        ),
        ("mask", torch.zeros(5, 7), InputTypeError, ["must be boolean", "torch.float32", "bias="]),
        ("mask", torch.ones(5, 7, **BOOL, **META), InputError, ["mask is on another device", "meta"]),
        ("mask", "causal", InputTypeError, ["cannot be used as a mask", "str", "sl.causal()"]),
        ("mask", sl.padding([8, 1]), InputError, ["longer than the keys", "at most 7", "8"]),
        ("mask", sl.documents([0] * 5), InputError, ["documents do not fit", "7 keys"]),
        (
            "bias",
            torch.ones(5, 7, dtype=torch.int64),
            InputTypeError,
            ["bias must be floating", "torch.int64", "bias.float()"],
        ),
        ("bias", torch.ones(5, 7, **BOOL), InputTypeError, ["bias must be floating", "torch.bool", "mask="]),
        ("bias", torch.zeros(5, 6), InputError, ["bias does not fit", "(2, 4, 5, 7)", "(5, 6)"]),
        ("bias", torch.zeros(5, 7, **META), InputError, ["bias is on another device", "meta"]),
        ("bias", 3.0, InputTypeError, ["cannot be used as a bias", "float", "sl.alibi(heads)"]),
        ("bias", alibi(3), InputError, ["another number of heads", "3 heads", "alibi(4)"]),
        ("scale", "big", InputTypeError, ["scale must be a number", "str"]),
        ("scale", True, InputTypeError, ["scale must be a number", "bool"]),
        ("scale", math.nan, InputError, ["scale must be finite", "nan"]),
        ("scale", math.inf, InputError, ["scale must be finite", "inf"]),
        ("softcap", 0.0, InputError, ["soft-cap must be positive", "more than 0"]),
        ("softcap", -1, InputError, ["soft-cap must be positive", "-1"]),
        ("softcap", math.nan, InputError, ["softcap must be finite"]),
        ("softcap", "30", InputTypeError, ["softcap must be a number", "str"]),
        ("sinks", torch.zeros(3), InputError, ["sinks do not fit", "[4]", "(3,)"]),
        ("sinks", torch.zeros(2), InputError, ["sinks do not fit", "[4]", "(2,)"]),
        (
            "sinks",
            torch.zeros(4, dtype=torch.int64),
            InputTypeError,
            ["sinks must be a floating tensor", "torch.int64"],
        ),
        ("sinks", [0.0] * 4, InputTypeError, ["sinks must be a floating tensor", "list"]),
        ("sinks", torch.zeros(4, **META), InputError, ["sinks are on another device", "meta"]),
        ("normalizer", "softmin", InputError, ["unknown normalizer", "softmax, relu, sigmoid, uniform", "'softmin'"]),
        ("normalizer", None, InputTypeError, ["given by name", "NoneType"]),
        ("dropout", 1.0, InputError, ["0 <= dropout < 1", "1.0"]),
        ("dropout", -0.1, InputError, ["0 <= dropout < 1", "-0.1"]),
        ("dropout", 1.5, InputError, ["0 <= dropout < 1", "1.5"]),
        ("dropout", math.nan, InputError, ["dropout must be finite"]),
        ("dropout", "0.1", InputTypeError, ["dropout must be a number", "str"]),
        ("backend", "cudnn", InputError, ["unknown backend", "auto, sdpa, flex, streaming, reference", "'cudnn'"]),
        ("backend", None, InputError, ["unknown backend", "None"]),
    ],
)
def test_bad_arguments(name, value, kind, facts):
    said(kind, facts, **{name: value})


@pytest.mark.parametrize("normalizer", ["relu", "sigmoid", "uniform"])
def test_sinks_are_part_of_the_softmax(normalizer):
    said(InputError, ["sinks are part of the softmax", f"'{normalizer}'"], sinks=torch.zeros(4), normalizer=normalizer)


@pytest.mark.parametrize(
    "backend, options, facts",
    [
        ("sdpa", {"softcap": 30.0}, ["SDPA has no soft-cap", "streaming"]),
        ("sdpa", {"sinks": torch.zeros(4)}, ["SDPA has no sinks", "streaming"]),
        ("sdpa", {"normalizer": "relu"}, ["only softmax, not relu", "streaming"]),
        ("sdpa", {"mask": sl.window(2)}, ["window(2, 0)", "written out as queries x keys", "streaming"]),
        ("sdpa", {"mask": sl.causal()}, ["causal()", "written out as queries x keys", "streaming"]),
        ("sdpa", {"mask": sl.padding([1, 2]) & sl.causal()}, ["written out as queries x keys", "streaming"]),
        ("sdpa", {"mask": sl.causal(align="start"), "bias": torch.zeros(5, 7)}, ["causal flag or a bias", "streaming"]),
        ("sdpa", {"bias": alibi(4)}, ["this bias written out", "streaming"]),
        ("flex", {}, ["needs a CUDA device", "sdpa"]),
        ("flex", {"mask": sl.window(2)}, ["needs a CUDA device", "streaming"]),
        ("reference", {"dropout": 0.1}, ["no dropout", "sdpa"]),
    ],
)
def test_a_backend_that_cannot_says_why_and_what_would(backend, options, facts):
    said(
        BackendError,
        [f"the backend {backend} cannot do this call", 'try: backend="auto"', *facts],
        backend=backend,
        **options,
    )


def test_a_call_holds_what_it_was_given():
    t = tensors()
    call = make_call(**t, mask=sl.causal(), scale=2, softcap=5, dropout=0.25)
    assert (call.scale, call.softcap, call.dropout, call.normalizer.name) == (2.0, 5.0, 0.25, "softmax")
    assert call.mask == sl.causal()
    assert call.sizes.groups == 2
    assert not call.is_plain
    assert make_call(**t).scale == 0.5
    assert make_call(**t).is_plain


@pytest.mark.parametrize(
    "dtype, compute", [("float64", "float64"), ("float32", "float32"), ("float16", "float32"), ("bfloat16", "float32")]
)
def test_scores_are_held_in_float32_at_least(dtype, compute):
    call = make_call(*inputs(dtype=getattr(torch, dtype)))
    assert call.compute_dtype == getattr(torch, compute)


def test_two_axes_become_three():
    call = make_call(torch.zeros(5, 8), torch.zeros(7, 8), torch.zeros(7, 2))
    assert (call.q.shape, call.k.shape, call.v.shape) == ((1, 5, 8), (1, 7, 8), (1, 7, 2))


def test_a_scale_of_zero_is_a_scale():
    q, k, v = inputs()
    torch.testing.assert_close(sl.attention(q, k, v, scale=0), v.mean(-2, keepdim=True).expand_as(v))


def test_numbers_of_numpy_are_numbers():
    t = tensors()
    call = make_call(**t, scale=np.float32(0.5), softcap=np.int64(5), dropout=np.float16(0.25))
    assert (call.scale, call.softcap, call.dropout) == (0.5, 5.0, 0.25)
    assert all(type(number) is float for number in (call.scale, call.softcap, call.dropout))
    assert sl.attention(**t, bias=alibi(np.int64(4)), mask=sl.padding(np.array([3, 7]))).shape == (2, 4, 5, 4)


@pytest.mark.parametrize("value", [np.bool_(True), np.array([1.0, 2.0]), 1j, torch.tensor(1.0)], ids=str)
def test_what_is_no_number(value):
    said(InputTypeError, ["scale must be a number"], scale=value)


def test_a_number_too_large_for_a_float_is_not_finite():
    said(InputError, ["scale must be finite"], scale=10**400)
