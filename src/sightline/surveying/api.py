"""`sl.survey`: the heads of a model over a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from sightline.errors import InputError, InputTypeError
from sightline.models.checkpoints.builtin import BUILTINS
from sightline.surveying import local, on_ray, parts
from sightline.surveying.heads import Wanted, check_able
from sightline.surveying.identity import fingerprint, of_tokenizer
from sightline.surveying.texts import read as read_texts
from sightline.surveying.work import Done, Order, orders

ENGINES = ("local", "ray")
# Called with how many texts are done, of how many, and how many of them were errors.
Report = Callable[[int, int, int], None]


class Survey(NamedTuple):
    """A survey on disk.

    >>> Survey(Path("out"), 3, 1).folder.name
    'out'
    """

    folder: Path
    texts: int
    errors: int

    def rows(self) -> list[dict[str, Any]]:
        """Every row: one for each text and head, and one for each text that could not be run."""
        return parts.read_rows(self.folder)

    def table(self) -> Any:
        """The rows as a pyarrow Table."""
        return parts.arrow().parquet.read_table(parts.parts(self.folder))


def survey(
    model: str | PathLike | nn.Module,
    texts: Any,
    out: str | PathLike,
    engine: str = "local",
    *,
    workers: int = 1,
    column: str = "text",
    cut: int | None = None,
    limit: int | None = None,
    links: int = 3,
    generate: int = 0,
    influence: bool = False,
    per_part: int = 8,
    tokenizer: Any = None,
    report: Report | None = None,
) -> Survey:
    """Run a model over a corpus, one text a forward pass, and write what each head did: a Parquet data set.

    Of every text and head: the portrait (shares of the previous, first and same token, entropy, distance, induction,
    and retrieval where text is generated), how much went to each span, and the strongest links with their words. A text
    that cannot be run is a row with its error. Killed at any moment, the same call goes on where it was: parts appear
    whole, each is named by its texts, and no text is done twice. The rows are the same whichever engine does them.

    Args:
        model: a name or folder for `sl.models.load`; or a model, which is run in this process (`workers=0`).
        texts: a folder of texts, a .jsonl or .parquet file, a dataset of Hugging Face on disk, or strings; records
            have the text in `column`, a `name`, and `spans` as {name: [start, stop]} in characters.
        out: a folder: a new one, or a survey of the same settings to go on with.
        engine: `"local"`, processes of this machine, or `"ray"`, actors of Ray (the extra `ray`).
        workers: how many processes or actors; each has one thread.
        cut: divide longer texts into pieces of about so many characters.
        limit: take so many texts (or pieces) at most.
        links: how many links to keep of each text and head.
        generate: let the model write so many tokens after each text.
        influence: also how much each head raised the loss of the text, which takes a backward pass.
        per_part: texts of one file, at most: of fewer, if some workers would have none.
        tokenizer: of a model that has none.
        report: called with texts done, texts in all, and errors, as parts are written.

    >>> import tempfile
    >>> import sightline as sl
    >>> model, _ = sl.models.load("minilm")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = sl.survey(model, ["The kids left.", "So did the lions."], folder)
    ...     len(found.rows()), found.errors
    (144, 0)
    """
    if engine not in ENGINES:
        raise InputError("unknown engine", expected=" or ".join(ENGINES), got=repr(engine), hint='engine="local"')
    parts.arrow()
    name = _model_name(model)
    if not isinstance(model, str):
        workers = 0 if name is None else workers
    if name is None and engine == "ray":
        raise InputError(
            "Ray's actors load the model themselves",
            expected="a name or a folder",
            got=type(model).__name__,
            hint='"smollm2"',
        )
    for what, value, least in (
        ("workers", workers, 0),
        ("links", links, 0),
        ("generate", generate, 0),
        ("per_part", per_part, 1),
        ("cut", 1 if cut is None else cut, 1),
        ("limit", 1 if limit is None else limit, 1),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(
                f"{what} is a whole number", expected=f"{least} or more", got=repr(value), hint=f"{what}={least or 1}"
            )
    folder, wanted = Path(out), Wanted(links, generate, bool(influence))
    if isinstance(model, nn.Module):
        check_able(model, wanted)  # before anything is written
    found = read_texts(texts, column, cut, limit)
    settings = {
        "model": name or type(model).__name__,
        "weights": fingerprint(name or model),
        "cut": cut,
        "links": links,
        "generate": generate,
        "influence": bool(influence),
    }
    if name is None and tokenizer is not None:
        settings["tokenizer"] = of_tokenizer(tokenizer)
    with parts.driving(folder, settings) as driver:
        before = parts.done(folder)
        todo = orders([text for text in found if text.key not in before], per_part, workers)
        total, finished, errors = len(found), sum(text.key in before for text in found), 0
        tell = report or (lambda *_: None)
        tell(finished, total, errors)
        for one in _engine(engine, name or model, tokenizer, folder, todo, wanted, driver, workers):
            finished, errors = finished + one.texts, errors + one.errors
            tell(finished, total, errors)
    bad = sum(row["error"] is not None for row in parts.read_rows(folder, ["error"]))
    return Survey(folder, total, bad)


def _engine(
    engine: str, model: Any, tokenizer: Any, folder: Path, todo: list[Order], wanted: Wanted, driver: str, workers: int
) -> Iterator[Done]:
    if engine == "ray":
        yield from on_ray.run(model, folder, todo, wanted, driver, max(workers, 1))
    else:
        yield from local.run(model, tokenizer, folder, todo, wanted, driver, workers)


def _model_name(model: Any) -> str | None:
    """What workers load: None of a model that is there already."""
    if isinstance(model, nn.Module):
        return None
    if not isinstance(model, str | PathLike):
        raise InputTypeError(
            "this is no model",
            expected="a name, a folder with a checkpoint, or a torch.nn.Module",
            got=type(model).__name__,
            hint='"smollm2"',
        )
    name = str(model)
    if name not in BUILTINS and not Path(name).exists():
        raise InputError(
            f"there is no model {name!r}",
            expected=f"one of {', '.join(BUILTINS)}, or a folder with a checkpoint",
            got=name,
            hint='"smollm2"',
        )
    return name
