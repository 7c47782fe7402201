from __future__ import annotations

from typing import Any

import pytest
import torch

from model_cases import Held
from sightline.errors import InputError
from sightline.models.text.pooling import Pooling, read_pooling

STATES = torch.arange(24.0).view(2, 3, 4) - 10
LENGTHS = torch.tensor([3, 2])


def files(*kinds: str, mode: str = "pooling_mode_mean_tokens", longest: Any = 256) -> dict[str, Any]:
    """The files beside a sentence encoder's weights."""
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": f"{n}_{kind}"} for n, kind in enumerate(kinds)]
    pooling = {"word_embedding_dimension": 4, "pooling_mode_cls_token": False, mode: True}
    return {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": longest},
    }


def test_padding_is_no_part_of_the_pool() -> None:
    changed = STATES.clone()
    changed[1, 2] = float("nan")
    for mode in ("mean", "first", "max"):
        pool = Pooling(mode, False, 9)
        assert torch.equal(pool(STATES, LENGTHS), pool(changed, LENGTHS))
    assert torch.equal(Pooling("mean", False, 9)(STATES, LENGTHS)[1], STATES[1, :2].mean(0))
    assert torch.equal(Pooling("first", False, 9)(STATES, LENGTHS), STATES[:, 0])
    assert torch.equal(Pooling("max", False, 9)(STATES, LENGTHS)[1], STATES[1, :2].amax(0))


def test_vectors_have_length_one_if_asked() -> None:
    pool = Pooling("mean", True, 9)
    torch.testing.assert_close(pool(STATES, LENGTHS).norm(dim=-1), torch.ones(2))
    assert pool(STATES, LENGTHS, normalize=False).norm(dim=-1).min() > 1.5
    assert Pooling("mean", True, 9)(torch.zeros(1, 3, 4), LENGTHS[:1]).isfinite().all()


@pytest.mark.parametrize(
    "beside, expected",
    [
        ({}, Pooling("mean", False, 512)),
        (files("Transformer", "Pooling", "Normalize"), Pooling("mean", True, 256)),
        (files("Transformer", "Pooling", longest=4000), Pooling("mean", False, 512)),
        (files("Transformer", "Pooling", longest="many"), Pooling("mean", False, 512)),
        (files("Transformer", "Pooling", mode="pooling_mode_cls_token"), Pooling("first", False, 256)),
        (files("Transformer", "Pooling", mode="pooling_mode_max_tokens"), Pooling("max", False, 256)),
        (files("Transformer", "Pooling", mode="pooling_mode_lasttoken"), Pooling(None, False, 256)),
        (files("Transformer", "Pooling", "Dense", "Normalize"), Pooling(None, True, 256)),
        (files("Transformer"), Pooling(None, False, 256)),
        ({"modules.json": [3, "x"]}, Pooling(None, False, 512)),
    ],
)
def test_what_the_files_say(beside: dict[str, Any], expected: Pooling) -> None:
    assert read_pooling(Held({}, {}, beside), 512) == expected


def test_unknown_pooling_is_refused_when_it_is_used() -> None:
    with pytest.raises(InputError, match="not known here"):
        Pooling(None, False, 9)(STATES, LENGTHS)
