"""Run the notebooks and store what they give: python examples/outputs.py [NOTEBOOK ...]

What is stored is compared with a fresh run by the tests. Pictures are kept as they come, at the size of a screen.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent


def store(path: Path) -> None:
    """Execute a notebook in a kernel of its own, and write it with its outputs."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}).execute()
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.metadata.pop("execution", None)  # times of day
            cell.outputs = joined(cell.outputs)
    nbformat.write(book, path)


def joined(outputs: list) -> list:
    """What was printed, as one piece: a kernel sends it in as many as it likes."""
    whole: list = []
    for output in outputs:
        if whole and output.output_type == "stream" and whole[-1].get("name") == output.name:
            whole[-1].text += output.text
        else:
            whole.append(output)
    return whole


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # as in the tests: other numbers of threads give other last digits
    for name in sys.argv[1:] or sorted(HERE.glob("*.ipynb")):
        store(Path(name))
        print(Path(name).name)
