from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

import sightline as sl
from cases import Case, cases, check, error, exact, inputs, plain_torch
from sightline.backends import reference
from sightline.positions import alibi


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n, m, dim, value_dim", [(4, 4, 8, 8), (1, 1, 1, 1), (5, 7, 3, 6), (3, 1, 2, 9)])
def test_s3_1_the_vector_view_equals_s3_2_the_matrix_view(n, m, dim, value_dim):
    q, k, v = (t[0] for t in inputs(heads=1, queries=n, keys=m, dim=dim, value_dim=value_dim))
    close(reference.vector_view(q, k, v), reference.matrix_view(q, k, v))
    close(reference.vector_view(q, k, v, scale=0.7), reference.matrix_view(q, k, v, scale=0.7))


def test_s3_1_three_steps_by_hand():
    """b^1 from a^1 ... a^4: scores, normalisation, weighted sum of values."""
    q, k, v = (t[0] for t in inputs(heads=1, queries=4, keys=4, dim=4, value_dim=2))
    scores = [float(sum(a * b for a, b in zip(q[0].tolist(), key.tolist(), strict=True))) / 2 for key in k]
    shares = torch.tensor(scores, dtype=torch.float64).exp()
    close(reference.vector_view(q, k, v)[0], (shares / shares.sum()) @ v)


def test_s3_2_the_column_convention_is_the_transpose_of_ours():
    """I is r x n; W^q and W^k are q x r, W^v is v x r; A = K^T Q; O = V A'."""
    r, n, q_size, v_size = 6, 5, 4, 3
    random = torch.Generator().manual_seed(1)
    i, wq, wk, wv = (
        torch.randn(*s, generator=random, dtype=torch.float64) for s in ((r, n), (q_size, r), (q_size, r), (v_size, r))
    )
    q, k, v = wq @ i, wk @ i, wv @ i
    assert (q.shape, k.shape, v.shape) == ((q_size, n), (q_size, n), (v_size, n))
    a = k.mT @ q / q_size**0.5
    o = v @ a.softmax(0)
    assert (a.shape, o.shape) == ((n, n), (v_size, n))
    close(o.mT, reference.matrix_view(q.mT, k.mT, v.mT))
    close(o.mT, sl.attention(q.mT, k.mT, v.mT))


def test_s1_5_the_matrix_form():
    x = torch.randn(5, 6, dtype=torch.float64)
    wq, wk, wv = torch.randn(3, 6, 4, dtype=torch.float64)
    q, k, v = x @ wq, x @ wk, x @ wv
    close(reference.matrix_view(q, k, v), torch.softmax(q @ k.T / 4**0.5, -1) @ v)


@settings(max_examples=200)
@given(cases(dtypes=(torch.float64,)))
def test_the_definition_is_the_formula_written_a_second_time(case):
    assert error(plain_torch(case, "eager"), exact(case)) < 1e-13


@settings(max_examples=100)
@given(cases(rarely=(300,)))
def test_the_definition_as_a_backend_in_every_precision(case):
    check(case, "reference")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_of_large_scores_sum_to_one(dtype):
    """The lse of a row is as large as its scores: rounding it must not change the weights by as much."""
    q, k, v = torch.full((1, 1), 21.0, dtype=dtype), torch.ones(2, 1, dtype=dtype), torch.ones(2, 1, dtype=dtype)
    check(Case(q, k, v, {"scale": 1.0}), "reference")


def test_the_order_of_steps_is_scale_cap_bias_mask():
    q, k, _ = inputs(heads=2, queries=3, keys=4)
    bias = torch.randn(2, 3, 4, dtype=torch.float64)
    expected = 2 * torch.tanh(0.3 * (q @ k.mT) / 2) + bias
    close(reference.scores(q, k, scale=0.3, softcap=2.0, bias=bias), expected)
    weights = reference.weights(q, k, scale=0.3, softcap=2.0, bias=bias, mask=sl.causal())
    hidden = ~sl.causal().to_dense(3, 4)
    close(weights, expected.masked_fill(hidden, -torch.inf).softmax(-1))


def test_query_head_h_reads_key_head_h_over_groups():
    q, k, v = inputs(heads=6, kv_heads=2, queries=3, keys=5)
    out = reference.matrix_view(q, k, v)
    for h in range(6):
        close(out[h], reference.matrix_view(q[h], k[h // 3], v[h // 3]))


@pytest.mark.parametrize(
    "options",
    [
        {"mask": sl.padding(3)},
        {"mask": sl.documents([0, 0, 1, 1, 1])},
        {"mask": torch.ones(1, 4, 5, dtype=torch.bool)},
        {"bias": alibi(1)},
        {"bias": torch.ones(1, 4, 5, dtype=torch.float64)},
        {"sinks": torch.zeros(1, dtype=torch.float64)},
    ],
    ids=lambda o: str(next(iter(o))),
)
def test_one_head_without_its_axis(options):
    q, k, v = inputs(heads=1, queries=4, keys=5)
    out = reference.matrix_view(q[0], k[0], v[0], **options)
    assert out.shape == (4, 4)
    close(out, reference.matrix_view(q, k, v, **options)[0])


def test_alibi_is_as_exact_as_the_call():
    """16 heads have slopes that are no powers of two: their product with a distance must not be rounded to float32."""
    q, k, v = inputs(heads=16, queries=40, keys=60)
    close(sl.attention(q, k, v, bias=alibi(16), backend="streaming"), reference.matrix_view(q, k, v, bias=alibi(16)))


def test_it_can_be_differentiated_twice():
    q, k, v = inputs(heads=2, kv_heads=1, queries=3, keys=4, grad=True)
    assert torch.autograd.gradgradcheck(lambda *t: sl.attention(*t, mask=sl.causal(), backend="reference"), (q, k, v))


@pytest.mark.parametrize("view", ["matrix", "vector"])
@pytest.mark.parametrize("seed", range(4))
def test_scores_in_float16_do_not_overflow(view, seed):
    """q.k beyond 65,504, the largest number of float16, though scale * q.k is small."""
    q, k, v = (t[0] for t in inputs(heads=1, queries=5, keys=7, dim=64, seed=seed))
    q, k, v = (300 * q).half(), (300 * k).half(), v.half()
    attend = reference.matrix_view if view == "matrix" else reference.vector_view
    assert ((q.double() @ k.double().mT).abs() > 65504).any()
    truth = reference.matrix_view(q.double(), k.double(), v.double(), scale=1e-5)
    out = attend(q, k, v, scale=1e-5)
    assert out.dtype == torch.float16
    assert error(out, truth) < 4 * torch.finfo(torch.float16).eps


def test_the_weights_of_more_keys_than_float16_can_count():
    q, k = torch.zeros(1, 1, dtype=torch.float16), torch.zeros(70000, 1, dtype=torch.float16)
    torch.testing.assert_close(reference.matrix_view(q, k, k + 1), torch.ones(1, 1, dtype=torch.float16))
