"""What all pictures share: one style that leaves no trace, labels that can be read, files that are whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure

from sightline import plots
from sightline.errors import InputError, InputTypeError
from sightline.plots.canvas import labels, numbers, readable


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_matplotlib_is_imported_only_when_something_is_drawn() -> None:
    assert python("import sightline.plots, sys; assert 'matplotlib' not in sys.modules").returncode == 0


def test_without_matplotlib_the_extra_is_named() -> None:
    done = python("import sys; sys.modules['matplotlib'] = None; from sightline import plots; plots.map([[1.0]])")
    assert "MissingExtraError: pictures need matplotlib" in done.stderr
    assert "pip install 'sightline[plots]'" in done.stderr


def test_the_users_own_style_stays_and_does_not_show() -> None:
    with matplotlib.rc_context({"font.size": 33.0, "text.usetex": False}):
        figure = plots.map([[1.0, 0.0], [0.5, 0.5]], ["a", "b"])
        assert matplotlib.rcParams["font.size"] == 33.0
    assert figure.axes[0].get_yticklabels()[0].get_fontsize() == 8.0


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_picture_is_the_same_file(tmp_path: Path, ending: str) -> None:
    for name in ("one", "two"):
        plots.save(plots.map([[1.0, 0.0], [0.5, 0.5]], ["a", "b"]), tmp_path / f"{name}.{ending}")
    one, two = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("one", "two"))
    assert one == two
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"one.{ending}", f"two.{ending}"]


def test_svg_is_well_formed_and_keeps_its_words(tmp_path: Path) -> None:
    path = plots.save(plots.map(torch.eye(2), ["Zebra", "<b>&"]), tmp_path / "map.svg")
    words = "".join(ElementTree.parse(path).getroot().itertext())
    assert "Zebra" in words
    assert "<b>&" in words


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a name that ends in \.png, \.svg, \.pdf"):
        plots.save(plots.map([[1.0]]), tmp_path / "map.jpg")


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    figure = plots.map([[1.0]])
    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left"):
        plots.save(figure, tmp_path / "map.png")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        plots.save(plots.map([[1.0]]), tmp_path / "no" / "map.png")


def test_numbers_out_of_anything() -> None:
    half = torch.tensor([[0.5]], dtype=torch.bfloat16, requires_grad=True)
    assert numbers("weights", half, "[queries, keys]", (2,)).tolist() == [[0.5]]
    with pytest.raises(InputTypeError, match="weights must be numbers"):
        numbers("weights", "abc", "[queries, keys]", (2,))
    for wrong in (torch.zeros(3), torch.zeros(0, 3), torch.zeros(2, 2, 2)):
        with pytest.raises(InputError, match=r"expected: \[queries, keys\]"):
            numbers("weights", wrong, "[queries, keys]", (2,))


def test_labels_must_fit() -> None:
    assert labels("tokens", "ab", 2) == ["a", "b"]
    with pytest.raises(InputError, match="expected: 3 labels\n  got: 2"):
        labels("tokens", ["a", "b"], 3)


@pytest.mark.parametrize(
    "label, drawn", [("a$b$", r"a\$b\$"), ("", ""), ("  ", "␣␣"), ("\t", "⇥"), ("a" * 25, "a" * 23 + "…")]
)
def test_labels_can_be_read(label: str, drawn: str) -> None:
    assert readable(label) == drawn


def test_a_label_with_dollars_is_not_read_as_mathematics(tmp_path: Path) -> None:
    plots.save(plots.map(torch.eye(2), [r"$\frac{", "$x$"]), tmp_path / "map.svg")
    words = "".join(ElementTree.parse(tmp_path / "map.svg").getroot().itertext())
    assert r"$\frac{" in words
