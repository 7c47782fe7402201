"""Every step against plain numpy in float64, for each form that `explain` takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.errors import InputError, InputTypeError
from sightline.steps import embed_words, explain

WORDS = "Action gets results"


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture
def weights() -> torch.Tensor:
    return torch.randn(3, 512, 64, dtype=torch.float64) / math.sqrt(512)


def test_the_table_of_the_course(weights: torch.Tensor) -> None:
    x = embed_words(WORDS.split())
    w_q, w_k, w_v = weights
    steps = explain(x, w_q=w_q, w_k=w_k, w_v=w_v, labels=WORDS)
    assert steps.names == (
        *("embeddings", "w_q", "w_k", "w_v", "q", "k", "v"),
        *("score", "scaled_score", "weight", "weighted_value", "sum"),
    )
    q, k, v = (x.numpy() @ w.numpy() for w in weights)
    for i, word in enumerate(WORDS.split()):
        table = steps.table(word)
        assert [line.label for line in table.lines] == WORDS.split()
        shares = softmax(q @ k.T / 8)
        for j, line in enumerate(table.lines):
            np.testing.assert_allclose(line.cells["k"], k[j], atol=1e-12)
            np.testing.assert_allclose(line.cells["v"], v[j], atol=1e-12)
            assert line.cells["score"] == pytest.approx(q[i] @ k[j], abs=1e-12)
            assert line.cells["scaled_score"] == pytest.approx(q[i] @ k[j] / 8, abs=1e-12)
            assert line.cells["weight"] == pytest.approx(shares[i, j], abs=1e-12)
            np.testing.assert_allclose(line.cells["weighted_value"], shares[i, j] * v[j], atol=1e-12)
        np.testing.assert_allclose(table.sum, (shares @ v)[i], atol=1e-12)
        assert table.total == pytest.approx(1, abs=1e-12)
        assert table.difference < 1e-12
    assert [c.symbol for c in table.columns][3:5] == ["q_i.k_j", "/ 8"]


def test_the_sum_is_what_attention_returns() -> None:
    q, k, v = torch.randn(3, 4, 6, 8, dtype=torch.float64)
    steps = explain(q, k, v, mask=sl.causal())
    torch.testing.assert_close(steps["sum"], sl.attention(q, k, v, mask=sl.causal()), rtol=0, atol=1e-12)
    assert steps.difference < 1e-12


def test_several_heads_then_the_projection() -> None:
    x, w = torch.randn(5, 16, dtype=torch.float64), torch.randn(3, 4, 16, 6, dtype=torch.float64)
    w_o = torch.randn(24, 16, dtype=torch.float64)
    steps = explain(x, w_q=w[0], w_k=w[1], w_v=w[2], w_o=w_o)
    heads = []
    for h in range(4):
        q, k, v = (x.numpy() @ w[n, h].numpy() for n in range(3))
        heads.append(softmax(q @ k.T / math.sqrt(6)) @ v)
    together = np.concatenate(heads, -1)
    np.testing.assert_allclose(steps["concatenation"], together, atol=1e-12)
    np.testing.assert_allclose(steps["projection"], together @ w_o.numpy(), atol=1e-11)
    np.testing.assert_allclose(steps.table(2, head=3).sum, heads[3][2], atol=1e-12)
    side_by_side = [t.transpose(0, 1).flatten(1) for t in w]
    other = explain(x, w_q=side_by_side[0], w_k=side_by_side[1], w_v=side_by_side[2], w_o=w_o, heads=4)
    torch.testing.assert_close(other["projection"], steps["projection"])


def test_without_weights_the_input_is_everything() -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    steps = explain(x)
    omega = x.numpy() @ x.numpy().T
    np.testing.assert_allclose(steps["score"], omega, atol=1e-12)
    np.testing.assert_allclose(steps["weight"], softmax(omega), atol=1e-12)
    np.testing.assert_allclose(steps["sum"], softmax(omega) @ x.numpy(), atol=1e-12)
    symbols = [c.symbol for c in steps.table(2).columns]
    assert symbols == ["x_i", "x_j", "omega_ij", "alpha_ij", "alpha_ij * x_j", "z_i"]


def test_the_average_of_the_past_has_no_scores() -> None:
    x = torch.randn(4, 3, dtype=torch.float64)
    steps = explain(x, mask=sl.causal(), normalizer="uniform")
    np.testing.assert_allclose(steps["sum"][2], x[:3].mean(0), atol=1e-12)
    assert [c.name for c in steps.table(2).columns] == ["v", "weight", "weighted_value", "sum"]
    assert [line.hidden for line in steps.table(2).lines] == [False, False, False, True]


def test_relu_divides_by_the_keys_that_may_be_seen() -> None:
    q, k, v = torch.randn(3, 5, 4, dtype=torch.float64)
    steps = explain(q, k, v, mask=sl.causal(), normalizer="relu")
    scores = q.numpy() @ k.numpy().T / 2
    expected = np.maximum(scores, 0) * np.tril(np.ones((5, 5))) / np.arange(1, 6)[:, None]
    np.testing.assert_allclose(steps["weight"], expected, atol=1e-12)
    assert "relu" in [c.heading for c in steps.table(0).columns]


def test_cap_bias_and_mask_are_columns_of_their_own() -> None:
    q, k, v = torch.randn(3, 2, 5, 4, dtype=torch.float64)
    steps = explain(q, k, v, softcap=1.5, bias=sl.alibi(2), mask=sl.window(1), scale=0.7)
    capped = 1.5 * np.tanh(0.7 * (q.numpy() @ k.numpy().transpose(0, 2, 1)) / 1.5)
    biased = capped + sl.alibi(2).to_dense(5, 5, dtype=torch.float64).numpy()
    seen = sl.window(1).to_dense(5, 5).numpy()
    np.testing.assert_allclose(steps["capped_score"], capped, atol=1e-12)
    np.testing.assert_allclose(steps["biased_score"], biased, atol=1e-12)
    np.testing.assert_allclose(steps["masked_score"], np.where(seen, biased, -np.inf), atol=1e-12)
    np.testing.assert_allclose(steps["weight"], softmax(np.where(seen, biased, -np.inf)), atol=1e-12)
    assert steps.difference < 1e-12


def test_a_negative_scale_shows_the_query_as_it_came() -> None:
    q, k, v = torch.randn(3, 3, 4, dtype=torch.float64)
    steps = explain(q, k, v, scale=-0.5)
    np.testing.assert_allclose(steps["q"], q)
    np.testing.assert_allclose(steps["scaled_score"], -0.5 * q.numpy() @ k.numpy().T, atol=1e-12)
    np.testing.assert_allclose(steps["weight"], softmax(-0.5 * q.numpy() @ k.numpy().T), atol=1e-12)


def test_a_sink_has_a_line_of_its_own() -> None:
    q, k, v = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    sinks = torch.tensor([0.5, -1.0], dtype=torch.float64)
    table = explain(q, k, v, sinks=sinks).table(1, head=1)
    assert table.lines[-1].label == "sink"
    assert table.total == pytest.approx(1)
    assert table.lines[-1].cells["weight"] > 0.01
    assert table.difference < 1e-12


def test_grouped_heads_read_their_key_head() -> None:
    q, (k, v) = torch.randn(4, 5, 3, dtype=torch.float64), torch.randn(2, 2, 6, 3, dtype=torch.float64)
    steps = explain(q, k, v)
    np.testing.assert_allclose(steps.table(0, head=3).lines[2].cells["k"], k[1, 2])
    assert max(steps.table(i, head=h).difference for h in range(4) for i in range(5)) < 1e-12
    assert steps["weighted_value"].shape == (4, 5, 6, 3)
    assert steps.key_labels == ["0", "1", "2", "3", "4", "5"]


def test_hidden_values_that_are_no_numbers_stay_out() -> None:
    q, k, v = torch.randn(3, 4, 3, dtype=torch.float64)
    v[3] = math.nan
    steps = explain(q, k, v, mask=sl.causal())
    assert steps.table(2).sum.isfinite().all()
    assert steps.table(2).difference < 1e-12
    assert steps["sum"][:3].isfinite().all()
    assert steps["sum"][3].isnan().all()
    assert steps["weighted_value"][:3].isfinite().all()


def test_a_row_that_sees_nothing_sums_to_nothing() -> None:
    q, k, v = torch.randn(3, 3, 4, dtype=torch.float64)
    table = explain(q, k, v, mask=torch.zeros(3, 3, dtype=torch.bool)).table(1)
    assert table.total == 0
    assert not table.sum.any()
    assert all(line.hidden for line in table.lines)


def test_cross_attention_has_a_memory() -> None:
    x, memory = torch.randn(2, 8, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)
    w = torch.randn(3, 8, 5, dtype=torch.float64)
    steps = explain(x, memory=memory, w_q=w[0], w_k=w[1], w_v=w[2], labels="a b", key_labels="c d e f")
    q, k, v = x.numpy() @ w[0].numpy(), memory.numpy() @ w[1].numpy(), memory.numpy() @ w[2].numpy()
    np.testing.assert_allclose(steps["sum"], softmax(q @ k.T / math.sqrt(5)) @ v, atol=1e-12)
    assert [line.label for line in steps.table("b").lines] == ["c", "d", "e", "f"]


def test_positions_that_are_added_to_the_input() -> None:
    x = torch.randn(4, 8, dtype=torch.float64)
    steps = explain(x, positions=sl.positions.Sinusoidal(8))
    waves = sl.positions.Sinusoidal(8)(torch.zeros(4, 8, dtype=torch.float64))
    np.testing.assert_allclose(steps["positions"], waves)
    np.testing.assert_allclose(steps["input"], x + waves)
    np.testing.assert_allclose(steps["score"], (x + waves) @ (x + waves).T)


def test_positions_that_turn_queries_and_keys() -> None:
    q, k, v = torch.randn(3, 4, 8, dtype=torch.float64)
    rotary = sl.positions.Rotary(8)
    steps = explain(q, k, v, positions=rotary)
    np.testing.assert_allclose(steps["unturned_q"], q)
    np.testing.assert_allclose(steps["q"], rotary(q[None])[0])
    from_input = explain(
        q, w_q=torch.eye(8).double(), w_k=torch.eye(8).double(), w_v=torch.eye(8).double(), positions=rotary
    )
    np.testing.assert_allclose(from_input["k"], rotary(q[None])[0])


def test_positions_that_are_a_bias() -> None:
    q, k, v = torch.randn(3, 2, 4, 8, dtype=torch.float64)
    steps = explain(q, k, v, positions=sl.alibi(2))
    torch.testing.assert_close(steps["weight"], explain(q, k, v, bias=sl.alibi(2))["weight"])


@given(
    heads=st.integers(1, 3),
    queries=st.integers(1, 6),
    keys=st.integers(1, 40),
    top=st.integers(1, 20),
    normalizer=st.sampled_from(["softmax", "relu", "sigmoid", "uniform"]),
    mask=st.sampled_from([None, sl.causal(), sl.window(3), sl.prefix(2)]),
)
def test_the_sums_stay_exact_however_few_keys_are_shown(
    heads: int, queries: int, keys: int, top: int, normalizer: str, mask: sl.Mask | None
) -> None:
    q = torch.randn(heads, queries, 4, dtype=torch.float64)
    k, v = torch.randn(2, heads, keys, 4, dtype=torch.float64)
    steps = explain(q, k, v, mask=mask, normalizer=normalizer)
    full = sl.attention(q, k, v, mask=mask, normalizer=normalizer, backend="reference")
    for i in range(queries):
        table = steps.table(i, head=heads - 1, top=top)
        torch.testing.assert_close(table.sum, full[-1, i], rtol=0, atol=1e-12)
        assert len(table.lines) == (keys if keys <= top else top + 1)
        shown = [line.cells["weight"] for line in table.lines if line.key is not None]
        if keys > top:
            assert shown == sorted(shown, reverse=True)
            assert table.lines[-1].label == f"all {keys - top} others"


def test_long_inputs_are_opened_one_row_at_a_time() -> None:
    q, k, v = torch.randn(3, 1, 1_000_000, 2)
    steps = explain(q, k, v, mask=sl.causal())
    table = steps.table(750_000)
    assert len(table.lines) == 17
    assert table.total == pytest.approx(1, abs=1e-4)
    assert table.difference < 1e-5
    assert all(line.key <= 750_000 for line in table.lines if line.key is not None)
    assert f"{table.lines[0].label} @ {table.lines[0].key:,}" in str(table)
    with pytest.raises(InputError, match="would need"):
        steps["weight"]


def test_a_row_alone_is_the_row_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = torch.randn(3, 2, 9, 4, dtype=torch.float64)
    options = {
        "mask": sl.causal() & sl.window(4),
        "bias": sl.alibi(2),
        "softcap": 3.0,
        "sinks": torch.zeros(2).double(),
    }
    whole = explain(q, k, v, **options)
    monkeypatch.setattr("sightline.steps.compute._SMALL", 0)
    alone = explain(q, k, v, **options)
    for i in range(9):
        one, other = whole.table(i, head=1), alone.table(i, head=1)
        assert [line.cells["weight"] for line in one.lines] == pytest.approx([x.cells["weight"] for x in other.lines])
        torch.testing.assert_close(one.output, other.output)
        assert other.difference < 1e-12
        assert whole.to_python(i, i, 1) == alone.to_python(i, i, 1)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: explain(), "explain takes tensors or a model"),
        (lambda: explain([1.0, 2.0]), "explain takes tensors or a model"),
        (lambda: explain(torch.eye(3), torch.eye(3)), "explain takes tensors or a model"),
        (lambda: explain(torch.eye(3).long()), "x is one sequence of vectors"),
        (lambda: explain(torch.zeros(2, 3, 4)), "x is one sequence of vectors"),
        (lambda: explain(torch.eye(3), w_q=torch.eye(3)), "the three weights belong together"),
        (
            lambda: explain(torch.eye(3), w_q=torch.eye(4), w_k=torch.eye(3), w_v=torch.eye(3)),
            "w_q does not fit the input",
        ),
        (lambda: explain(torch.eye(3), w_q=1, w_k=torch.eye(3), w_v=torch.eye(3)), "w_q is a tensor"),
        (lambda: explain(*torch.zeros(3, 3, 4), w_o=torch.zeros(5, 2)), "w_o does not fit the heads"),
        (lambda: explain(*torch.zeros(3, 3, 4), w_q=torch.eye(4)), "q, k and v are made already"),
        (lambda: explain(*torch.zeros(3, 2, 1, 3, 4)), "the steps are those of one sequence"),
        (lambda: explain(*torch.zeros(3, 3, 4), labels="a b"), "labels do not fit the tokens"),
        (lambda: explain(*torch.zeros(3, 3, 4), labels=[1, 2, 3]), "labels are words"),
        (lambda: explain(*torch.zeros(3, 3, 4), head=1), "there is no such head"),
        (lambda: explain(*torch.zeros(3, 3, 4), layer=1), "only a model has layers"),
        (lambda: explain(*torch.zeros(3, 3, 4)).table(3), "there is no query 3"),
        (lambda: explain(*torch.zeros(3, 3, 4)).table(0, head=2), "there is no such head"),
        (lambda: explain(*torch.zeros(3, 3, 4)).table(0, top=0), "top is too small"),
        (lambda: explain(*torch.zeros(3, 3, 4))["weights"], "no step has this name"),
        (lambda: explain(torch.zeros(3, 4), positions=3), "these are no positions"),
        (lambda: explain(*torch.zeros(3, 3, 4), normalizer="max"), "unknown normalizer"),
    ],
)
def test_what_cannot_work_is_said(call, message: str) -> None:
    with pytest.raises((InputError, InputTypeError), match=message):
        call()


def test_gradients_are_left_alone() -> None:
    q, k, v = torch.randn(3, 3, 4).requires_grad_().unbind()
    steps = explain(q, k, v)
    assert not any(tensor.requires_grad for tensor in steps.to_dict().values())


def test_half_precision_is_shown_in_full() -> None:
    q, k, v = torch.randn(3, 3, 64).bfloat16()
    table = explain(q, k, v).table(0)
    exact = softmax(q.double().numpy() @ k.double().numpy().T / 8)
    assert [line.cells["weight"] for line in table.lines] == pytest.approx(exact[0], abs=1e-5)
    assert table.difference < 0.02  # what attention itself rounds
