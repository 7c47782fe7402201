"""A sequence on two processes that share one GPU, over gloo: NCCL would want a GPU for each."""

from __future__ import annotations

from pathlib import Path

import pytest

import rank_world

# Of the checks that two and four processes make on the CPU, those that compute something.
SMALL = {
    "sights": ["check_sights_and_outputs_are_those_of_one_process"],
    "gradients": ["check_gradients_are_those_of_one_process", "check_dropout_drops_what_it_says_and_its_gradient_fits"],
    "parts": [
        "check_uneven_and_unequal_parts",
        "check_the_same_bits_run_after_run",
        "check_nan_stays_where_it_belongs",
        "check_what_is_of_the_whole_is_the_same_on_every_rank",
    ],
}
LONG = {
    "float32": ["check_sights_in_float32_are_those_of_one_process"],
    "bfloat16": ["check_sights_in_bfloat16_are_as_good_as_those_of_one_process"],
    "gradients": ["check_long_gradients"],
    "bits": ["check_long_parts_have_the_same_bits_run_after_run", "check_a_model_whose_heads_are_divided_is_gathered"],
}


def agreed(names: list[str], folder: Path, device: str = "cuda") -> None:
    """Every check is fine on every rank."""
    said = rank_world.on_device(device, names, folder)
    assert list(said) == names, f"no rank came so far: {(folder / 'log').read_text()[-3000:]}"
    wrong = {f"{name}, rank {i}": one for name, ranks in said.items() for i, one in enumerate(ranks) if one != "ok"}
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())


@pytest.mark.parametrize("names", SMALL)
def test_what_the_cpu_checks_holds_on_the_gpu(names: str, tmp_path: Path) -> None:
    agreed(SMALL[names], tmp_path)


@pytest.mark.parametrize("names", LONG)
def test_heads_of_64_and_half_precision(names: str, tmp_path: Path) -> None:
    agreed(LONG[names], tmp_path)
