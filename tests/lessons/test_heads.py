"""Eight heads by numpy; what is said of the trained ones, from their maps."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch

import sightline.lessons.heads as heads
from lesson_cases import fixed, give, softmax
from sightline.errors import MissingExtraError
from sightline.lessons import Page


@pytest.fixture(scope="module")
def given() -> tuple[Page, str]:
    return give("heads")


def test_concatenation_and_projection(given: tuple[Page, str]) -> None:
    page, text = given
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(3, 8, 512, 64, generator=generator, dtype=torch.float64).numpy() / 512**0.5
    w_o = torch.randn(512, 512, generator=generator, dtype=torch.float64).numpy() / 512**0.5
    words = ("Action", "gets", "results")
    seeds = [torch.Generator().manual_seed(zlib.crc32(word.encode())) for word in words]
    x = np.stack([torch.randn(512, generator=seed, dtype=torch.float64).numpy() for seed in seeds])
    z = []
    for h in range(8):
        q, k, v = (x @ w[n, h] for n in range(3))
        weights = softmax(q @ k.T / 8)
        np.testing.assert_allclose(page.results["weight"][h], weights, atol=1e-12)
        z.append(weights @ v)
        row = [f"Z_{h}", *(fixed(a, 3) for a in weights[0]), *(fixed(a, 3) for a in z[h][0, :3])]
        assert row in [line.split() for line in text.splitlines()]
    together = np.concatenate(z, -1)
    np.testing.assert_allclose(page.results["concatenation"], together, atol=1e-12)
    np.testing.assert_allclose(page.results["projection"], together @ w_o, atol=1e-11)


def test_what_trained_heads_do(given: tuple[Page, str]) -> None:
    page, _ = given
    maps = page.results["maps"].double().numpy()
    assert maps.shape == (6, 12, 16, 16)
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-5)
    before = np.mean([maps[:, :, i, i - 1] for i in range(1, 15)], axis=0)
    marks = np.mean([maps[:, :, i, 0] + maps[:, :, i, 15] for i in range(1, 15)], axis=0)
    np.testing.assert_allclose(page.results["shares"]["the word before"], before, atol=1e-6)
    np.testing.assert_allclose(page.results["shares"]["[CLS] and [SEP]"], marks, atol=1e-6)
    assert np.unravel_index(before.argmax(), before.shape) == (0, 2)
    assert before.max() > 0.95


def test_without_the_model_the_rest_is_still_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(page: Page) -> None:
        raise MissingExtraError("the model 'minilm' is not installed")

    monkeypatch.setattr(heads, "trained", missing)
    page, text = give("heads")
    assert "the model 'minilm' is not installed" in text
    assert "projection" in page.results
