from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import BATCHES, DIMS, GROUPS, LENGTHS
from sightline.errors import InputError, InputTypeError
from sightline.shapes import Sizes, default_scale, sizes_of


@given(
    st.sampled_from(BATCHES),
    st.sampled_from(GROUPS),
    st.sampled_from(LENGTHS),
    st.sampled_from(LENGTHS),
    st.sampled_from(DIMS),
    st.sampled_from(DIMS),
)
def test_sizes_are_read_off_the_tensors(batch, heads, queries, keys, dim, value_dim):
    q = torch.zeros(*batch, heads[0], queries, dim)
    k, v = torch.zeros(*batch, heads[1], keys, dim), torch.zeros(*batch, heads[1], keys, value_dim)
    sizes = sizes_of(q, k, v)
    assert sizes == Sizes(batch, *heads, queries, keys, dim, value_dim)
    assert sizes.groups == heads[0] // heads[1]


def test_two_axes_are_one_head_without_a_batch():
    assert sizes_of(torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(5, 2)) == Sizes((), 1, 1, 3, 5, 4, 2)


def test_no_heads_are_one_group():
    assert sizes_of(torch.zeros(0, 3, 4), torch.zeros(0, 5, 4), torch.zeros(0, 5, 4)).groups == 1


def test_the_scale_is_one_over_the_root_of_dim():
    assert default_scale(64) == 1 / 8
    assert default_scale(2) == pytest.approx(2**-0.5)
    assert default_scale(0) == 1.0


def zeros(*shape, **options):
    return torch.zeros(shape, **options)


@pytest.mark.parametrize(
    "q, k, v, kind, facts",
    [
        pytest.param([1.0], zeros(2, 2), zeros(2, 2), InputTypeError, ["q must be a tensor", "list"], id="q is a list"),
        pytest.param(zeros(2, 2), None, zeros(2, 2), InputTypeError, ["k must be a tensor", "NoneType"], id="no k"),
        pytest.param(zeros(4), zeros(4), zeros(4), InputError, ["at least two", "q (4,)"], id="one axis"),
        pytest.param(
            zeros(1, 2, 3, 4),
            zeros(2, 3, 4),
            zeros(2, 3, 4),
            InputError,
            ["same number of axes", "k (2, 3, 4)"],
            id="another rank",
        ),
        pytest.param(
            zeros(3, 4),
            zeros(3, 4),
            zeros(3, 4, dtype=torch.float64),
            InputTypeError,
            ["same dtype", "v torch.float64"],
            id="dtypes",
        ),
        pytest.param(
            *[zeros(3, 4, dtype=torch.int64)] * 3,
            InputTypeError,
            ["floating point", "torch.int64", "q.float()"],
            id="integers",
        ),
        pytest.param(
            *[zeros(3, 4, dtype=torch.complex64)] * 3,
            InputTypeError,
            ["floating point", "torch.complex64"],
            id="complex",
        ),
        pytest.param(
            zeros(3, 4),
            zeros(3, 4, device="meta"),
            zeros(3, 4),
            InputError,
            ["same device", "k meta", "k.to(q.device)"],
            id="devices",
        ),
        pytest.param(
            zeros(2, 1, 3, 4),
            zeros(3, 1, 3, 4),
            zeros(3, 1, 3, 4),
            InputError,
            ["same batch axes", "(2,)", "k (3, 1, 3, 4)"],
            id="batches",
        ),
        pytest.param(
            zeros(4, 3, 4),
            zeros(2, 3, 4),
            zeros(4, 3, 4),
            InputError,
            ["same number of heads", "2 heads in v"],
            id="heads of k and v",
        ),
        pytest.param(
            zeros(3, 3, 4),
            zeros(2, 3, 4),
            zeros(2, 3, 4),
            InputError,
            ["a multiple of 2 heads", "q (3, 3, 4)"],
            id="not a multiple",
        ),
        pytest.param(
            zeros(2, 3, 4), zeros(4, 3, 4), zeros(4, 3, 4), InputError, ["a multiple of 4 heads"], id="more key heads"
        ),
        pytest.param(zeros(2, 3, 4), zeros(0, 3, 4), zeros(0, 3, 4), InputError, ["multiple"], id="no key heads"),
        pytest.param(
            zeros(3, 4), zeros(3, 5), zeros(3, 5), InputError, ["last axis", "dim 4 in k", "k (3, 5)"], id="dims"
        ),
        pytest.param(
            zeros(3, 4), zeros(3, 4), zeros(5, 4), InputError, ["same length", "3 keys in v", "v (5, 4)"], id="lengths"
        ),
    ],
)
def test_what_does_not_fit_is_said(q, k, v, kind, facts):
    with pytest.raises(kind) as caught:
        sizes_of(q, k, v)
    text = str(caught.value)
    for fact in ("expected: ", "got: ", "try: ", *facts):
        assert fact in text
