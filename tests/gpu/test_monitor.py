"""`sl.monitor` on a real GPU: a training keeps its weights to the bit, and the numbers are those of float64."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import sightline as sl
from model_cases import theirs

LLAMA = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 256, "use_cache": False}
STEPS, EVERY = 4, 2


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Of torch's kernels those whose backward pass has a deterministic form.
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield
    torch.use_deterministic_algorithms(False)


def llama(device: str, dtype: torch.dtype) -> torch.nn.Module:
    return theirs("LlamaForCausalLM", **LLAMA, attention_dropout=0.0, initializer_range=0.1).to(device, dtype).train()


def train(model: torch.nn.Module, ids: torch.Tensor, how: str, monitored: bool) -> tuple[list[torch.Tensor], list[int]]:
    """The weights after some steps, and the steps that were recorded."""
    torch.compiler.reset()
    model = copy.deepcopy(model)
    run = torch.compile(model, backend="aot_eager") if how == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with sl.monitor(model, every=EVERY) if monitored else contextlib.nullcontext() as monitor:
        for _ in range(STEPS):
            run(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if monitor is not None:
                monitor.step()
        if monitor is not None:
            assert not monitor.unseen
            assert len(monitor.latest) == 2
    return [p.detach().clone() for p in model.parameters()], [] if monitor is None else monitor.steps


def check_weights(device: str, dtype: torch.dtype, how: str) -> None:
    """Where torch's own runs have the same bits; else no further apart than two runs without a monitor."""
    model, ids = llama(device, dtype), torch.randint(100, (2, 77), device=device)
    if how == "eager":
        train(model, ids, how, False)  # the first run of a process may be by other kernels
    (first, _), (second, _), (mine, steps) = (train(model, ids, how, monitored) for monitored in (False, False, True))
    assert steps == [0, 2]
    assert not torch.equal(first[0], next(model.parameters())), "nothing was trained"
    for a, b, c in zip(first, second, mine, strict=True):
        spread = (a - b).abs().max()
        assert torch.equal(a, c) if spread == 0 else (a - c).abs().max() <= 4 * spread


def attended(model: torch.nn.Module, ids: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The queries and keys of each layer, as torch's function is given them."""
    given, real = [], F.scaled_dot_product_attention

    def spy(query, key, value, attn_mask=None, **options):
        assert attn_mask is None
        assert options["is_causal"]
        given.append((query.detach().double(), key.detach().double()))
        return real(query, key, value, attn_mask=attn_mask, **options)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(F, "scaled_dot_product_attention", spy)
        model(input_ids=ids)
    return given


def check_numbers(device: str, dtype: torch.dtype, within: float) -> None:
    model, ids = llama(device, dtype), torch.randint(100, (2, 77), device=device)
    with sl.monitor(model) as monitor:
        model(input_ids=ids, labels=ids).loss.backward()
        monitor.step()
    pairs = attended(model, ids)
    assert len(monitor.latest) == len(pairs) == 2
    visible = torch.ones(77, 77, dtype=torch.bool, device=device).tril()
    for reading, (q, k) in zip(monitor.latest.values(), pairs, strict=True):
        scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = scores.softmax(-1)
        entropy = torch.special.entr(weights).sum(-1).mean((0, 2))
        share = weights[..., :4].sum((0, 2, 3)) / weights.sum((0, 2, 3))
        assert entropy.max() < 3.5, "not flat"
        wanted = {"entropy": entropy, "max_score": scores.amax((0, 2, 3)), "first_share": share}
        for name, want in wanted.items():
            got = getattr(reading, name).to(device).double()
            assert (got - want).abs().max() <= within * want.abs().max(), name


@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_keeps_its_weights(deterministic: None, dtype: torch.dtype, how: str) -> None:
    check_weights("cuda", dtype, how)


@pytest.mark.parametrize("dtype, within", [(torch.float32, 1e-4), (torch.bfloat16, 1e-3)], ids=str)
def test_numbers_are_those_of_float64(dtype: torch.dtype, within: float) -> None:
    """Products of queries and keys in bfloat16 are exact in float32; what errs is the lse of a kernel, and sums."""
    check_numbers("cuda", dtype, within)
