"""Where the package keeps what it can make again."""

from __future__ import annotations

from pathlib import Path

import pytest

from sightline.folders import cache_folder


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.setenv("SIGHTLINE_CACHE", "")
    assert cache_folder() == tmp_path / "xdg" / "sightline"
    monkeypatch.setenv("HOME", str(tmp_path))
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert cache_folder() == tmp_path / ".cache" / "sightline"
