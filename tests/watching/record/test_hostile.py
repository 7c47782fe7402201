"""No folder makes loading slow, large, or fail in other words than ours."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from hostile import in_a_process
from sightline.errors import SightFileError
from sightline.watching import load, watch


@pytest.fixture
def folder(tmp_path):
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 5, 16)
    with torch.no_grad(), watch(layer, keep_qk=True) as seen:
        layer(x, x, x)
    seen.tokens = [list("abcde")]
    seen.meta |= {"text": "abcde", "spans": [[0, 1], [1, 2]], "loss": float("nan")}
    return seen.save(tmp_path / "run")


def refused(folder):
    with pytest.raises(SightFileError) as caught:
        load(folder)
    text = str(caught.value)
    assert text.startswith("run is not a watched run\n")
    return text.split("got: ")[1].split("\n")[0]


def put(folder, **changes):
    index = folder / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | changes))


def test_any_part_of_the_index_may_be_anything(folder):
    assert load(folder).meta["text"] == "abcde"
    found = in_a_process(Path(__file__).with_name("read_hostile.py"), folder)
    assert found["wrong"] == []
    assert found["tried"] > 1000
    assert found["refused"] > 0.5 * found["tried"]


def named(folder, what):
    """The name of a file of the first layer, `"file"` or `"rows"`, as the index has it."""
    return json.loads((folder / "index.json").read_text())["layers"][0][what]


@pytest.mark.parametrize("file", ["index", "file", "rows"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_plain_files_are_read(folder, file, kind):
    path = folder / ("index.json" if file == "index" else named(folder, file))
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    refused(folder)


def test_a_layer_that_becomes_a_pipe_is_not_waited_for(folder):
    seen = load(folder)
    for file in (named(folder, "file"), named(folder, "rows")):
        (folder / file).rename(folder.parent / file)
        os.mkfifo(folder / file)
        with pytest.raises(SightFileError, match="not a plain file"):
            seen.shares(0)
        (folder / file).unlink()
        (folder.parent / file).rename(folder / file)
    assert seen.shares(0)


def test_an_index_much_larger_than_its_tensors(folder):
    put(folder, meta={"text": "a" * (8 << 20)})
    assert "index.json: 8,38" in (words := refused(folder))
    assert "too large for what it is" in words
    (folder / "index.json").write_text("[" + "[]," * 3_000_000 + "0]")
    assert "too large for what it is" in refused(folder)


def test_an_index_that_could_not_be_read_is_not_written(tmp_path):
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 5, 16)
    with torch.no_grad(), watch(layer) as seen:
        layer(x, x, x)
    seen.tokens = [["a" * (8 << 20)]]
    with pytest.raises(ValueError, match="the tokens are too long for the run"):
        seen.save(tmp_path / "run")


def test_tensors_of_a_layer_are_what_they_must_be(folder):
    from safetensors.torch import load_file, save_file

    path = folder / named(folder, "rows")
    good = load_file(path)
    for change, words in (
        ({"first": good["first"] > 0}, "first: the dtype torch.bool"),
        ({"first": good["first"][:, :1]}, r"first: the shape \(1, 1, 5\) instead of \(1, 2, 5\)"),
        ({"real": torch.ones(1, 5)}, "real: the dtype torch.float32"),
        ({"more": torch.ones(1)}, "more: a tensor that nothing names"),
    ):
        save_file({name: t.clone() for name, t in (good | change).items()}, path)
        with pytest.raises(SightFileError, match=f"{path.name}: {words}"):
            load(folder).shares(0)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"complete": 1}, "complete: 1 instead of true or false"),
        ({"ids": [[1, 10**30]]}, "ids: a whole number of about 31 digits"),
        ({"meta": {"text": 3}}, "meta.text: 3 instead of a text"),
        ({"meta": {"spans": [[0, 1, 2]]}}, "meta.spans: a list of 3 instead of a list of 2"),
        ({"layers": {}}, "layers: a dict of 0 instead of a list"),
        ({"layers": [{}]}, "layers.0.name: missing"),
        ({"other": 1}, "index.other: unknown"),
    ],
)
def test_a_refusal_names_the_field(folder, change, words):
    put(folder, **change)
    assert words in refused(folder)


def test_doubled_keys_are_refused(folder):
    index = folder / "index.json"
    index.write_text(index.read_text()[:-1] + ', "complete": true}')
    assert "the key 'complete' twice" in refused(folder)
