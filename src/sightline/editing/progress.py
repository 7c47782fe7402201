"""How far a long piece of work has come, on a terminal: a bar of rich where that is installed, else lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Gives a function to be called after each of `total` steps. Nothing is shown where nobody looks."""
    if not sys.stderr.isatty() or total < 2:
        yield lambda: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        done = 0

        def step() -> None:
            nonlocal done
            done += 1
            if done == total or done * 10 // total > (done - 1) * 10 // total:
                print(f"{what}: {done} of {total}", file=sys.stderr)

        yield step
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
