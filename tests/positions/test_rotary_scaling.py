"""Each scaling against its formula, written here a second time from the papers and from checkpoints' conventions."""

from __future__ import annotations

import math

import pytest
import torch

from sightline.errors import InputError
from sightline.positions import Rotary

DIM, BASE = 64, 10000.0
PLAIN = [1 / BASE ** (2 * i / DIM) for i in range(DIM // 2)]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1 + 0.01 * i for i in range(DIM // 2)],
    "long_factor": [1 + 0.5 * i for i in range(DIM // 2)],
    "original_max_position_embeddings": 64,
}


def measured(rotary: Rotary, at: int = 1) -> tuple[list[float], float]:
    """Frequencies and attention factor read off what the module does, from the angle of each pair one step apart.

    The step at+1 is turned back by the step at: both stand in one call, so that both see the same length.
    """
    x = torch.zeros(2, rotary.dim, dtype=torch.float64)
    x[:, : rotary.rotary_dim // 2] = 1
    a, b = rotary(x, at=torch.tensor([at - 1, at]))[:, : rotary.rotary_dim].unflatten(-1, (2, -1)).unbind(-2)
    z = torch.complex(a, b)
    step = z[1] / z[0]
    return step.angle().tolist(), z[0].abs().mean().item()


def close(got: list[float], expected: list[float]) -> None:
    torch.testing.assert_close(
        torch.tensor(got, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-14
    )


def frequencies(scaling: dict | None, base: float = BASE, at: int = 1) -> list[float]:
    return measured(Rotary(DIM, base=base, scaling=scaling), at)[0]


def test_default() -> None:
    close(frequencies(None), PLAIN)
    close(frequencies({"rope_type": "default"}), PLAIN)
    close(frequencies({}), PLAIN)


def test_linear_is_the_positions_divided() -> None:
    x = torch.randn(3, 10, DIM, dtype=torch.float64)
    scaled = Rotary(DIM, scaling={"type": "linear", "factor": 4.0})(x, at=7)
    divided = Rotary(DIM)(x, at=torch.arange(7, 17) / 4)
    torch.testing.assert_close(scaled, divided, rtol=0, atol=1e-12)
    close(frequencies({"type": "linear", "factor": 4.0}), [f / 4 for f in PLAIN])


@pytest.mark.parametrize("length", [1, 2, 2047, 2048, 2049, 5000, 100_000])
@pytest.mark.parametrize("key", ["max_position_embeddings", "original_max_position_embeddings"])
def test_dynamic_grows_its_base_with_the_length(length: int, key: str) -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, key: 2048}
    base = BASE
    if length > 2048:
        base = BASE * (2.0 * length / 2048 - 1.0) ** (DIM / (DIM - 2))
    close(frequencies(scaling, at=length - 1), [1 / base ** (2 * i / DIM) for i in range(DIM // 2)])


def test_dynamic_remembers_nothing() -> None:
    rotary = Rotary(DIM, scaling={"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 8})
    short, long = torch.randn(6, DIM), torch.randn(20, DIM)
    before = rotary(short), rotary(long)
    assert rotary(short).equal(before[0])
    assert rotary(long).equal(before[1])
    assert before[0].equal(Rotary(DIM)(short)), "up to the original length it is the plain scheme"


def test_llama3() -> None:
    expected = []
    for f in (1 / 500000.0 ** (2 * i / DIM) for i in range(DIM // 2)):
        wavelength = 2 * math.pi / f
        if wavelength < 8192 / 4:
            expected.append(f)
        elif wavelength > 8192 / 1:
            expected.append(f / 8)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected.append((1 - smooth) * f / 8 + smooth * f)
    close(frequencies(LLAMA3, base=500000.0), expected)
    plain = [1 / 500000.0 ** (2 * i / DIM) for i in range(DIM // 2)]
    kinds = ["kept" if e == p else "divided" if e == p / 8 else "blended" for e, p in zip(expected, plain, strict=True)]
    assert set(kinds) == {"kept", "blended", "divided"}, "the test should see all three"
    assert Rotary(DIM, scaling=LLAMA3).attention_factor == 1.0


def yarn(original: int, factor: float, fast: float, slow: float, truncate: bool) -> list[float]:
    low, high = (DIM * math.log(original / (2 * math.pi * turns)) / (2 * math.log(BASE)) for turns in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, DIM - 1)
    expected = []
    for i, f in enumerate(PLAIN):
        ramp = 0.0 if i <= low else 1.0 if i >= high else (i - low) / (high - low)
        expected.append(f / factor * ramp + f * (1 - ramp))
    return expected


@pytest.mark.parametrize(
    "more, expected",
    [
        ({}, yarn(4096, 4.0, 32, 1, True)),
        ({"truncate": False}, yarn(4096, 4.0, 32, 1, False)),
        ({"beta_fast": 16, "beta_slow": 2}, yarn(4096, 4.0, 16, 2, True)),
        ({"factor": None, "max_position_embeddings": 40960}, yarn(4096, 10.0, 32, 1, True)),
        ({"original_max_position_embeddings": 128}, yarn(128, 4.0, 32, 1, True)),
        # The ramp would end past the last channel.
        ({"original_max_position_embeddings": 10**9, "beta_fast": 1e6}, yarn(10**9, 4.0, 1e6, 1, True)),
    ],
)
def test_yarn(more: dict, expected: list[float]) -> None:
    close(frequencies({**YARN, **more}), expected)


def test_yarn_keeps_fast_pairs_and_divides_slow_ones() -> None:
    got = frequencies(YARN)
    close(got[:1] + got[-1:], [PLAIN[0], PLAIN[-1] / 4])


@pytest.mark.parametrize(
    "more, expected",
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"factor": 0.5}, 1.0),
        ({"attention_factor": 0.7}, 0.7),
        ({"factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        (
            {"factor": 40, "mscale": 0.707, "mscale_all_dim": 1.0},
            (0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1),
        ),
        ({"mscale": 0.707}, 0.1 * math.log(4) + 1),
        ({"mscale": 0.707, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
    ],
)
def test_yarn_makes_q_and_k_longer(more: dict, expected: float) -> None:
    rotary = Rotary(DIM, scaling={**YARN, **more})
    assert rotary.attention_factor == pytest.approx(expected, rel=1e-12)
    assert measured(rotary)[1] == pytest.approx(expected, rel=1e-12)


def test_the_attention_factor_spares_channels_that_do_not_turn() -> None:
    x = torch.randn(5, DIM)
    assert Rotary(DIM, rotary_dim=32, scaling=YARN)(x)[:, 32:].equal(x[:, 32:])


@pytest.mark.parametrize(
    "length, key", [(2, "short_factor"), (64, "short_factor"), (65, "long_factor"), (1000, "long_factor")]
)
@pytest.mark.parametrize("name", ["longrope", "su"])
def test_longrope_takes_its_factors_by_length(length: int, key: str, name: str) -> None:
    scaling = {**LONGROPE, "rope_type": name, "factor": 4.0}
    close(frequencies(scaling, at=length - 1), [f / s for f, s in zip(PLAIN, LONGROPE[key], strict=True)])


@pytest.mark.parametrize(
    "more, expected",
    [
        ({"factor": 4.0}, math.sqrt(1 + math.log(4) / math.log(64))),
        ({"max_position_embeddings": 2048}, math.sqrt(1 + math.log(32) / math.log(64))),
        ({"factor": 1.0}, 1.0),
        ({"attention_factor": 1.19}, 1.19),
    ],
)
def test_longrope_makes_q_and_k_longer(more: dict, expected: float) -> None:
    rotary = Rotary(DIM, scaling={**LONGROPE, **more})
    assert measured(rotary, at=10)[1] == pytest.approx(expected, rel=1e-12)
    assert measured(rotary, at=1000)[1] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "scaling",
    [{"type": "linear", "factor": 4.0}, LLAMA3, YARN, {**LONGROPE, "factor": 4.0}],
    ids=["linear", "llama3", "yarn", "longrope"],
)
@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_still_depend_only_on_the_distance(scaling: dict, interleaved: bool) -> None:
    rotary = Rotary(DIM, scaling=scaling, interleaved=interleaved)
    q, k = torch.randn(2, 1, DIM, dtype=torch.float64)
    scores = [rotary(q, at=i + 100) @ rotary(k, at=i + 70).T for i in range(0, 5000, 700)]
    torch.testing.assert_close(torch.stack(scores), scores[0].expand(len(scores), 1, 1), rtol=0, atol=1e-9)
    assert not torch.allclose(scores[0], rotary(q, at=100) @ rotary(k, at=71).T)


@pytest.mark.parametrize(
    "scaling, text",
    [
        ({"rope_type": "linear"}, r"misses a number\n  expected: 'factor', above 0"),
        ({"rope_type": "linear", "factor": 0}, "misses a number"),
        ({"rope_type": "linear", "factor": "4"}, r"scaling\['factor'\] cannot be used"),
        ({"rope_type": "linear", "factor": -4}, r"scaling\['factor'\] cannot be used"),
        ({"factor": 2.0}, r"rope_type=None"),
        (
            {"rope_type": "mrope"},
            r"one of default, linear, dynamic, llama3, yarn, longrope, su\n  got: rope_type='mrope'",
        ),
        ({"rope_type": ["linear"]}, "is not known"),
        ({"rope_type": "default", "mrope_section": [16, 24]}, r"got: 'mrope_section'"),
        ({"rope_type": "dynamic", "factor": 2.0}, r"add 'original_max_position_embeddings' from config.json"),
        ({k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}, "expected: 'low_freq_factor'"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor above low_freq_factor"),
        ({"rope_type": "yarn", "factor": 4.0}, "'original_max_position_embeddings' or 'max_position_embeddings'"),
        ({"rope_type": "yarn", "max_position_embeddings": 8}, "expected: 'original_max_position_embeddings'"),
        (LONGROPE, "expected: 'factor' or 'max_position_embeddings'"),
        ({**LONGROPE, "short_factor": [1.0, 2.0]}, r"expected: 32 numbers above 0, .*\n  got: 2 numbers"),
        ({**LONGROPE, "long_factor": ["1"] * 32}, r"scaling\['long_factor'\] cannot be used"),
        ({"full_attention": {"rope_type": "default"}}, r"try: scaling\['full_attention'\]"),
    ],
)
def test_bad_scalings(scaling: dict, text: str) -> None:
    with pytest.raises(InputError, match=text):
        Rotary(DIM, scaling=scaling)


def test_dynamic_needs_two_pairs_and_yarn_a_base() -> None:
    with pytest.raises(InputError, match="more than one pair"):
        Rotary(2, scaling={"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 8})
    with pytest.raises(InputError, match="pairs of different speed"):
        Rotary(8, base=1.0, scaling=YARN)
