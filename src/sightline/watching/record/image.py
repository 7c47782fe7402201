"""The image that a run is of, saved beside it, and the grid of patches that its tokens are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from sightline.image_files import content_of, decoded

# Tokens that may stand before the patches of an image, where nothing says which they are.
_BEFORE = 16
NAMES = {"PNG": "image.png", "JPEG": "image.jpg"}


class Grid(NamedTuple):
    """The patches of an image: rows and columns of them, and how many tokens stand before the first.

    >>> Grid(14, 14, 1).first
    1
    """

    rows: int
    columns: int
    first: int


class Pictured:
    """The part of a run that knows of its image."""

    meta: dict[str, Any]
    _folder: Path | None

    @property
    def grid(self) -> Grid | None:
        """The patches that an image was cut into, `Grid(rows, columns, first)`; None if the tokens are no such grid.

        `first` tokens stand before the patches: a class token, registers.

        >>> import torch
        >>> from sightline.watching import watch
        >>> class Patches(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.cut = torch.nn.Conv2d(3, 16, 4, 4)
        ...         self.attn = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        ...
        ...     def forward(self, image):
        ...         x = self.cut(image).flatten(2).mT
        ...         return self.attn(x, x, x)[0]
        >>> model = Patches().eval()
        >>> with watch(model) as seen:
        ...     _ = model(torch.randn(1, 3, 8, 12))
        >>> seen.grid
        Grid(rows=2, columns=3, first=0)
        """
        found = self.meta.get("grid")
        return None if found is None else Grid(*found)

    @property
    def image(self) -> Path | None:
        """The image that was saved with the run by `seen.save(folder, image=…)`, as a file of its folder."""
        name = self.meta.get("image")
        return None if name is None or self._folder is None else self._folder / name


def read_image(image: str | Path | bytes) -> tuple[str, bytes]:
    """The name that an image is saved by, and its bytes: a PNG or JPEG that can be decoded whole."""
    content = content_of(image)
    return NAMES[str(decoded(content, "saving an image").format)], content


def image_size(args: tuple, kwargs: dict[str, Any]) -> tuple[int, int, int] | None:
    """Channels, height and width of the image that a model is given, [batch, channels, height, width]."""
    given: Iterable[Any] = [kwargs.get("pixel_values"), *args, *kwargs.values()]
    for x in given:
        if isinstance(x, Tensor) and x.dim() == 4 and x.is_floating_point() and x.shape[1] in (1, 3, 4):
            return int(x.shape[1]), int(x.shape[2]), int(x.shape[3])
    return None


def find_grid(model: nn.Module, size: tuple[int, int, int] | None, keys: int | None) -> Grid | None:
    """The patches that a model cuts an image into, if its tokens are these, with few before them; else None.

    >>> find_grid(nn.Sequential(nn.Conv2d(3, 8, 16, 16)), (3, 224, 160), 141)
    Grid(rows=14, columns=10, first=1)
    """
    if size is None or keys is None:
        return None
    for module in model.modules():
        step = _patch(module, size[0])
        if step is not None:
            if min(step) < 2:
                return None
            rows, columns = size[1] // step[0], size[2] // step[1]
            first = keys - rows * columns
            return Grid(rows, columns, first) if rows * columns and 0 <= first <= _BEFORE else None
    return None


def _patch(module: nn.Module, channels: int) -> tuple[int, int] | None:
    """Height and width of what a module cuts images into; (1, 1) if it does not cut them without overlap."""
    if isinstance(module, nn.Conv2d) and module.in_channels == channels:
        step = module.stride
        return (int(step[0]), int(step[1])) if step == module.kernel_size else (1, 1)
    if hasattr(module, "cut") and getattr(module, "channels", None) == channels:  # of `sl.models`
        return module.patch
    return None
