"""Generating: the prompt in one pass, then one token at a time over a cache that grows by doubling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.nn.fast.decoder_step import Step

if TYPE_CHECKING:
    from sightline.models.text.language_model import LanguageModel


def new_tokens(
    model: LanguageModel, prompts: Sequence[Sequence[int]], sampler: Callable[[Tensor], Tensor], most: int
) -> Iterator[list[int]]:
    """The next token of every prompt, step by step, at most `most` times; the caller stops when it has enough.

    Prompts of unequal length are padded at the front, where no token sees the padding, and every row counts its own
    positions: a row gives what it would give alone.
    """
    state = _State(model, prompts, most)
    tokens = None
    for _ in range(most):
        # Not around the yield: whoever takes the tokens is not to run in inference mode.
        with torch.inference_mode():
            tokens = sampler(state.step(tokens))
        yield tokens.tolist()


class _State:
    """Where a batch of sequences stands: its cache, and for unequal prompts positions and padding."""

    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]], most: int) -> None:
        self.model, self.cache, self.fast = model, model.decoder.new_cache(), Step.of(model.decoder)
        lengths = [len(prompt) for prompt in prompts]
        longest = max(lengths)
        check_room(model, longest, most)
        rows = [[*[0] * (longest - len(prompt)), *prompt] for prompt in prompts]
        self.prompt = torch.tensor(rows, device=model.device)
        self.real: Tensor | None = None
        if min(lengths) < longest:
            starts = torch.tensor([longest - n for n in lengths], device=model.device)[:, None]
            # Room for all tokens to come, so that a step takes a view.
            self.real = torch.arange(longest + most, device=model.device) >= starts
            self.at = torch.arange(longest + most, device=model.device) - starts

    def step(self, tokens: Tensor | None) -> Tensor:
        """Logits `[batch, vocabulary]` after the prompt, or after one more token of each row."""
        ids = self.prompt if tokens is None else tokens[:, None]
        done = self.cache.length
        at = real = None
        if self.real is not None:
            end = done + ids.shape[1]
            at, real = self.at[:, done:end].clamp_min(0), self.real[:, :end]
        if done and self.fast is not None and not _looked_at(ids.device):
            logits = self.model.head(self.fast(self.model.embedding(ids), self.cache, at, real))
        else:
            logits = self.model(ids, cache=self.cache, at=at, padding=real, last=1)
        return logits[:, -1]


def _looked_at(device: torch.device) -> bool:
    """Whether modules have to be called themselves: for a function mode (observers, `sl.watch`), or for autocast."""
    return bool(torch._C._len_torch_function_stack()) or torch.is_autocast_enabled(device.type)


def check_room(model: LanguageModel, longest: int, most: int) -> None:
    """Refuse a prompt without a token, or more tokens than the model has positions for."""
    if model.context is not None and longest + most > model.context:
        raise InputError(
            "the text would be longer than the model's context",
            expected=f"prompt and new tokens together at most {model.context}",
            got=f"a prompt of {longest} and {most} new ones",
            hint=f"max_new_tokens={max(0, model.context - longest)}, or a shorter prompt",
        )
