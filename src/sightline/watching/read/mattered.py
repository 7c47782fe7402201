"""What a run can be asked beyond its weights: what mattered, what was carried, what heads gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sightline.errors import InputError
from sightline.watching.read.by_head import by_head, mean_output, output
from sightline.watching.read.spans import LayerSpans, spans

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from sightline.watching.record.influence import Influence


class Mattered:
    """The part of a run that is about what mattered."""

    meta: dict[str, Any]
    _influence: Influence | None = None

    def backward(self, y: Float[Tensor, "*batch"], add: bool = False) -> None:
        """Take in what mattered for y: its gradient at the output of every head, where it stops.

        y is a scalar or one number per example, made of what the model gave (`sl.targets`). No `.grad` of the model
        changes, and its parameters may be frozen. Afterwards `seen[layer].influence` is there, and with `keep_qk` all
        that is asked `of="influence"` or `"pull"`. A second call takes the place of the first, or with `add` is added
        to it. The model's own `y.backward()` inside the block does the same and fills `.grad` as always.

        >>> import torch
        >>> from sightline.watching import watch
        >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval().requires_grad_(False)
        >>> x = torch.randn(1, 5, 16)
        >>> with watch(layer, influence=True) as seen:
        ...     seen.backward(layer(x, x, x)[0][:, -1, 0])
        >>> seen[0].influence.shape
        torch.Size([1, 2, 5])
        """
        if self._influence is None:
            raise InputError(
                "this run was not watched for its influence",
                expected="influence=True, and the run in this process",
                got="a run without",
                hint="sl.watch(model, influence=True)",
            )
        self._influence.backward(y, bool(add))

    def by_head(self, of: str = "influence") -> Float[Tensor, "batch layers heads"]:
        """One number for each head: its influence or pull over all cells, or what it carries (`"norms"`), a query.

        Heads stand by their number in the model; NaN where a layer has fewer, or where one was not watched, and of
        layers that write attention out by hand (`seen[layer].influence` says so). A row of pull sums to 0, but for what
        a sink takes. `plots.by_head(seen)` draws it.

        >>> import torch
        >>> from sightline.watching import watch
        >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3).eval()
        >>> with watch(model, influence=True) as seen:
        ...     seen.backward(model(torch.randn(1, 5, 16))[:, -1, 0])
        >>> seen.by_head().shape, seen.by_head("norms").shape
        (torch.Size([1, 3, 2]), torch.Size([1, 3, 2]))
        """
        return by_head(self, of)  # type: ignore[arg-type]

    @property
    def joint(self) -> dict[str, dict[str, slice]]:
        """Where text and image lie in the layers that attend to both at once, as SD3's and Flux's do.

        Known by the names that the model's code has for the two when it puts them side by side; `{}` for other models.
        """
        found = self.meta.get("joint", {})
        return {layer: {name: slice(*ends) for name, ends in parts.items()} for layer, parts in found.items()}

    def spans(
        self, keys: Any = None, queries: Any = None, of: str = "weights", reduce: str | None = None
    ) -> LayerSpans:
        """What each layer has between named parts of the text: `{layer: Spans}`, and a table in notebooks.

        `keys` and `queries` are `{name: part}`. A part is a slice, positions, a text that occurs once, or
        (start, end) in characters; for characters the tokens must be known (`tokenizer=`). The rest is as in
        `Sight.spans`: without queries all are one. Without keys, both are the text and the image of the layers in
        `seen.joint`, and there are no others.

        >>> import torch
        >>> from sightline.watching import watch
        >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
        >>> x = torch.randn(1, 4, 16)
        >>> with watch(layer) as seen:
        ...     _ = layer(x, x, x)
        >>> seen.tokens = [["Who", " went", "?", " Mary"]]
        >>> seen.spans({"question": "Who went?", "answer": (9, 14)})["MultiheadAttention"].keys
        ('question', 'answer', 'rest')
        """
        return spans(self, keys, queries, of, reduce)  # type: ignore[arg-type]

    def mean_output(self) -> dict[str, Float[Tensor, "heads value_dim"]]:
        """What each head gave on average, over examples and queries that are no padding; with `keep_output=True`.

        >>> import torch
        >>> from sightline.watching import watch
        >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
        >>> x = torch.randn(1, 5, 16)
        >>> with watch(layer, keep_output=True) as seen:
        ...     _ = layer(x, x, x)
        >>> seen.mean_output()["MultiheadAttention"].shape, seen.output(0).shape
        (torch.Size([2, 8]), torch.Size([1, 2, 5, 8]))
        """
        return mean_output(self)  # type: ignore[arg-type]

    def output(self, layer: str | int) -> Float[Tensor, "batch heads queries value_dim"]:
        """What the heads of a layer gave, before its output projection; with `keep_output=True`."""
        return output(self, layer)  # type: ignore[arg-type]
