"""Text as a rung would write it."""

from __future__ import annotations

import torch
from torch import nn

from sightline.lessons.ladder.text import Text


def sample(model: nn.Module, text: Text, context: int, *, seed: int, length: int) -> str:
    """So many characters, each drawn from what the model expects after the ones before it.

    It begins behind the first line of the held-out part, or behind its first `context` characters, and sees at most
    the last `context` characters, as in training.
    """
    device = next(model.parameters()).device
    draw = torch.Generator().manual_seed(seed)
    line_end = text.spell(text.held_out[:context]).find("\n") + 1
    seen = text.held_out[: line_end or context]
    start = len(seen)
    with torch.no_grad():
        for _ in range(length):
            logits = model(seen[None, -context:].to(device))[0, -1]
            # Drawn on the CPU in double precision: the same numbers on every device, as far as the logits are.
            shares = logits.double().cpu().softmax(-1)
            seen = torch.cat((seen, torch.multinomial(shares, 1, generator=draw)))
    return text.spell(seen[start:])
