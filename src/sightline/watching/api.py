"""`sl.watch` and `sl.load`."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from sightline.errors import InputTypeError
from sightline.watching.choose import HeadChoice, Heads, LayerChoice, Layers
from sightline.watching.intercept.caller import every_module, names_of
from sightline.watching.record import loading
from sightline.watching.record.account import read_stats
from sightline.watching.record.runs import most_runs
from sightline.watching.seen import Seen
from sightline.watching.tokens import Reader
from sightline.watching.watcher import Watcher


def watch(
    model: nn.Module,
    layers: Layers = None,
    keep_qk: bool | str | PathLike = False,
    *,
    heads: Heads = None,
    stats: Any = None,
    tokenizer: Any = None,
    folder: str | PathLike | None = None,
    compact: bool = False,
    runs: int | str = "last",
    fused: bool | None = None,
    influence: bool = False,
    keep_output: bool = False,
) -> AbstractContextManager[Seen]:
    """Look into any PyTorch model while it runs: `with sl.watch(model) as seen: model(...)`.

    Attention is seen wherever the model calls `F.scaled_dot_product_attention`, `torch.nn.MultiheadAttention`,
    `flex_attention`, `sl.attention`, or transformers' attention functions, and where it is written by hand as a softmax
    between two products. The model is not changed, and runs on its
    own kernels, in training and with checkpointing too: outputs, gradients and random numbers are the same. One block
    is for one run: a forward pass, or a generation, whose prompt and steps are joined into one sight that grows row by
    row; or for several, with `runs`.

    Args:
        model: any module; layers are called by their path in it.
        layers: which ones are watched, all if not given: an index in the order in which they run (-1 is the last to
            run), a path, a part of one from dot to dot (`"encoder"`, `"layers.1"`), a pattern for such a part
            (`"*.self_attn"`, `"layers.[0-3]"`), a list of these, or a function of the path. What no module is called
            is an error; what chooses none of the layers that ran is said when the block is left.
        keep_qk: whether to keep q and k, in the model's dtype, so that any tile can be computed exactly later. True
            keeps them in memory, a folder on disk. Without them a map of up to 512 x 512 is known whole, and of a
            larger one what `stats` says.
        heads: which heads: a number, a list, or a function of the layer's name. All if not given.
        stats: what is computed while the model runs: names and requests as in `sl.observe`, and `"overview"` (the map
            in at most 512 x 512 bins: sums), `"overview_max"` (maxima), `"shares"` (previous, first, same token). By
            default entropy, received, overview and shares: what costs least and serves the explorer.
        tokenizer: to name the tokens: one of transformers or of the tokenizers library.
        folder: write the run there while it goes on; `sl.load(folder)` reads it at any time.
        compact: run the watched layers of a transformers model on Sightline's attention where its own would write out
            queries x keys: SDPA under a mask that is more than causal (padding, a window), and eager attention. Memory
            is then linear in the context; outputs are equal up to rounding, and dropout draws other numbers.
        runs: how many runs of the block are kept, the last ones: `"last"` is one, and a second run then warns; a
            number, or `"all"`. `seen.runs` holds them, for the steps of a diffusion, or one batch after another.
        fused: the former name of `compact`.
        influence: have the heads' outputs in the graph, so that `seen.backward(y)`, or the model's own backward pass,
            tells what mattered for y. The model runs with gradients, frozen or not. With `keep_qk` v and g are kept
            too, so that tiles, pictures and strongest edges of it are exact; without, rows and head totals, and what
            `stats` names (`sl.Top(8, of="influence")`), are computed when the gradient arrives.
        keep_output: keep what the heads gave, for `seen.mean_output()` and for patching.

    Leaving the block warns if no attention was seen, or some was not: `seen.unseen` says which, and why. Only
    the thread that opened the block is watched.

    >>> import torch, sightline as sl
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    >>> with watch(model, layers="layers.1") as seen:
    ...     out = model(torch.randn(1, 5, 16))
    >>> seen.layers, seen["layers.1.self_attn"].received().shape
    (['layers.1.self_attn'], torch.Size([1, 2, 5]))
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            "sl.watch looks into a module",
            expected="a torch.nn.Module",
            got=type(model).__name__,
            hint="sl.watch(pipeline.model)" if hasattr(model, "model") else "wrap the function in a module",
        )
    if isinstance(keep_qk, str | PathLike):
        folder, keep_qk = keep_qk if folder is None else folder, True
    elif not isinstance(keep_qk, bool):
        raise InputTypeError(
            "keep_qk says whether, or where, q and k are kept",
            expected="True, False or a folder",
            got=type(keep_qk).__name__,
            hint="keep_qk=True",
        )
    if fused is not None:
        warnings.warn("fused is now called compact: sl.watch(model, compact=True)", DeprecationWarning, stacklevel=2)
        compact = compact or fused
    every = every_module(model)
    names = names_of(model, every)
    return Watcher(
        model,
        names,
        LayerChoice(layers, names.values()),
        HeadChoice(heads),
        read_stats(stats),
        keep_qk,
        None if folder is None else Path(folder),
        Reader(tokenizer),
        compact,
        influence,
        keep_output,
        most_runs(runs),
        every,
    )


def load(folder: str | PathLike) -> Seen:
    """Read a run that was saved by `seen.save(folder)`, or is being written by `sl.watch(model, folder=…)`.

    Layers are read when they are asked for. Nothing in the folder is executed; what was not written by Sightline, or is
    damaged, is a SightFileError.

    >>> import tempfile, torch
    >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    >>> x = torch.randn(1, 5, 16)
    >>> with watch(layer) as seen:
    ...     _ = layer(x, x, x)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load(seen.save(folder))[0].entropy.shape
    torch.Size([1, 2, 5])
    """
    return loading.load(Path(folder))
