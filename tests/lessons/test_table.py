"""The table of S2.4 to every digit shown: the random numbers are torch's, all else is numpy's."""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch

from lesson_cases import fixed, give, rows, small, softmax

WORDS = ("Action", "gets", "results")


def drawn(name: int, *shape: int) -> np.ndarray:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(name), dtype=torch.float64).numpy()


def test_every_digit() -> None:
    page, text = give("table")
    x = np.stack([drawn(zlib.crc32(word.encode()), 512) for word in WORDS])
    q, k, v = (x @ w for w in drawn(1 << 32, 3, 512, 64) / math.sqrt(512))
    scores = q @ k.T
    weights = softmax(scores / 8)
    np.testing.assert_allclose(page.results["score"], scores, atol=1e-11)
    np.testing.assert_allclose(page.results["scaled_score"], scores / 8, atol=1e-12)
    np.testing.assert_allclose(page.results["weighted_value"], weights[..., None] * v, atol=1e-12)
    np.testing.assert_allclose(page.results["sum"], weights @ v, atol=1e-12)
    for i, word in enumerate(WORDS):
        *lines, last = rows(text, word)
        for j, line in enumerate(lines):
            vectors = [fixed(value, 1) for vector in (q[i], k[j], v[j]) for value in vector[:3]]
            numbers = [fixed(scores[i, j], 2), fixed(scores[i, j] / 8, 2), small(weights[i, j], 3)]
            assert line == [WORDS[j], *vectors, *numbers, *(fixed(weights[i, j] * a, 2) for a in v[j, :3])]
        assert last == ["sum", "1.000", *(fixed(a, 2) for a in (weights @ v)[i, :3])]
    assert "512 x 64" in text
    assert "3 x 512" in text
