"""The image that a run is of, saved beside it, and the grid of patches that its tokens are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from sightline import caches
from sightline.image_files import content_of, decoded

# Tokens that may stand before the patches of an image, where nothing was heard of how they came there.
_BEFORE = 16
# How many tokens models put before the patches and behind them: not every pass is heard.
_around: WeakKeyDictionary[nn.Module, tuple[int, int]] = caches.held("watching.patches", WeakKeyDictionary())
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


def find_grid(
    model: nn.Module,
    size: tuple[int, int, int] | None,
    keys: int | None,
    ids: list[list[int]] | None = None,
    lengths: Sequence[tuple[int, ...]] = (),
) -> tuple[Grid | None, list[int | None] | None]:
    """The patches that a model cuts an image into, if its tokens are these, with others beside them; else None.

    Where they begin is known by the lengths of what the model put one after the other, in this run or in one before.
    If that was never heard, a few tokens more than patches are taken to stand before these. A text may hold them too,
    as so many tokens of one kind: then also where they begin in each text of the batch.

    >>> find_grid(nn.Sequential(nn.Conv2d(3, 8, 16, 16)), (3, 224, 160), 141)
    (Grid(rows=14, columns=10, first=1), None)
    """
    step = None if size is None else next((found for m in model.modules() if (found := _patch(m, size[0]))), None)
    if size is None or step is None or keys is None or min(step) < 2:
        return None, None
    rows, columns = size[1] // step[0], size[2] // step[1]
    starts = _starts(model, rows * columns, ids) if rows * columns else None
    first = keys - rows * columns
    if starts is not None and ids is not None and keys == len(ids[0]):  # layers of the text, and none of the image
        first = next(start for start in starts if start is not None)
    elif not rows * columns:
        return None, None
    elif begins := _begins(rows * columns, keys, lengths):
        if len(begins) > 1:
            begins &= {before for before, behind in [_around.get(model, (-1, 0))] if before + behind == first}
        if not begins:
            return None, None
        first = begins.pop()
        _around[model] = (first, keys - first - rows * columns)
    elif (around := _around.get(model)) is not None and sum(around) == first:
        first = around[0]
    elif not 0 <= first <= _BEFORE:
        return None, None
    return Grid(rows, columns, first), starts


def _begins(patches: int, keys: int, lengths: Sequence[tuple[int, ...]]) -> set[int]:
    """Where so many patches may begin among keys, by the lengths of sequences that were put together.

    >>> _begins(12, 20, [(1, 12, 7)]), _begins(12, 16, [(1, 12), (1, 3, 12)])
    ({1}, {4})
    """
    found: set[int] = set()
    reached, seen = {(patches, 0)}, set()
    while reached:
        length, first = at = reached.pop()
        seen.add(at)
        if length == keys:
            found.add(first)
            continue
        for parts in lengths:
            if sum(parts) > keys:
                continue
            places = [(sum(parts), first + sum(parts[:i])) for i, part in enumerate(parts) if part == length]
            reached |= set(places) - seen
    return found


def _starts(model: nn.Module, patches: int, ids: list[list[int]] | None) -> list[int | None] | None:
    """Where in each text the tokens that stand for the patches of an image begin; None if there are none."""
    config = getattr(model, "config", None)
    names = ("image_token_id", "image_token_index")
    token = next((one for name in names if type(one := getattr(config, name, None)) is int), None)
    if ids is None or token is None:
        return None
    found: list[int | None] = []
    for row in ids:
        start = row.index(token) if token in row else 0
        whole = row.count(token) == patches and set(row[start : start + patches]) == {token}
        found.append(start if whole else None)
    return found if any(start is not None for start in found) else None


def _patch(module: nn.Module, channels: int) -> tuple[int, int] | None:
    """Height and width of what a module cuts images into; (1, 1) if it does not cut them without overlap."""
    if isinstance(module, nn.Conv2d) and module.in_channels == channels:
        step = module.stride
        return (int(step[0]), int(step[1])) if step == module.kernel_size else (1, 1)
    patch: Any = getattr(module, "patch", None)
    if hasattr(module, "cut") and getattr(module, "channels", None) == channels:  # of `sl.models`
        return int(patch[0]), int(patch[1])
    return None
