"""Load a saved sight with every part of its description changed, under a limit on memory; run by test_hostile.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import sightline as sl
from hostile import try_all


def main(path: Path) -> None:
    torch.set_num_threads(1)
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    about = json.loads(header["__metadata__"]["sightline"])
    changed = path.with_name("changed.sight")

    def read(text: str) -> None:
        written = json.dumps(header | {"__metadata__": {"sightline": text}}).encode()
        changed.unlink(missing_ok=True)  # a file written over would wait for the disk
        changed.write_bytes(len(written).to_bytes(8, "little") + written + content[end:])
        sight = sl.Sight.load(changed)
        # What loads can be asked: the same map, whatever the change was.
        assert sight.shape == (2, 4, 6, 6)
        repr(sight)
        sight.entropy, sight.total, sight.received(), sight.top(2), sight.picture(size=(3, 3), visible_only=True)
        sight.tile(slice(None), slice(None))

    read(json.dumps(about))
    print(json.dumps(try_all(about, read)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
