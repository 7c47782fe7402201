"""What a worker does: holds the model, runs one text at a time, and writes the rows of a few texts as a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sightline.errors import InputError
from sightline.models import load
from sightline.surveying.heads import Wanted, check_able, error_row, rows_of
from sightline.surveying.parts import working, write_part
from sightline.surveying.texts import Text


class Order(NamedTuple):
    """Some texts to be done, one part of the survey. `give_up`: they ended workers before, and are not tried again."""

    texts: list[Text]
    give_up: bool = False


class Done(NamedTuple):
    """What came of an order."""

    texts: int
    errors: int


class Worker:
    """A model, and where what it says is written."""

    def __init__(
        self, model: Any, folder: Path, wanted: Wanted, driver: str, threads: int | None = 1, tokenizer: Any = None
    ) -> None:
        """`model`: a name or a folder, or a model, which needs a `tokenizer` of its own or beside it."""
        if threads is not None:
            # As many for every worker, however many there are: sums are then added up in the same order.
            torch.set_num_threads(threads)
        if isinstance(model, str):
            model, tokenizer = load(model)
        self.model, self.tokenizer = model.eval(), tokenizer or getattr(model, "tokenizer", None)
        self.folder, self.wanted = folder, wanted
        check_able(self.model, wanted)
        if self.tokenizer is None:
            raise InputError(
                "this model cannot read texts",
                expected="a model with a tokenizer",
                got="none",
                hint="sl.survey(model, texts, out, tokenizer=…)",
            )
        self.lock = working(folder, driver)  # at last: what is refused holds nothing

    def do(self, order: Order, still: Callable[[], bool] = lambda: True) -> Done:
        """Run the texts of an order and write their part. `still`: whether anybody still wants it."""
        rows: list[dict[str, Any]] = []
        for text in order.texts:
            if order.give_up:
                rows.append(error_row(text, "a worker that ran this text ended, twice: out of memory, or killed"))
            else:
                rows += rows_of(self.model, self.tokenizer, text, self.wanted)
            if not still():
                raise KeyboardInterrupt
        write_part(self.folder, order.texts, rows)
        return Done(len(order.texts), sum(row.get("error") is not None for row in rows))


def orders(texts: Sequence[Text], per_part: int, workers: int = 1) -> list[Order]:
    """Texts in groups of one part each, in their order: smaller ones where some workers would have none.

    >>> [len(order.texts) for order in orders([Text("a", "a")] * 8, per_part=8, workers=3)]
    [3, 3, 2]
    """
    per_part = max(1, min(per_part, -(-len(texts) // max(workers, 1))))
    return [Order(list(texts[i : i + per_part])) for i in range(0, len(texts), per_part)]
