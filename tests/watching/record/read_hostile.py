"""Load a saved run with every part of its index changed, under a limit on memory; run by test_hostile.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from hostile import try_all
from sightline.watching import load


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    index = folder / "index.json"
    content = json.loads(index.read_text())

    def read(text: str) -> None:
        index.unlink()  # a file written over would wait for the disk
        index.write_text(text)
        seen = load(folder)
        # What loads can be asked.
        repr(seen)
        for name in seen.layers:
            assert seen[name].shape == (1, 2, 5, 5)
            seen[name].entropy, seen.shares(name), seen.heads(name), seen.kind(name)
        seen.portraits()

    read(json.dumps(content))
    print(json.dumps(try_all(content, read)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
