"""What all pictures share: an empty figure in one style, numbers out of tensors, and files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sightline.errors import InputError, InputTypeError, MissingExtraError
from sightline.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

COLOURS = "magma"  # of weights: dark is none, light is much
LOWERS, RAISES = "#2166ac", "#e66101"  # of numbers with a sign: orange is positive
INK, FAINT = "#222222", "#8a8a8a"
MARK = "#00b4d8"  # what is pointed at: unlike every colour of magma
STYLE = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.facecolor": "white",
    "svg.fonttype": "none",  # letters stay letters: they can be searched, and the file is small
    "svg.hashsalt": "sightline",  # names inside the file are the same every time
}
FORMATS = ("png", "svg", "pdf")


@contextmanager
def style() -> Iterator[None]:
    """Draw in one style, and leave the user's own as it was."""
    try:
        import matplotlib.style
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "pictures need matplotlib", expected="matplotlib", got=str(error), hint="pip install 'sightline[plots]'"
        ) from None
    with matplotlib.style.context(["default", STYLE]):
        yield


def signed_colours() -> Colormap:
    """From blue, below 0, over white to orange."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("signed", [LOWERS, "#ffffff", RAISES])


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches that finds room for its labels by itself. It belongs to no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def numbers(name: str, values: Any, axes: str, dims: Sequence[int]) -> np.ndarray:
    """A tensor, array or list as float64 numbers with an allowed number of axes."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputTypeError(
            f"{name} must be numbers", expected=f"a tensor {axes}", got=type(values).__name__, hint="a tensor"
        ) from None
    if array.ndim not in dims or not array.size:
        raise InputError(
            f"{name} cannot be drawn", expected=axes, got=f"shape {array.shape}", hint="choose one of the batch"
        )
    return array


def labels(name: str, given: Sequence[str] | None, wanted: int) -> list[str] | None:
    """As many labels as there are rows or columns, fit to be drawn: blanks and line ends can be seen."""
    if given is None:
        return None
    if isinstance(given, str):
        given = list(given)
    if len(given) != wanted:
        raise InputError(
            f"{name} do not fit the weights", expected=f"{wanted} labels", got=len(given), hint="one for each token"
        )
    return [readable(str(label)) for label in given]


def readable(label: str, most: int = 24) -> str:
    """A label as it is drawn: short, on one line, blanks visible, and a dollar is a dollar.

    >>> readable("a\\n"), readable(" "), readable("x" * 30)
    ('a⏎', '␣', 'xxxxxxxxxxxxxxxxxxxxxxx…')
    """
    label = label.replace("\n", "\N{RETURN SYMBOL}").replace("\t", "\N{RIGHTWARDS ARROW TO BAR}")
    label = label if label.strip() else "\N{OPEN BOX}" * len(label)
    label = label if len(label) <= most else label[: most - 1] + "…"
    return label.replace("$", r"\$")


def ticks(axes: Axes, which: str, names: list[str] | None, count: int, most: int = 64) -> None:
    """Label every row or column; of many, every so many; without names, matplotlib counts."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if names is None:
        from matplotlib.ticker import MaxNLocator

        axis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
        return
    shown = range(0, count, -(-count // most))
    axis.set_ticks(list(shown), [names[i] for i in shown])
    axis.set_tick_params(length=0)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the ending of the name says how. The file appears whole or not at all, the same every time.

    >>> import sightline.plots as plots, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plots.save(plots.map([[1.0, 0.0], [0.5, 0.5]]), Path(folder, "map.svg")).stat().st_size > 1000
    True
    """
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise InputError(
            "unknown kind of picture",
            expected=f"a name that ends in {', '.join('.' + name for name in FORMATS)}",
            got=path.name,
            hint=f"{path.stem}.svg",
        )
    # Without the date of today the same picture is the same file.
    about = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]

    def draw(file: Path) -> None:
        figure.savefig(file, format=kind, dpi=160, metadata=about, bbox_inches="tight", pad_inches=0.06)

    with style():
        write_whole(path, draw)
    return path
