"""`sightline steps`: the worked example for any sentence, and by a trained head; bad input is one clear message."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from sightline.cli import app as cli

KIDS = "The kids were scared of the lions, so they left right away."


def sightline(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.run(["steps", *arguments])
    if stopped.value.code:
        raise stopped.value


def refused(*arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.run(["steps", *arguments])
    assert isinstance(stopped.value.code, str)
    return stopped.value.code


def drawn(name: int, *shape: int) -> np.ndarray:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(name), dtype=torch.float64).numpy()


def two(x: float, digits: int) -> str:
    return f"{x:.{digits}f}".replace("-0." + "0" * digits, "0." + "0" * digits)


def test_every_digit_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["Action", "gets", "results"]
    sightline(" ".join(words))
    out = capsys.readouterr().out
    assert "Untrained" in out
    # The same in numpy alone: the random numbers are torch's, all else is ours.
    x = np.stack([drawn(zlib.crc32(word.encode()), 512) for word in words])
    q, k, v = (x @ w for w in drawn(1 << 32, 3, 512, 64) / math.sqrt(512))
    scores = q @ k.T
    weights = np.exp(scores / 8) / np.exp(scores / 8).sum(-1, keepdims=True)
    tables = out.partition("Who looks at whom")[0].split("Query: ")[1:]
    assert len(tables) == 3
    for i, (word, text) in enumerate(zip(words, tables, strict=True)):
        assert text.startswith(word)
        lines = [line.split() for line in text.splitlines()]
        rows = [line for line in lines if line and line[0] in words and len(line) > 2]
        assert len(rows) == 3
        for j, row in enumerate(rows):
            numbers = [two(value, 1) for vector in (q[i], k[j], v[j]) for value in vector[:3]]
            numbers += [two(scores[i, j], 2), two(scores[i, j] / 8, 2), two(weights[i, j], 3)]
            numbers += [two(weights[i, j] * value, 2) for value in v[j, :3]]
            assert row == [words[j], *numbers]
        z = weights[i] @ v
        assert next(line for line in lines if line[:1] == ["sum"]) == ["sum", "1.000", *(two(a, 2) for a in z[:3])]


def test_one_word_is_chosen_by_name_or_position(capsys: pytest.CaptureFixture[str]) -> None:
    sightline("Action gets results", "--query", "gets", "--query", "-1")
    assert re.findall("Query: (.*)", capsys.readouterr().out) == ["gets", "results"]
    sightline("10 20 30", "--query", "20")
    assert re.findall("Query: (.*)", capsys.readouterr().out) == ["20"]


def test_a_trained_head(capsys: pytest.CaptureFixture[str]) -> None:
    sightline(KIDS, "--model", "minilm", "--layer", "3", "--head", "1", "--query", "they")
    out = capsys.readouterr().out
    kids = next(line for line in out.splitlines() if line.strip().startswith("kids"))
    assert "0.814" in kids
    assert "/ 5.657" in out
    assert "12 heads side by side" in out


def test_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "steps.html"
    sightline("Action gets results", "--html", str(page))
    text = page.read_text(encoding="utf-8")
    assert text.count("Query: ") == 3
    assert "Untrained" in text
    assert not re.search(r"(?:src|href)=\"(?!data:)", text)
    assert "steps.html: 3 tables" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [page]


def test_text_from_the_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Action \xff gets")))
    sightline("-")
    assert re.findall("Query: (.*)", capsys.readouterr().out) == ["Action", "\ufffd", "gets"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a" * 10_000_000)))
    assert "too long" in refused("-")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((" ",), "there are no words"),
        (("a " * 5_000_000,), "too long"),
        (("a " * 5000,), "too many words"),
        (("a " * 100,), "every word would have a table of its own"),
        (("Action gets results", "--query", "lions"), "no token is this query"),
        (("Action gets results", "--query", "7"), "there is no query 7"),
        (("Action gets results", "--head", "1"), "there is no such head"),
        (("Action gets results", "--top", "0"), "top is too small"),
        (("Action gets results", "--seed", "-1"), "this is no seed"),
        (("Action gets results", "--html", "/no/such/folder/page.html"), "No such file"),
        (("Action gets results", "--html", "/"), "Is a directory"),
        (("Action gets results", "--model", "no-such-model"), "no-such-model"),
        ((KIDS, "--model", "minilm", "--layer", "6"), "there is no such layer"),
        ((KIDS, "--model", "minilm", "--layer", "-1"), "there is no such layer"),
        ((KIDS, "--model", "minilm", "--head", "12"), "there is no such head"),
    ],
)
def test_what_cannot_work_is_said(arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(*arguments)


def test_a_long_text_for_a_model_is_refused() -> None:
    message = refused("lions " * 2000, "--model", "minilm", "--query", "5")
    assert "too long for the model" in message
    assert "512" in message


def test_never_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from sightline.cli import main; main()", "steps", ""],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("sightline: there are no words")
    assert "Traceback" not in done.stderr
