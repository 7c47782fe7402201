"""What a watched run gave: a sight for every attention layer, the tokens, and what follows from all layers together."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sightline.errors import InputError, InputTypeError, SightlineError
from sightline.watching.read.html import seen_html
from sightline.watching.read.mattered import Mattered
from sightline.watching.read.portraits import portraits
from sightline.watching.read.ranks import gather
from sightline.watching.read.rollout import rollout
from sightline.watching.record.folder import save
from sightline.watching.record.image import Pictured
from sightline.watching.record.shares import SHARES
from sightline.watching.tokens import Worded

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from sightline.lens.kept import KeptSight
    from sightline.watching.read.portraits import Portraits
    from sightline.watching.record.influence import Influence
    from sightline.watching.tokens import Reader


class LayerLike(Protocol):
    """A layer of a run, in memory or on disk."""

    name: str
    index: int
    kind: str
    module: str
    heads: list[int] | None

    def sight(self) -> KeptSight: ...

    def rows(self, name: str) -> Tensor | None: ...


class Seen(Mattered, Pictured, Worded):
    """The sights of a run, by the path of each layer in the model.

    Layers are listed in the order in which they ran. A layer that was called several times in one pass is listed once
    for each call: `name`, `name#2`, ...

    >>> import torch
    >>> from sightline.watching import watch
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    >>> with watch(model) as seen:
    ...     _ = model(torch.randn(1, 5, 16))
    >>> seen.layers
    ['layers.0.self_attn', 'layers.1.self_attn']
    >>> seen["layers.1.self_attn"].shape, seen[1].entropy.shape
    ((1, 2, 5, 5), torch.Size([1, 2, 5]))
    """

    def __init__(
        self,
        meta: dict[str, Any],
        reader: Reader | None = None,
        complete: bool = True,
        influence: Influence | None = None,
    ) -> None:
        self.meta = meta
        self._influence = influence
        self.complete = complete
        self._layers: dict[str, LayerLike] = {}
        self._reader = reader
        self._tokens: list[list[str]] | None = None
        self._memory_tokens: list[list[str]] | None = None
        self._ids: tuple[list | None, list | None] | None = None
        self._unseen: dict[str, str] = {}
        self._empty: str | None = None
        self._folder: Path | None = None  # where its layers are read from
        self._runs: list[Seen] = []  # those before this one

    @property
    def folder(self) -> Path | None:
        """The folder that its layers are read from; None while they are in memory."""
        return self._folder

    @property
    def layers(self) -> list[str]:
        """The paths of the watched layers, in the order in which they ran."""
        return list(self._layers)

    @property
    def unseen(self) -> dict[str, str]:
        """What attended without being caught: the path of each module, and the reason.

        >>> import torch
        >>> from sightline.watching import watch
        >>> class ByHand(torch.nn.Module):
        ...     def forward(self, x):
        ...         return (x @ x.mT).softmax(-2) @ x  # over queries, not over keys
        >>> model = torch.nn.Sequential(ByHand())
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"), watch(model) as seen:
        ...     _ = model(torch.randn(1, 5, 16))
        >>> seen.unseen
        {'0': 'its attention is written by hand: a softmax between two matrix products'}
        """
        return dict(self._unseen)

    @property
    def runs(self) -> list[Seen]:
        """The runs of the block that were asked for by `sl.watch(…, runs=…)`, this one last.

        A run is a forward pass, or a generation; each is a `Seen` of its own.

        >>> import torch
        >>> from sightline.watching import watch
        >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
        >>> with watch(layer, runs="all") as seen:
        ...     for length in (5, 3):
        ...         _ = layer(*[torch.randn(1, length, 16)] * 3)
        >>> [run[0].shape for run in seen.runs], seen[0].shape
        ([(1, 2, 5, 5), (1, 2, 3, 3)], (1, 2, 3, 3))
        """
        return [*self._runs, self]

    def __getitem__(self, layer: str | int) -> KeptSight:
        return self._layer(layer).sight()

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __contains__(self, name: object) -> bool:
        return name in self._layers

    def kind(self, layer: str | int) -> str:
        """`"self"`, or `"cross"` for attention to another sequence."""
        return self._layer(layer).kind

    def number(self, layer: str | int) -> int:
        """The number of a layer among all that ran, watched or not, as `layers=` counts them."""
        return self._layer(layer).index

    def heads(self, layer: str | int) -> list[int]:
        """The numbers of the heads that were watched, as the model counts them."""
        found = self._layer(layer)
        return list(range(found.sight().shape[1])) if found.heads is None else list(found.heads)

    def shares(self, layer: str | int) -> dict[str, Float[Tensor, "batch heads queries"]]:
        """For every query, the weight of the previous token, the first, and itself, and of what came next last time.

        The last (`induction`) is the weight of the token after the latest earlier occurrence of the query's own token;
        it is there if the model was given token ids.
        """
        found = self._layer(layer)
        return {name: rows for name in SHARES if (rows := found.rows(name)) is not None}

    def portraits(self, model: Any = None) -> Portraits:
        """What each head does, in numbers: one record for every head of every layer.

        `previous`, `first` and `same` are the mean shares of the previous token, the first and the token itself,
        `distance` and `entropy` the mean over all queries, `induction` the mean share of what came next the last time.
        With a model, `induction` is measured on a repeated random sequence instead of the watched text.

        >>> import torch
        >>> from sightline.watching import watch
        >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
        >>> x = torch.randn(1, 5, 16)
        >>> with watch(layer) as seen:
        ...     _ = layer(x, x, x)
        >>> [(p.layer, p.head) for p in seen.portraits()]
        [('MultiheadAttention', 0), ('MultiheadAttention', 1)]
        """
        return portraits(self, model)

    def rollout(
        self, query: int = -1, *, heads: str | int = "mean", residual: bool = True, memory: bool = False
    ) -> Float[Tensor, "batch tokens"]:
        """Which input tokens fed an output position: attention followed back through all watched layers.

        Heads are joined by their mean, their maximum, or one is taken. With `residual`, half of each position is itself
        in every layer. Rows always sum to 1. `memory` gives the encoder's tokens of an encoder-decoder model.

        Matrix-free: memory is linear in the context. It is a heuristic, not proof of cause.

        >>> import torch
        >>> from sightline.watching import watch
        >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        >>> with watch(model.eval()) as seen:
        ...     _ = model(torch.randn(1, 5, 16))
        >>> seen.rollout(query=-1).sum().round()
        tensor(1.)
        """
        return rollout(self, query, heads, residual, memory)

    def save(self, folder: str | Path, keep_qk: bool = True, image: str | Path | bytes | None = None) -> Path:
        """Write a folder that `sl.load` reads: safetensors and a JSON index, no pickle.

        Every file appears whole or not at all, so the folder can be read while it is written. q and k are written if
        they were kept, unless `keep_qk=False`. An image, a PNG or JPEG of at most 64 megapixels as a file or as its
        bytes, is decoded to see that it is one, and saved beside the run: `seen.image` is its file then.

        >>> import tempfile, torch
        >>> from sightline.watching import load, watch
        >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
        >>> x = torch.randn(1, 5, 16)
        >>> with watch(layer) as seen:
        ...     _ = layer(x, x, x)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load(seen.save(folder)).layers
        ['MultiheadAttention']
        """
        return save(self, Path(folder), keep_qk, self.image if image is None else image)

    def gather(self, group: Any = None, over: str | None = None) -> Seen:
        """The sights of a model that lies on several ranks, put together; every rank must call it, and gets them.

        Of tensor parallel, layers have the heads of all ranks, in their order; of a pipeline, there are the layers of
        all ranks. `over` says which, `"heads"` or `"layers"`; without it, layers of the same name are divided by heads,
        if the tokens that the ranks saw are the same. Of inputs that are no tokens it must be said.
        What was computed travels; what needs q and k is computed on the ranks that kept them, and all ranks must ask.
        `group` is a process group, a DeviceMesh of one axis, or None for the default group.
        """
        return gather(self, group, over)

    def _layer(self, layer: str | int) -> LayerLike:
        if isinstance(layer, int) and not isinstance(layer, bool):
            names = self.layers
            if -len(names) <= layer < len(names):
                return self._layers[names[layer]]
        elif isinstance(layer, str):
            if layer in self._layers:
                return self._layers[layer]
        else:
            raise InputTypeError(
                "a layer is asked for by name or by index",
                expected="str or int",
                got=type(layer).__name__,
                hint="seen[seen.layers[0]]",
            )
        if self._empty is not None:
            raise InputError(self._empty)
        near = [name for name in self._layers if str(layer) in name][:3]
        raise InputError(
            f"no watched layer {layer!r}",
            expected=f"one of {len(self._layers)} layers: {_few(self.layers)}",
            got=repr(layer),
            hint=f"seen[{near[0]!r}]" if near else "seen.layers",
        )

    def __repr__(self) -> str:
        shape = f", first of shape {self[0].shape}" if self._layers else ""
        missed = f"; {len(self._unseen)} not seen: {_few(list(self._unseen))}" if self._unseen else ""
        return f"Seen({self.meta.get('model')}, {len(self)} layers: {_few(self.layers)}{shape}{missed})"

    def _repr_html_(self) -> str:
        return seen_html(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """In a notebook: the explorer, where it is installed. The table with pictures stays beside it."""
        if "ipykernel" not in sys.modules or not self.layers:
            return {}
        try:
            # Asked for by name: watching does without it.
            return importlib.import_module("sightline.web.widget").mimebundle(self)
        except (ImportError, SightlineError) as error:
            note = " - ".join(line.strip() for line in str(error).splitlines())
            return {"text/html": f"{self._repr_html_()}<p><small>No explorer here: {escape(note)}</small></p>"}


def _few(names: list[str]) -> str:
    return ", ".join(names if len(names) <= 3 else [names[0], names[1], "…", names[-1]])
