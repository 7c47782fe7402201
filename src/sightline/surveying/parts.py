"""A survey on disk: a folder of Parquet parts, each named by its texts, each whole or absent, and what they are of.

Who goes on where another stopped reads which texts are in the parts, and does the others. Two who write at once would
write rows twice, so a driver holds a lock, and its workers another one, which a new driver waits for.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from sightline.errors import InputError, SightFileError, missing
from sightline.files import make_folder, parse_json, read_bytes, write_whole
from sightline.surveying.heads import MEASURES
from sightline.surveying.texts import Text

ABOUT, FORMAT = "survey.json", "sightline-survey"
_DRIVER, _WORKERS = ".driver.lock", ".workers.lock"
_PATIENCE = 60.0


def arrow() -> Any:
    """pyarrow, or an error that names the extra."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise missing("a survey", "survey", error) from error
    return pyarrow


def schema() -> Any:
    """The columns of every part."""
    pa = arrow()
    words = pa.list_(pa.string())
    link = pa.struct(
        [
            ("query", pa.int32()),
            ("key", pa.int32()),
            ("weight", pa.float64()),
            ("query_context", words),
            ("key_context", words),
        ]
    )
    return pa.schema(
        [
            ("key", pa.string()),
            ("name", pa.string()),
            ("layer", pa.string()),
            ("number", pa.int32()),
            ("head", pa.int32()),
            ("tokens", pa.int32()),
            *((shown.name, pa.float64()) for shown in MEASURES),
            ("spans", pa.list_(pa.struct([("name", pa.string()), ("share", pa.float64())]))),
            ("links", pa.list_(link)),
            ("error", pa.string()),
        ]
    )


def part_name(texts: Sequence[Text]) -> str:
    """The name of the part of some texts: by their content, so that the same texts make the same file."""
    return f"part-{hashlib.sha256(' '.join(text.key for text in texts).encode()).hexdigest()[:24]}.parquet"


def write_part(folder: Path, texts: Sequence[Text], rows: Sequence[dict[str, Any]]) -> Path:
    """The rows of some texts as one file, which appears whole."""
    pa = arrow()
    clean = [{name: _clean(value) for name, value in row.items()} for row in rows]
    table = pa.Table.from_pylist(clean, schema=schema())
    path = folder / part_name(texts)
    write_whole(path, lambda temporary: pa.parquet.write_table(table, temporary, compression="zstd"))
    return path


def _clean(value: Any) -> Any:
    """Text that a file can hold: what is no character is shown as a sign."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if isinstance(value, dict):
        return {name: _clean(one) for name, one in value.items()}
    return value


def read_rows(folder: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """All rows of a survey, in the order of the parts' names."""
    pa = arrow()
    found: list[dict[str, Any]] = []
    for path in parts(folder):
        try:
            found += pa.parquet.read_table(path, columns=columns, schema=None).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise SightFileError(
                f"{path.name} is damaged", expected="a Parquet file", got=str(error)[:200], hint="remove it, and go on"
            ) from error
    return found


def parts(folder: Path) -> list[Path]:
    """The whole parts of a survey. Files that were being written have names that begin with a dot."""
    return sorted(folder.glob("part-*.parquet"))


def done(folder: Path) -> set[str]:
    """The keys of the texts that are in the parts."""
    return {row["key"] for row in read_rows(folder, ["key"])}


def check_folder(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse a folder that holds something else, or a survey of other settings, before anything is written there."""
    if folder.exists() and not folder.is_dir():
        raise InputError("a survey is a folder", expected="a new folder", got=str(folder), hint="another path")
    if (folder / ABOUT).exists():
        before = read_about(folder)["settings"]
        other = sorted(name for name in settings.keys() | before.keys() if settings.get(name) != before.get(name))
        if other and parts(folder):  # a survey that was ended before its first part may begin anew
            raise InputError(
                "the folder holds another survey",
                expected=", ".join(f"{name}={before.get(name)!r}" for name in other),
                got=", ".join(f"{name}={settings.get(name)!r}" for name in other),
                hint="the same settings to go on, or another folder",
            )
    elif folder.exists() and any(one.name not in (_DRIVER, _WORKERS) for one in folder.iterdir()):
        raise InputError(
            "the folder holds something else",
            expected="a new or empty folder, or a survey to go on with",
            got=f"{folder.name} without {ABOUT}",
            hint="another path",
        )


def begin(folder: Path, settings: dict[str, Any]) -> None:
    """Make the folder, or go on with one of the same settings; another one is refused."""
    check_folder(folder, settings)
    make_folder(folder)
    about = json.dumps({"format": FORMAT, "version": 1, "settings": settings}, indent=1)
    write_whole(folder / ABOUT, lambda path: path.write_text(about, "utf-8"))
    _clear(folder)


def _clear(folder: Path) -> None:
    """Remove what a driver or worker was writing when it was killed."""
    for old in folder.glob(".*.part.*"):
        old.unlink(missing_ok=True)


def read_about(folder: Path) -> dict[str, Any]:
    """What a survey is of."""
    try:
        said = parse_json(read_bytes(folder / ABOUT, 1 << 20))
        if not isinstance(said, dict) or said.get("format") != FORMAT or not isinstance(said.get("settings"), dict):
            raise ValueError("the description of something else")
    except (OSError, ValueError) as error:
        raise SightFileError(
            f"{folder.name} is not a survey",
            expected=ABOUT,
            got=str(error)[:200],
            hint="sightline survey TEXTS --out OUT",
        ) from error
    return said


@contextmanager
def driving(folder: Path, settings: dict[str, Any]) -> Iterator[str]:
    """Be the one who writes this survey, and begin it: refused while another does, after its workers are gone.

    Gives a word by which workers know their driver. What ends before its first part leaves nothing behind.
    """
    check_folder(folder, settings)
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    make_folder(folder)
    with _locked(folder / _DRIVER, 0.0) as file:
        if file is None:
            raise InputError(
                "another survey writes to this folder",
                expected="one at a time",
                got=str(folder),
                hint="wait for it, or another folder",
            )
        try:
            driver = _without_workers(folder)
            begin(folder, settings)
            yield driver
        except BaseException:
            if not parts(folder):
                _clear(folder)
                for name in (ABOUT, _WORKERS, _DRIVER):
                    (folder / name).unlink(missing_ok=True)
                with suppress(OSError):  # somebody put something there: what went wrong is to be told, not this
                    for one in made:
                        one.rmdir()
            raise


@contextmanager
def _locked(path: Path, patience: float) -> Iterator[Any]:
    """A file that nobody else has locked, for as long as the block lasts; None if others keep it."""
    end = time.monotonic() + patience
    while True:
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() >= end:
                    yield None
                    return
            else:
                # Whoever had it may have removed it.
                if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                    yield file
                    return
        time.sleep(0.1)


def _without_workers(folder: Path) -> str:
    """Wait for the workers of drivers that are gone, and write down who drives now: those who come later see it."""
    with _locked(folder / _WORKERS, _PATIENCE) as file:
        if file is None:
            raise InputError(
                "workers of a survey that ended still write to this folder",
                expected="them to be gone",
                got=str(folder),
                hint="end them, and start again",
            )
        driver = token_hex(8)
        file.truncate(0)
        file.write(driver)
        file.flush()
    return driver


def working(folder: Path, driver: str) -> int:
    """Be one of the workers, until this process ends: a driver that comes later waits for that."""
    handle = os.open(folder / _WORKERS, os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_SH)
    if os.pread(handle, 64, 0).decode() != driver:
        os.close(handle)
        raise InputError(
            "the survey of this worker has ended", expected="its driver", got="another one", hint="end this worker"
        )
    return handle
