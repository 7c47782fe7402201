"""The sources of the page: one idea per file, as in the package."""

from __future__ import annotations

from pathlib import Path

WEB = Path(__file__).resolve().parents[2] / "web"
LONGEST_FILE = 400


def test_no_file_is_too_long() -> None:
    files = [path for folder in ("src", "test") for path in (WEB / folder).rglob("*.*") if path.name != "api.d.ts"]
    assert len(files) > 40, "no sources found: is this test where it should be?"
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FILE}
