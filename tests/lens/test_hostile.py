"""No file makes loading slow, large, or fail in other words than ours."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import sightline as sl
from cases import inputs
from hostile import in_a_process
from sightline.errors import SightFileError


def saved(path: Path, **options: Any) -> Path:
    q, k, _ = inputs(2, heads=4, kv_heads=2, dtype=torch.float32)
    stats = (
        "entropy",
        "received",
        sl.Top(2),
        sl.Picture(3, 3),
        sl.Picture(cell=(2, 3), rows=slice(1, 5), reduce="max"),
    )
    sl.look(q, k, **options, stats=stats).save(path)
    return path


MASK = (sl.causal() & sl.documents(torch.arange(6) // 2)) | ~(
    sl.padding([4, 6]) & sl.prefix(1) & sl.dense(torch.eye(6) > 0)
)


def test_any_part_of_the_description_may_be_anything(tmp_path: Path) -> None:
    path = saved(tmp_path / "good.sight", mask=MASK, bias=sl.alibi(4), softcap=3.0, sinks=torch.zeros(4))
    found = in_a_process(Path(__file__).with_name("read_hostile.py"), path)
    assert found["wrong"] == []
    assert found["tried"] > 1000
    assert found["refused"] > 0.9 * found["tried"]


def described(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    with safe_open(str(path), framework="pt") as file:
        about = json.loads(file.metadata()["sightline"])
        return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def refused(path: Path) -> str:
    start = time.perf_counter()
    with pytest.raises(SightFileError) as caught:
        sl.Sight.load(path)
    assert time.perf_counter() - start < 2.0
    text = str(caught.value)
    assert text.startswith(f"{path.name} is not a sight\n  expected: a whole file written by Sight.save\n  got: ")
    return text.split("got: ")[1].split("\n")[0]


def nested(depth: int) -> dict[str, Any]:
    mask: dict[str, Any] = {"is": "prefix", "n": 1}
    for _ in range(depth):
        mask = {"is": "&", "left": mask, "right": {"is": "prefix", "n": 2}}
    return mask


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "alibi of millions": ({"bias": {"alibi": 30_000_000}}, "bias.alibi: 30000000 heads for 4"),
    "a picture of 1e8 pixels": (
        {"kept": [{"picture": [[10**8, 1], None, None, None, "mean", False]}]},
        "kept.0.0: the shape (2, 4, 6) instead of (2, 4, 100000000, 1)",
    ),
    "a cell of 0": ({"kept": [{"picture": [None, [0, 1], None, None, "mean", False]}]}, "kept.0.picture: 0 instead of"),
    "rows beyond the map": (
        {"kept": [{"picture": [[3, 3], None, [0, 7], None, "mean", False]}]},
        "kept.0.picture.rows: 7 instead of",
    ),
    "the strongest 1e9": ({"kept": [{"top": 10**9}]}, "kept.0.0: the dtype torch.float32 instead of int64"),
    "a statistic twice": ({"kept": ["entropy", "entropy"]}, "kept.1: entropy twice"),
    "a window of 1e30": (
        {"mask": {"is": "band", "left": 10**30, "right": 0, "align": "end"}},
        "mask.left: a whole number of about 31 digits instead of",
    ),
    "a prefix below 0": ({"mask": {"is": "prefix", "n": -1}}, "mask.n: -1 instead of a whole number from 0"),
    "400 masks inside masks": ({"mask": nested(400)}, "masks inside masks, more than 100 deep"),
    "a soft-cap of 1e400": ({"softcap": 10**400}, "softcap: a whole number of about 401 digits"),
    "sizes below 0": ({"sizes": [[2], 4, 2, -6, 6, 4, 4]}, "sizes.queries: -6 instead of"),
    "sizes that are true": ({"sizes": [[2], 4, True, 6, 6, 4, 4]}, "sizes.kv_heads: True instead of"),
    "flat as a number": ({"flat": 1}, "flat: 1 instead of true or false"),
    "flat with heads": ({"flat": True}, "flat: 4 heads"),
    "a normalizer of a megabyte": ({"normalizer": "a" * 900_000}, f"normalizer: {'a' * 60}… instead of one of softmax"),
    "a field of ours": ({"sight": 1}, "description.sight: unknown"),
    "a mask of a statistic": (
        {"mask": {"is": "documents", "ids": "row", "key_ids": None}},
        "row: the dtype torch.float32 instead of int64",
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_refusal_names_the_field(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.sight")
    about, tensors = described(path)
    change, words = FIELDS[name]
    save_file(tensors, path, metadata={"sightline": json.dumps(about | change)})
    assert words in refused(path)


TENSORS: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "rows of booleans": (
        {"row": torch.ones(2, 4, 6, dtype=torch.bool)},
        "row: the dtype torch.bool instead of float32",
    ),
    "rows in half": ({"row": torch.ones(2, 4, 6, dtype=torch.float16)}, "row: the dtype torch.float16"),
    "rows wider than q": ({"row": torch.ones(2, 4, 6, dtype=torch.float64)}, "the dtype"),
    "a statistic of whole numbers": ({"kept.0.0": torch.ones(2, 4, 6, dtype=torch.int64)}, "kept.0.0: the dtype"),
    "keys that are not there": (
        {"kept.2.0": torch.full((2, 4, 6, 2), 6)},
        "kept.2.0: keys from 6 to 6 of 6",
    ),
    "keys below -1": ({"kept.2.0": torch.full((2, 4, 6, 2), -2)}, "kept.2.0: keys from -2 to -2 of 6"),
    "a tensor that nothing names": ({"more": torch.ones(100_000)}, "more: a tensor that nothing names"),
    "sinks of whole numbers": ({"sinks": torch.ones(4, dtype=torch.int32)}, "sinks: the dtype torch.int32"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_what_they_must_be(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.sight")
    about, tensors = described(path)
    assert [written if isinstance(written, str) else list(written) for written in about["kept"]][2] == ["top"]
    change, words = TENSORS[name]
    save_file(tensors | change, path, metadata={"sightline": json.dumps(about)})
    assert words in refused(path)


def test_an_empty_map_does_not_have_millions_of_heads(tmp_path: Path) -> None:
    """No tensor of it takes a byte, so none bounds it."""
    path = tmp_path / "x.sight"
    q = torch.randn(0, 4, 6, 4)
    sl.look(q, q, bias=sl.alibi(4)).save(path)
    assert sl.Sight.load(path).shape == (0, 4, 6, 6)
    about, _ = described(path)
    heads = 30_000_000
    about |= {"bias": {"alibi": heads}, "sizes": [[0], heads, heads, 6, 6, 4, 4]}
    tensors = {"row": torch.zeros(0, heads, 6), "q": torch.zeros(0, heads, 6, 4), "k": torch.zeros(0, heads, 6, 4)}
    save_file(tensors, path, metadata={"sightline": json.dumps(about)})
    assert "sizes: 30000000 heads of an empty map" in refused(path)


@pytest.mark.parametrize("size", [2**63 - 1, 2**40, 9 << 20, 8])
def test_a_header_larger_than_the_file_or_than_any_of_ours(size: int, tmp_path: Path) -> None:
    path = tmp_path / "x.sight"
    path.write_bytes(size.to_bytes(8, "little") + b"{}" + b" " * 4)
    os.truncate(path, min(size + 8, 16 << 20) - (size == 8))  # sparse: it takes no room
    assert "header" in refused(path)


def test_a_description_of_many_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "x.sight"
    save_file({"row": torch.ones(1)}, path, metadata={"sightline": "[" + "[]," * 1_000_000 + "0]"})
    assert refused(path) == "a description of 3,000,003 bytes, more than 1,048,576"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket", "link to a pipe"])
def test_only_plain_files_are_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    path = Path("x.sight")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo("pipe")
        path.symlink_to("pipe")
    assert refused(path) == "a folder, a pipe or a device, not a plain file"


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.sight")
    (tmp_path / "link").symlink_to(path)
    assert torch.equal(sl.Sight.load(tmp_path / "link").lse, sl.Sight.load(path).lse)


def test_deep_masks_are_refused_when_they_are_saved(tmp_path: Path) -> None:
    """What is written can be read."""
    mask: sl.Mask = sl.prefix(1)
    for _ in range(100):
        mask = mask & sl.prefix(2)
    q, k, _ = inputs(1)
    sl.look(q, k, mask=mask).save(tmp_path / "x.sight")
    assert str(sl.Sight.load(tmp_path / "x.sight").call.mask) == str(mask)
    with pytest.raises(sl.errors.InputTypeError, match="at most 100 deep"):
        sl.look(q, k, mask=mask & sl.prefix(2)).save(tmp_path / "y.sight")
    assert [path.name for path in tmp_path.iterdir()] == ["x.sight"]
