"""Pages that stand alone: one file, no network, readable on a phone, in the dark and on paper.

Vectors and maps are small pictures whose zero is transparent, so that they fit a light and a dark page alike.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import struct
import zlib
from collections.abc import Collection, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from sightline.files import write_whole
from sightline.steps.labels import shown
from sightline.steps.numbers import number, weight

__all__ = [
    "check_target",
    "code",
    "escape",
    "fragment",
    "heat",
    "label",
    "page",
    "picture",
    "rich_text",
    "table",
    "vector",
    "write",
]

# Orange above zero, blue below, as in the explorer: told apart by the colour-blind, readable on black and on white.
ABOVE, BELOW = (230, 126, 34), (43, 131, 216)
# Letters with an index below or above.
_LOWERED = re.compile(r"\b([A-Za-z]|omega|alpha)_([a-z0-9]{1,2})\b")
_RAISED = re.compile(r"\b([A-Za-z])\^([A-Za-z0-9])\b")
# Maps with more rows or columns are pictures without numbers.
_ROWS, _COLUMNS = 40, 24


def page(title: str, body: str) -> str:
    """A whole page. Its own policy forbids it to fetch anything.

    >>> page("Steps", "<p>z</p>").startswith("<!doctype html>")
    True
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(shown(title))}</title>\n<style>{_style()}</style></head>\n"
        f'<body><main class="sightline">\n<h1>{escape(shown(title))}</h1>\n{body}\n</main></body></html>\n'
    )


def fragment(body: str) -> str:
    """The same inside another page: a notebook."""
    return f'<style>{_style()}</style><div class="sightline">{body}</div>'


def _style() -> str:
    return files("sightline.steps").joinpath("page.css").read_text(encoding="utf-8")


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise an OSError that names the file if a page cannot be written there, before any work is done."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target.parent))


def write(path: str | os.PathLike[str], text: str) -> None:
    """Write a file that appears whole or not at all."""
    check_target(path)
    target = Path(path)
    try:
        write_whole(
            target, lambda file: file.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        )
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(target)) from error


def rich_text(text: str) -> str:
    """A sentence with `code` and **strong** words in it; x_i and a^1 get an index.

    >>> rich_text("`q_i` is **not** <k_j>, nor keep_it")
    '<code>q_i</code> is <strong>not</strong> &lt;k<sub>j</sub>&gt;, nor keep_it'
    """
    parts = escape(text, quote=False).split("`")
    for i, part in enumerate(parts):
        if i % 2 and i < len(parts) - 1:
            parts[i] = f"<code>{part}</code>"
        else:
            part = _RAISED.sub(r"\1<sup>\2</sup>", _LOWERED.sub(r"\1<sub>\2</sub>", part))
            bold = part.split("**")
            parts[i] = "".join(f"<strong>{b}</strong>" if j % 2 else b for j, b in enumerate(bold))
    return "".join(parts)


def label(word: str) -> str:
    """A token, kept apart from the direction of the text around it."""
    return f"<bdi>{escape(shown(word))}</bdi>"


def code(text: str) -> str:
    """Lines of code or of numbers, as they are."""
    return f"<pre>{escape(text)}</pre>"


def vector(x: Tensor, largest: float, count: int = 3, digits: int | None = None) -> str:
    """A vector as coloured cells, and its first numbers below."""
    numbers = [number(value, digits) for value in x[:count].tolist()]
    more = " …" if len(x) > count else ""
    if len(x) <= count:
        return f'<span class="numbers all">{" ".join(numbers)}</span>'
    text = f'<span class="numbers">{" ".join(numbers)}{more}</span>'
    # Past 64 numbers the cells are folded into more rows and made smaller.
    across = 16 if len(x) <= 64 else 32 if len(x) <= 256 else 64
    size = 6 if len(x) <= 64 else 4 if len(x) <= 256 else 3
    rows = -(-len(x) // across)
    grid = torch.zeros(rows * across)
    grid[: len(x)] = x.detach().cpu()
    about = f"{len(x)} numbers, from {number(x.min().item())} to {number(x.max().item())}"
    return _image(grid.view(rows, across), largest, across * size, about) + text


def picture(matrix: Tensor, largest: float, width: int, about: str) -> str:
    """A map as a picture, a pixel for each cell."""
    return _image(matrix.detach().cpu().float(), largest, width, about, "map")


def _image(matrix: Tensor, largest: float, width: int, about: str, kind: str = "vector") -> str:
    rows, columns = matrix.shape
    height = round(width * rows / max(columns, 1))
    data = base64.b64encode(_png(matrix, largest)).decode()
    return (
        f'<img class="{kind}" src="data:image/png;base64,{data}" width="{width}" height="{height}" '
        f'alt="{escape(about)}" title="{escape(about)}">'
    )


def _png(matrix: Tensor, largest: float) -> bytes:
    """A PNG whose colour is the sign and whose opacity is the size of each number."""
    matrix = matrix.cpu().nan_to_num(0.0, largest, -largest)  # a trained model's may lie on a GPU
    alpha = (matrix.abs() / (largest or 1.0)).clamp(0, 1).mul(255).round()
    colours = torch.where((matrix < 0)[..., None], torch.tensor(BELOW), torch.tensor(ABOVE))
    pixels = torch.cat((colours, alpha[..., None].long()), -1).to(torch.uint8)
    lines = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in pixels)
    rows, columns = matrix.shape

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def heat(
    matrix: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    hidden: Tensor | None = None,
    caption: str = "",
    digits: int | None = None,
    largest: float | None = None,
) -> str:
    """A matrix as a table of shaded numbers; a larger one as a picture. `hidden` cells are hatched."""
    found = matrix[matrix.isfinite()]
    largest = largest or (found.abs().max().item() if found.numel() else 1.0) or 1.0
    title = f"<figcaption>{rich_text(caption)}</figcaption>" if caption else ""
    if matrix.shape[0] > _ROWS or matrix.shape[1] > _COLUMNS:
        size = f"{matrix.shape[0]} rows, {matrix.shape[1]} columns"
        scale = max(1, 480 // matrix.shape[1])
        image = picture(matrix, largest, matrix.shape[1] * scale, f"{caption or 'a map'}: {size}")
        return f"<figure>{image}{title}</figure>"
    head = "".join(f'<th scope="col">{label(word)}</th>' for word in columns)
    lines = [f"<tr><td></td>{head}</tr>"]
    for i, word in enumerate(rows):
        cells = []
        for j, x in enumerate(matrix[i].tolist()):
            if hidden is not None and bool(hidden[i, j]):
                cells.append('<td class="hidden"></td>')
                continue
            share = min(abs(x) / largest, 1.0) if x == x and abs(x) != float("inf") else 0.0
            sign = " below" if x < 0 else ""
            cells.append(f'<td class="cell{sign}" style="--w:{share:.3f}">{weight(x, digits)}</td>')
        lines.append(f'<tr><th scope="row">{label(word)}</th>{"".join(cells)}</tr>')
    upright = " upright" if max(map(len, columns), default=0) > 5 else ""  # on a phone such words stand on end
    inner = f'<table class="heat{upright}">{"".join(lines)}</table>'
    return f'<figure><div class="wide" tabindex="0">{inner}</div>{title}</figure>'


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    footer: Sequence[str] = (),
    cards: bool = True,
    text: Collection[int] = (),
) -> str:
    """A table of cells that are HTML already; `text` are the columns of words, which stand to the left.

    With `cards`, each row becomes a card on a phone, with its headings beside it; else the table can be pushed aside.
    """
    names = [escape(_bare(heading)) for heading in headings]
    side = [' class="text"' if i in text else "" for i in range(len(headings))]

    def cells(row: Sequence[str]) -> str:
        first, *rest = row
        named = zip(names[1:], side[1:], rest, strict=True)
        others = "".join(f'<td data-label="{name}"{left}>{cell}</td>' for name, left, cell in named)
        return f'<tr><th scope="row">{first}</th>{others}</tr>'

    head = "".join(f'<th scope="col"{left}>{heading}</th>' for heading, left in zip(headings, side, strict=True))
    foot = f"<tfoot>{cells(footer)}</tfoot>" if footer else ""
    title = f"<caption>{rich_text(caption)}</caption>" if caption else ""
    body = "".join(cells(row) for row in rows)
    inner = f"{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}"
    return f'<div class="wide" tabindex="0"><table class="rows{" cards" if cards else ""}">{inner}</table></div>'


def _bare(html: str) -> str:
    """A heading without its marks, for an attribute."""
    out, inside = [], False
    for c in html.replace("<br>", " ").replace("<sub>", "_"):
        inside = (inside or c == "<") and c != ">"
        out.append("" if inside or c == ">" else c)
    return "".join(out)
