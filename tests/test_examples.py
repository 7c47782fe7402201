"""The examples run: scripts with a short training, notebooks from their first cell to their last."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from by_path import module_at

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
WHOLE = slice(None)


def example(name: str) -> ModuleType:
    return module_at(EXAMPLES / f"{name}.py")


# Notebooks


def test_there_is_a_notebook_for_each_group_of_lessons() -> None:
    """Every lesson is named in a notebook."""
    from sightline.lessons import LESSONS

    words = "".join(path.read_text("utf-8") for path in NOTEBOOKS)
    assert len(NOTEBOOKS) == 6
    assert [
        name for name in (*LESSONS, "dates", "ladder") if f"`{name}`" not in words and f" {name}" not in words
    ] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_whole(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert path.stat().st_size < 300_000
    assert "sightline-*.whl" in book.cells[1].source, "the first cell of code installs a wheel that lies beside"
    for cell in book.cells:
        assert "execution" not in cell.metadata, "no times of day"
    assert any(output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs), OUTPUTS
    assert book.cells[-2].source.startswith("## Checked")
    assert "assert" in book.cells[-1].source


OUTPUTS = "python examples/outputs.py stores what notebooks give"
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")


def said(cells: list) -> list[str]:
    """What the code of a notebook gives, as text; of a picture, that it is one."""
    found = []
    for cell in cells:
        for output in example("outputs").joined(cell.get("outputs", [])):
            data = output.get("data", {"text/plain": output.get("text", "")})
            text = "a picture" if "image/png" in data else "".join(data.get("text/plain", ""))
            found.append(re.sub(r"0x[0-9a-f]+", "0x", text))
    return found


# As in a new kernel: no names, nothing of ours imported, and the random numbers from their start.
AS_NEW = """
import sys, torch
for name in [name for name in sys.modules if name.partition(".")[0] == "sightline"]:
    del sys.modules[name]
torch.set_rng_state(torch.Generator().get_state())
%reset -f
"""


@pytest.fixture(scope="module")
def notebooks() -> Iterator[NotebookClient]:
    """One kernel for all notebooks: most of the time of a short one would go into importing torch and matplotlib."""
    # The kernel is a process of its own; one thread, as the tests have, and no look into the user's settings.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        started = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import sightline, torch")])
        resources = {"metadata": {"path": str(EXAMPLES)}}
        client = NotebookClient(started, timeout=240, kernel_name="python3", resources=resources)
        client.execute(cleanup_kc=False)
        yield client
        client._cleanup_kernel()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, notebooks: NotebookClient) -> None:
    book = nbformat.read(path, as_version=4)
    stored = said(book.cells)
    for cells in (nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(AS_NEW)]), book):
        notebooks.nb = cells
        notebooks.execute(cleanup_kc=False)
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 2
    noise = [output.text for output in outputs if output.get("name") == "stderr"]
    assert not noise
    given = said(book.cells)
    assert [NUMBER.sub("#", text).split() for text in given] == [NUMBER.sub("#", text).split() for text in stored], (
        OUTPUTS
    )
    # The last digits, and what a short training makes of them, may differ on another processor.
    for new, old in zip(given, stored):
        assert [float(x) for x in NUMBER.findall(new)] == pytest.approx(
            [float(x) for x in NUMBER.findall(old)], rel=0.05, abs=0.05
        ), OUTPUTS


# Patches


def test_pictures_are_their_own_mirror_images() -> None:
    patches = example("patches")
    images = patches.pictures(3, torch.Generator().manual_seed(0))
    assert images.shape == (3, 3, 64, 64)
    assert torch.equal(images, images.flip(-1))
    assert images.min() >= 0
    assert images.max() <= 1
    # Row after row: patch (2, 1) is number 17, and holds the pixels of its place.
    cut = images[0, :, 16:24, 8:16]
    assert torch.allclose(patches.patches(images)[0, 17], 4 * (cut.flatten() - 0.5))


def test_what_a_patch_looks_at_is_the_row_of_its_map() -> None:
    patches = example("patches")
    model, image = patches.Vision().double().eval(), patches.pictures(1, torch.Generator())[0].double()
    weights = patches.look(model, image)
    x = patches.patches(image[None])
    hidden = (torch.arange(64) == 17)[None]
    layer = model.encoder.layers[0]
    tokens = torch.where(hidden[..., None], model.unknown, model.embed(x))
    h = layer.attention_norm(model.encoder.positions(tokens))
    q, k = (linear(h).unflatten(-1, (4, 16)).transpose(1, 2) for linear in (layer.attention.query, layer.attention.key))
    expected = (q @ k.transpose(-1, -2) / 4).softmax(-1)[0, :, 17].unflatten(-1, (8, 8))
    torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=0)


def test_patches_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("patches").main(["--out", str(tmp_path / "p.svg"), "--steps", "3"])
    said = capsys.readouterr().out
    assert "untrained: the mirror image" in said
    assert (tmp_path / "p.svg").stat().st_size > 5000


# The globe


def test_fields_are_smooth_over_the_date_line() -> None:
    globe = example("globe")
    fields = globe.fields(200, torch.Generator().manual_seed(0))
    assert fields.shape == (200, 288)
    assert abs(fields.var().item() - 1) < 0.1
    table = fields.view(200, 12, 24)
    over_the_line = (table[:, :, 0] - table[:, :, -1]).abs().mean()
    elsewhere = (table[:, :, 1:] - table[:, :, :-1]).abs().mean()
    assert abs(over_the_line - elsewhere) < 0.1 * elsewhere


def test_distances_are_great_circles() -> None:
    globe = example("globe")
    found = globe.kilometres(globe.QUERY)
    latitude, longitude = map(math.radians, globe.QUERY)
    for (place_latitude, place_longitude), distance in zip(globe.PLACES.tolist(), found.tolist()):
        a, b = math.radians(place_latitude), math.radians(place_longitude)
        half = math.sin((a - latitude) / 2) ** 2 + math.cos(a) * math.cos(latitude) * math.sin((b - longitude) / 2) ** 2
        assert distance == pytest.approx(6371 * 2 * math.asin(math.sqrt(min(1.0, half))), abs=8)


def test_the_globe_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("globe").main(["--out", str(tmp_path / "g.png"), "--steps", "3"])
    assert "across the date line" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g-field.png", "g-sphere.png", "g.png"]
