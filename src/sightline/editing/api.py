"""`sl.edit`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import nn

from sightline.editing.editor import Editor
from sightline.editing.edits import Edits
from sightline.errors import InputTypeError
from sightline.watching.intercept.caller import names_of


def edit(model: nn.Module, edits: Edits | None = None) -> AbstractContextManager[Edits]:
    """Change what a model's attention does while it runs: `with sl.edit(model) as edits: edits.cut(…); model(…)`.

    Every model that `sl.watch` reaches can be edited. Edits may be added at any time inside the block, and act on every
    call from then on; on leaving, the model is as it was. Heads and rows that no edit touches keep what the model's own
    kernel gives, to the bit, and gradients flow through the edits. With `sl.watch` around the block or inside it, the
    sights are of the edited attention.

    Args:
        model: any module.
        edits: what is in force from the start, an `sl.Edits`.

    Modules that torch.compile wrapped run uncompiled if they are edited, and are named in `edits.uncompiled`; one that
    was compiled with fullgraph=True is refused. Under checkpointing, call backward inside the block. Only the thread
    that opened the block is edited.

    >>> import torch
    >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    >>> x = torch.randn(1, 5, 16)
    >>> with torch.no_grad(), edit(layer) as edits:
    ...     edits.ablate(heads=[0, 1])
    ...     out, _ = layer(x, x, x)
    >>> torch.allclose(out, layer.out_proj.bias.expand(1, 5, 16))
    True
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            "sl.edit changes a module",
            expected="a torch.nn.Module",
            got=type(model).__name__,
            hint="sl.edit(pipeline.model)" if hasattr(model, "model") else "wrap the function in a module",
        )
    if edits is not None and not isinstance(edits, Edits):
        raise InputTypeError(
            "edits are given as a value",
            expected="an sl.Edits",
            got=type(edits).__name__,
            hint="edits = sl.Edits(); edits.cut(…)",
        )
    return Editor(model, names_of(model), Edits() if edits is None else edits)
