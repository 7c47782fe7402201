"""A corpus: texts with names, from a folder, JSONL, Parquet, a dataset of Hugging Face on disk, or a list."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from sightline.errors import InputError, InputTypeError, missing

# A file of a folder that is no text is named in an error row; one larger than this is not even read.
_LARGEST = 64 << 20
_SUFFIXES = (".txt", ".md", ".text")


class Text(NamedTuple):
    """One text of a corpus. `spans` are parts of it by name, from a character to another.

    >>> Text("hamlet.txt", "To be, or not to be").key
    '15cd26a70489c49f'
    """

    name: str
    text: str
    spans: dict[str, tuple[int, int]] | None = None
    problem: str | None = None  # why there is no text

    @property
    def key(self) -> str:
        """What the text is known by: a hash of its name and content."""
        said = json.dumps([self.name, self.text, self.spans or {}, self.problem], sort_keys=True)
        return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read(source: Any, column: str = "text", cut: int | None = None, limit: int | None = None) -> list[Text]:
    """The texts of a corpus, in a fixed order; each of them once. What cannot be read is a text with its problem.

    `cut` divides texts into pieces of about so many characters, at the end of a line where there is one.

    >>> [text.name for text in read(["one", "two"])]
    ['0', '1']
    """
    found: list[Text] = []
    known: set[str] = set()
    for whole in _texts(source, column):
        for text in _pieces(whole, cut):
            if text.key not in known:
                known.add(text.key)
                found.append(text)
            if limit is not None and len(found) >= limit:
                return _readable(found, column)
    return _readable(found, column)


def _readable(found: list[Text], column: str) -> list[Text]:
    """The texts, if there are some, and at least one of them can be run."""
    if not found:
        raise InputError("there are no texts", expected="at least one", got="none", hint="a folder")
    if all(text.problem is not None for text in found):
        raise InputError(
            "none of the texts can be read",
            expected=f"texts in {column!r}",
            got=f"{found[0].name}: {found[0].problem}",
            hint="column=…, if it has another name",
        )
    return found


def _texts(source: Any, column: str) -> Iterator[Text]:
    if isinstance(source, str | PathLike):
        path = Path(source)
        if not path.exists():
            raise InputError(
                "there are no such texts",
                expected="a folder, .jsonl, .parquet, or a dataset on disk",
                got=str(path),
                hint="a path that exists; a single text is [text]",
            )
        yield from _of_path(path, column)
        return
    if not isinstance(source, Iterable):
        raise InputTypeError(
            "these are no texts",
            expected="a path, or strings",
            got=type(source).__name__,
            hint='sl.survey("smollm2", ["a text", "another"], out)',
        )
    for number, one in enumerate(source):
        if isinstance(one, Text):
            yield one
        elif isinstance(one, Mapping):
            yield _record(one, column, str(number))
        else:
            yield _as_text(one, str(number))


def _of_path(path: Path, column: str) -> Iterator[Text]:
    suffix = path.suffix.lower()
    if path.is_dir():
        arrows = sorted(path.rglob("*.arrow"))
        tables = sorted(path.rglob("*.parquet"))
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix.lower() in _SUFFIXES)
        if (path / "dataset_info.json").exists() or (path / "state.json").exists() or (arrows and not files):
            yield from _of_tables(arrows, path, column)
        elif tables and not files:
            yield from _of_tables(tables, path, column)
        else:
            for file in files:
                yield _of_file(file, str(file.relative_to(path)))
    elif suffix in (".jsonl", ".ndjson"):
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
            for number, line in enumerate(lines):
                if line.strip():
                    yield _of_line(line, column, f"{path.name}:{number + 1}")
    elif suffix in (".parquet", ".arrow"):
        yield from _of_tables([path], path.parent, column)
    else:
        yield _of_file(path, path.name)


def _of_file(file: Path, name: str) -> Text:
    try:
        if file.stat().st_size > _LARGEST:
            return Text(name, "", problem=f"larger than {_LARGEST:,} bytes")
        return Text(name, file.read_text("utf-8-sig"))  # a mark of the encoding is no part of the text
    except (OSError, UnicodeDecodeError) as error:
        return Text(name, "", problem=f"{type(error).__name__}: {error}"[:300])


def _of_line(line: str, column: str, name: str) -> Text:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Text(name, "", problem=f"not JSON: {error}"[:300])
    return _record(said, column, name) if isinstance(said, dict) else _as_text(said, name)


def _of_tables(files: Sequence[Path], folder: Path, column: str) -> Iterator[Text]:
    """The rows of Parquet files, or of the Arrow files that the datasets library writes."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise missing("a table of texts", "survey", error) from error
    for file in files:
        name = str(file.relative_to(folder))
        try:
            table = _table(file)
        except (OSError, pyarrow.ArrowException) as error:
            raise InputError(
                f"{name} cannot be read",
                expected="a table in the format of its ending",
                got=str(error)[:200],
                hint="a file that is whole",
            ) from error
        if column not in table.column_names:
            raise InputError(
                f"{name} has no column of texts",
                expected=f"a column {column!r}",
                got=", ".join(table.column_names[:12]),
                hint=f"column={table.column_names[0]!r}" if table.column_names else "another file",
            )
        wanted = [one for one in (column, "id", "name", "spans") if one in table.column_names]
        for number, row in enumerate(table.select(wanted).to_pylist()):
            yield _record(row, column, f"{name}:{number}")


def _table(file: Path) -> Any:
    import pyarrow

    if file.suffix == ".parquet":
        return pyarrow.parquet.read_table(file)
    with pyarrow.memory_map(str(file)) as source:
        try:
            return pyarrow.ipc.open_stream(source).read_all()
        except pyarrow.ArrowInvalid:  # the file format, with its magic in front
            return pyarrow.ipc.open_file(source).read_all()


def _record(said: Mapping[str, Any], column: str, name: str) -> Text:
    named = said.get("name", said.get("id"))
    name = name if named is None else str(named)
    if column not in said:
        return Text(name, "", problem=f"no {column!r} among {', '.join(map(str, said))}"[:300])
    text = _as_text(said[column], name)
    try:
        spans = {str(key): (int(pair[0]), int(pair[1])) for key, pair in (said.get("spans") or {}).items() if pair}
    except (AttributeError, TypeError, ValueError, IndexError, OverflowError):
        return Text(name, "", problem=f"spans are {{name: [start, stop]}}: {said.get('spans')!r}"[:300])
    outside = [key for key, (start, stop) in spans.items() if not 0 <= start < stop <= len(text.text)]
    if outside and text.problem is None:
        return Text(name, "", problem=f"the span {outside[0]!r} is not inside of the text: {spans[outside[0]]}"[:300])
    return text._replace(spans=spans)


def _as_text(said: Any, name: str) -> Text:
    if not isinstance(said, str):
        return Text(name, "", problem=f"no text, but {type(said).__name__}")
    return Text(name, said)


def _pieces(text: Text, cut: int | None) -> Iterator[Text]:
    """A long text in pieces that end with a line; spans stay with the piece that holds them whole."""
    if cut is None or len(text.text) <= cut:
        yield text
        return
    start = number = 0
    while start < len(text.text):
        stop = min(start + cut, len(text.text))
        line = text.text.rfind("\n", start + cut // 2, stop)
        stop = line + 1 if line >= 0 and stop < len(text.text) else stop
        inside = {
            name: (first - start, last - start)
            for name, (first, last) in (text.spans or {}).items()
            if start <= first and last <= stop
        }
        if text.text[start:stop].strip():
            yield Text(f"{text.name}#{number}", text.text[start:stop], inside)
            number += 1
        start = stop
    if not number:
        yield Text(text.name, "", problem="no text, but spaces")
