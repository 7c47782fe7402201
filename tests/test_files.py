"""Files whole or not at all, on the disk, as readable as any other; and only plain files are read."""

from __future__ import annotations

import os
import re
import resource
import stat
import threading
from pathlib import Path

import pytest

import sightline
from sightline.errors import InputError
from sightline.files import make_folder, parse_json, read_bytes, size_of_file, write_whole


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002, 0o000])
def test_a_file_is_as_readable_as_any_other(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        (tmp_path / "plain").write_text("x")
        write_whole(tmp_path / "whole", lambda file: file.write_text("x"))
        # Writers that put a private file of their own in the place.
        write_whole(tmp_path / "other", lambda file: (file.unlink(), file.touch(0o600)))
    finally:
        os.umask(before)
    wanted = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert stat.S_IMODE((tmp_path / "whole").stat().st_mode) == wanted
    assert stat.S_IMODE((tmp_path / "other").stat().st_mode) == wanted


def test_nothing_asks_for_the_umask() -> None:
    """It can only be asked for by setting it, for all threads at once."""
    package = Path(sightline.__file__).parent
    found = [path.name for path in package.rglob("*.py") if re.search(r"\bumask\(", path.read_text(encoding="utf-8"))]
    assert found == []


def test_file_and_folder_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def noted(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else f"file of {os.fstat(handle).st_size}")
        sync(handle)

    def named(self: Path, target: Path) -> Path:
        done.append("name")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "replace", named)
    write_whole(tmp_path / "x", lambda file: file.write_text("abc"))
    assert done == ["file of 3", "name", "folder"]
    done.clear()
    write_whole(tmp_path / "x", lambda file: file.write_text("abc"), durable=False)
    assert done == ["name"]
    done.clear()
    make_folder(tmp_path / "a" / "b")
    assert done == ["folder", "folder"]
    make_folder(tmp_path / "a" / "b")
    assert len(done) == 2


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_a_failure_leaves_what_was_there(
    error: BaseException, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    def write(file: Path) -> None:
        file.write_text("half of it")
        if moment == "write":
            raise error

    if moment == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    elif moment == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    (tmp_path / "x").write_text("before")
    with pytest.raises(type(error)):
        write_whole(tmp_path / "x", write)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "before"


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_whole(tmp_path / "x", lambda file: file.write_bytes(bytes(1_000_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_pipes_and_folders_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(InputError, match=f"{name} cannot be written"):
            write_whole(tmp_path / name, lambda file: file.write_text("x"))
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    """Each has a temporary file of its own; the last one stays, whole."""
    texts = [letter * 10_000 for letter in "abcdefgh"]
    threads = [
        threading.Thread(target=write_whole, args=(tmp_path / "x", lambda file, text=text: file.write_text(text)))
        for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "x").read_text() in texts
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("file")
    assert size_of_file(tmp_path / "link") == 4
    assert read_bytes(tmp_path / "link", 4) == b"1234"
    assert read_bytes(tmp_path / "link", 1 << 60) == b"1234"  # no memory is taken for the limit
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(ValueError, match="not a plain file"):
            read_bytes(path, 10)
    with pytest.raises(ValueError, match="4 bytes, too large for what it is: at most 3"):
        read_bytes(tmp_path / "file", 3)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "nothing", 3)


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 1}', "NaN", "[Infinity]", "[-Infinity]", "[" * 100_000, b"\xff", "", "1" * 5000]
)
def test_json_that_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)


def test_numbers_that_are_none_on_request() -> None:
    assert str(parse_json("[NaN, -Infinity]", nan=True)) == "[nan, -inf]"
