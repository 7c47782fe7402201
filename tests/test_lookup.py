from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InputError, InputTypeError
from sightline.lookup import KeyNotFoundError, exact, soft

RECORD = {"Name": "Ada", "Address": "1 Elm Road", "Date of birth": "May 5th 2000", "Place of birth": "Bern"}

# The worked numbers of S1.4.
QUERIES = [[0.3, 1.2, 2.2], [0.1, 6.2, 2.1], [2.1, 2.5, 5.2], [1.1, 6.6, 4.3]]
KEYS = [[0.4, 1.4, 0.0], [0.2, -1.1, 0.0], [0.3, 1.2, 4.0], [0.3, 1.2, 4.0]]
VALUES = [[2.3, 1.1, 3.5], [3.0, 1.0, 0.5], [-2.2, 4.1, 2.5], [-2.2, 4.1, 2.5]]
# z of the first query over all four keys, computed once with 40 decimal digits.
FIRST = [-2.180510722016749488, 4.087233780078272412, 2.502380541358152782]


def tensor(rows: list) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def by_hand(
    query: list[float], keys: list[list[float]], values: list[list[float]], temperature: float = 1.0
) -> list[float]:
    """S1.3 in plain Python."""
    scores = [sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query)) / temperature for key in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    return [
        sum(w * value[c] for w, value in zip(weights, values, strict=True)) / sum(weights)
        for c in range(len(values[0]))
    ]


class TestWorkedNumbers:
    def test_every_query(self) -> None:
        got = soft(tensor(QUERIES), tensor(KEYS), tensor(VALUES))
        assert got.shape == (4, 3)
        for z, query in zip(got.tolist(), QUERIES, strict=True):
            assert z == pytest.approx(by_hand(query, KEYS, VALUES), rel=0, abs=1e-12)

    def test_three_keys_as_first_given(self) -> None:
        got = soft(tensor(QUERIES[:3]), tensor(KEYS[:3]), tensor(VALUES[:3]))
        for z, query in zip(got.tolist(), QUERIES, strict=False):
            assert z == pytest.approx(by_hand(query, KEYS[:3], VALUES[:3]), rel=0, abs=1e-12)

    def test_the_first_query_in_numbers(self) -> None:
        assert soft(tensor(QUERIES[0]), tensor(KEYS), tensor(VALUES)).tolist() == pytest.approx(FIRST, rel=0, abs=1e-12)

    def test_its_limit_is_the_strongest_key(self) -> None:
        # The third key, which stands twice, is the strongest for every query.
        assert soft(tensor(QUERIES), tensor(KEYS), tensor(VALUES), temperature=0).equal(tensor([VALUES[2]] * 4))


class TestExactByName:
    def test_the_record(self) -> None:
        assert exact("Date of birth", list(RECORD), list(RECORD.values())) == "May 5th 2000"
        for key, value in RECORD.items():
            assert exact(key, RECORD.keys(), RECORD.values()) is value

    @pytest.mark.parametrize("key", [7, ("a", 1), None, frozenset({1})])
    def test_any_hashable(self, key: object) -> None:
        value = object()
        assert exact(key, ["other", key], [None, value]) is value

    def test_a_tensor_of_values(self) -> None:
        values = torch.arange(6).reshape(3, 2)
        assert exact("b", ["a", "b", "c"], values).tolist() == [2, 3]
        assert exact("a", ["a", "b", "a"], values).tolist() == [4, 6], "equal keys: the sum of the formula"
        assert exact("z", ["a", "b", "c"], values, missing="zero").tolist() == [0, 0]

    def test_a_key_that_is_not_there(self) -> None:
        with pytest.raises(KeyNotFoundError) as error:
            exact("Date of brith", RECORD.keys(), RECORD.values())
        assert isinstance(error.value, KeyError)
        assert isinstance(error.value, InputError)
        assert str(error.value) == (
            "no key equals the query\n"
            "  expected: one of the 4 keys, e.g. 'Name', 'Address', 'Date of birth', 'Place of birth'\n"
            "  got: 'Date of brith'\n"
            "  try: 'Date of birth', the nearest key"
        )
        with pytest.raises(KeyNotFoundError, match=r"one of the 0 keys\n  got: 5\n  try: a key that is there"):
            exact(5, [], [])

    def test_bad_inputs(self) -> None:
        with pytest.raises(InputError, match=r"stands more than once(.|\n)*got: 'a' at 0, 2"):
            exact("a", ["a", "b", "a"], [1, 2, 3])
        assert exact("b", ["a", "b", "a"], [1, 2, 3]) == 2
        with pytest.raises(
            InputError, match=r"every key needs one value\n  expected: 2 values, as many as keys\n  got: 1"
        ):
            exact("a", ["a", "b"], [1])
        with pytest.raises(InputError, match="only tensors have a zero vector"):
            exact("a", ["b"], [1], missing="zero")
        with pytest.raises(InputError, match=r"expected: 'error' or 'zero'\n  got: 'none'"):
            exact("a", ["b"], [1], missing="none")  # type: ignore[arg-type]
        with pytest.raises(InputTypeError, match=r"compared as in a dictionary(.|\n)*got: list"):
            exact(["a"], [["a"]], [1])  # type: ignore[arg-type]
        with pytest.raises(InputTypeError, match=r"torch.stack"):
            exact(torch.ones(2), [torch.ones(2)], [1])
        with pytest.raises(InputTypeError, match="not of one kind"):
            exact("a", 5, [1])  # type: ignore[arg-type]
        with pytest.raises(InputTypeError, match="values must be many"):
            exact("a", ["a"], 5)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="values must be many"):
            exact("a", ["a"], torch.tensor(5))


class TestExactByVector:
    KEYS = torch.tensor([[1.0, 0.0], [0.1, 0.2], [1.0, 0.0], [3.0, 4.0]])
    VALUES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [100.0, 200.0, 300.0], [7.0, 7.0, 7.0]])

    def test_one_query_many_and_batches(self) -> None:
        query = self.KEYS[[1, 3, 0]]
        expected = torch.stack((self.VALUES[1], self.VALUES[3], self.VALUES[0] + self.VALUES[2]))
        assert exact(query, self.KEYS, self.VALUES).equal(expected)
        assert exact(query[0], self.KEYS, self.VALUES).equal(expected[0])
        assert exact(query.expand(2, 4, 3, 2), self.KEYS, self.VALUES).equal(expected.expand(2, 4, 3, 3))

    def test_one_number_that_differs_is_no_match(self) -> None:
        query = torch.tensor([[0.1, 0.2], [0.1, 0.20000001788], [3.0, 4.5]])
        with pytest.raises(
            KeyNotFoundError,
            match=r"2 of 3 queries equal no key\n  expected: one of the 4 rows(.|\n)*got: query\[1\] = \[0.1",
        ):
            exact(query, self.KEYS, self.VALUES)
        with pytest.raises(KeyNotFoundError, match=r"no key equals the query(.|\n)*got: query = \[3.0, 4.5\]"):
            exact(query[2], self.KEYS, self.VALUES)
        assert exact(query, self.KEYS, self.VALUES, missing="zero").tolist() == [[10, 20, 30], [0, 0, 0], [0, 0, 0]]

    def test_values_beside_the_match_stay_out(self) -> None:
        values = self.VALUES.clone()
        values[3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
        assert exact(self.KEYS[1], self.KEYS, values).tolist() == [10, 20, 30]

    def test_gradient_goes_to_the_values_that_matched(self) -> None:
        values = self.VALUES.clone().requires_grad_()
        exact(self.KEYS[[0, 1, 1]], self.KEYS, values).sum().backward()
        assert values.grad is not None
        assert values.grad[:, 0].tolist() == [1, 2, 1, 0]

    def test_whole_numbers_and_no_rows(self) -> None:
        assert exact(torch.tensor([2]), torch.tensor([[1], [2]]), torch.tensor([[5], [6]])).tolist() == [6]
        assert exact(torch.zeros(0, 2), self.KEYS, self.VALUES).shape == (0, 3)
        assert exact(torch.zeros(2), self.KEYS[:0], self.VALUES[:0], missing="zero").tolist() == [0, 0, 0]

    def test_bad_inputs(self) -> None:
        with pytest.raises(
            InputTypeError, match=r"query and keys must have the same dtype(.|\n)*try: query.to\(keys.dtype\)"
        ):
            exact(self.KEYS[0].double(), self.KEYS, self.VALUES)
        with pytest.raises(InputTypeError, match="query must be a tensor"):
            exact("a", self.KEYS, self.VALUES)
        with pytest.raises(InputTypeError, match="values must be a tensor"):
            exact(self.KEYS[0], self.KEYS, [1, 2, 3, 4])
        with pytest.raises(
            InputError, match=r"do not fit together(.|\n)*got: query \(2,\), keys \(4, 2\), values \(3, 3\)"
        ):
            exact(self.KEYS[0], self.KEYS, self.VALUES[:3])
        with pytest.raises(InputError, match="same device"):
            exact(self.KEYS[0].to("meta"), self.KEYS, self.VALUES)


class TestSoft:
    @settings(max_examples=30, deadline=None)
    @given(
        shape=st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4)),
        temperature=st.floats(0.05, 20),
        seed=st.integers(0, 1000),
    )
    def test_is_the_formula(self, shape: tuple[int, int, int, int], temperature: float, seed: int) -> None:
        queries, dim, keys, value_dim = shape
        draw = torch.Generator().manual_seed(seed)
        query, key, value = (
            torch.randn(*s, generator=draw, dtype=torch.float64)
            for s in ((2, queries, dim), (keys, dim), (keys, value_dim))
        )
        got = soft(query, key, value, temperature)
        assert got.shape == (2, queries, value_dim)
        for b in range(2):
            for i in range(queries):
                expected = by_hand(query[b, i].tolist(), key.tolist(), value.tolist(), temperature)
                assert got[b, i].tolist() == pytest.approx(expected, rel=1e-11, abs=1e-12)
                assert soft(query[b, i], key, value, temperature).tolist() == pytest.approx(
                    expected, rel=1e-11, abs=1e-12
                )

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45, 1e-320, 0.0])
    def test_towards_zero_it_is_the_exact_look_up(self, dtype: torch.dtype, temperature: float) -> None:
        draw = torch.Generator().manual_seed(0)
        keys = torch.nn.functional.normalize(torch.randn(7, 5, generator=draw, dtype=torch.float64), dim=-1).to(dtype)
        values = torch.randn(7, 3, generator=draw, dtype=torch.float64).to(dtype)
        got = soft(keys, keys, values, temperature)
        assert got.dtype == dtype
        assert got.equal(exact(keys, keys, values))

    def test_it_gets_there_step_by_step(self) -> None:
        keys, values = torch.eye(3, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
        errors = [
            (soft(keys, keys, values, t) - exact(keys, keys, values)).abs().max().item()
            for t in (10, 1, 0.3, 0.1, 0.03)
        ]
        assert errors == sorted(errors, reverse=True)
        assert errors[-1] < 1e-7 < errors[0]

    def test_equally_strong_keys_share_at_any_temperature(self) -> None:
        keys, values = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0], [4.0], [100.0]])
        for temperature in (1e-30, 0):
            assert soft(torch.tensor([1.0, 0.0]), keys, values, temperature).tolist() == [3.0]

    def test_towards_infinity_it_is_the_average(self) -> None:
        values = torch.tensor([[1.0], [2.0], [6.0]])
        assert soft(torch.ones(3), torch.eye(3), values, math.inf).item() == pytest.approx(3.0)

    @pytest.mark.parametrize("temperature", [1e-30, 1e-300, 0])
    def test_cold_gradients_are_finite(self, temperature: float) -> None:
        query, keys, values = (tensor(rows).requires_grad_() for rows in (QUERIES[:2], KEYS[:3], VALUES[:3]))
        soft(query, keys, values, temperature).sum().backward()
        assert values.grad is not None
        assert values.grad[:, 0].tolist() == [0, 0, 2]
        for t in (query, keys):
            assert t.grad is None or bool(t.grad.isfinite().all())

    def test_large_scores_do_not_overflow(self) -> None:
        keys = 1e4 * torch.eye(2)
        assert soft(keys, keys, torch.eye(2), temperature=1e-30).equal(torch.eye(2))

    def test_no_keys_give_zero(self) -> None:
        assert soft(torch.ones(2, 3), torch.ones(0, 3), torch.ones(0, 4)).equal(torch.zeros(2, 4))

    def test_bad_inputs(self) -> None:
        x = torch.eye(2)
        for temperature in (-1.0, math.nan):
            with pytest.raises(InputError, match=r"temperature cannot be negative\n  expected: 0 or more"):
                soft(x, x, x, temperature)
        with pytest.raises(InputTypeError, match="temperature must be a number"):
            soft(x, x, x, "cold")  # type: ignore[arg-type]
        with pytest.raises(InputTypeError, match=r"query must be floating point(.|\n)*try: query.float\(\)"):
            soft(x.long(), x.long(), x)
        with pytest.raises(InputTypeError, match="query must be a tensor"):
            soft([1.0, 0.0], x, x)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"query \(2, 3\), keys \(2, 2\)"):
            soft(torch.ones(2, 3), x, x)


def test_a_temperature_of_numpy_is_a_number():
    query, keys, values = torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 2)
    ours = soft(query, keys, values, temperature=np.float64(0.5))
    assert torch.equal(ours, soft(query, keys, values, temperature=0.5))
    assert torch.equal(soft(query, keys, values, temperature=np.int64(2)), soft(query, keys, values, 2))
