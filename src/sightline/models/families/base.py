"""What a family is: which configs it serves, the module it makes of one, and where each parameter is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.models.families.settings import Settings


@dataclass(frozen=True)
class Source:
    """The tensor of a checkpoint that a parameter is found in.

    Args:
        name: its name there; `#` stands for the number of a layer, `*` for `weight` and `bias`.
        transposed: a matrix is `[in, out]` there, as in GPT-2.
        shares: our parameters that lie in this tensor, one after the other along the outputs (fused q, k and v).
        shape: its shape there, where it holds the same numbers in other axes (the kernel of a convolution).

    >>> Source("h.#.attn.c_proj.*", transposed=True).shape_there((8, 32), [])
    (32, 8)
    """

    name: str
    transposed: bool = False
    shares: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None

    def shape_there(self, shape: tuple[int, ...], sizes: Sequence[int]) -> tuple[int, ...]:
        """The shape in the file, of a parameter of this shape; `sizes` are the outputs of all that share it."""
        if self.shape is not None:
            return self.shape
        if sizes:
            shape = (sum(sizes), *shape[1:])
        return shape[::-1] if self.transposed else shape

    def take(self, tensor: Tensor, shape: tuple[int, ...], sizes: Sequence[int], place: int) -> Tensor:
        """The parameter out of the tensor of the file: a view of it where one can be had."""
        if self.transposed:
            tensor = tensor.t()
        if sizes:
            tensor = tensor.narrow(0, sum(sizes[:place]), sizes[place])
        return tensor.reshape(shape) if self.shape is not None else tensor


@dataclass(frozen=True)
class Family:
    """One kind of model.

    Args:
        model_types: what `model_type` in config.json may say.
        make: the module for a config. It runs on the meta device: sizes without numbers. Whatever would take time or
            memory in proportion to a number of the config is compared with the tensors first (`Settings.expect`).
        names: for each of our parameters the name of its tensor, or a `Source`. `#` stands for the number of a layer,
            `*` for `weight` and `bias`.
        unused: patterns of tensors that are known and not needed, as `fnmatch` reads them: heads for other tasks,
            tables that can be computed.
    """

    model_types: tuple[str, ...]
    make: Callable[[Settings], nn.Module]
    names: Callable[[Settings], Mapping[str, str | Source]]
    unused: tuple[str, ...] = ()


def set_biases(layers: Iterable[nn.Module], wanted: Mapping[str, bool]) -> None:
    """Give linear layers that are not filled yet a bias, or take it away, in every layer, by name.

    >>> from sightline import nn as slnn
    >>> layer = slnn.EncoderLayer(8, heads=2)
    >>> set_biases([layer], {"attention.query": False})
    >>> layer.attention.query
    Linear(in_features=8, out_features=8, bias=False)
    """
    for layer in layers:
        for name, wants in wanted.items():
            linear = layer.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            linear.register_parameter("bias", nn.Parameter(torch.empty(linear.out_features)) if wants else None)
