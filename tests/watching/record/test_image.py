"""The grid of patches, and the image that is saved with a run."""

from __future__ import annotations

import io
import json
import struct
import sys
import zlib
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn

import watch_cases as tiny
from sightline.errors import InputError, InputTypeError, MissingExtraError
from sightline.watching import load, watch
from sightline.watching.record.image import find_grid


def drawn(kind="PNG", size=(5, 3)):
    out = io.BytesIO()
    Image.new("RGB", size, (200, 30, 90)).save(out, kind)
    return out.getvalue()


def seen_image():
    model = tiny.model("vit")
    with torch.no_grad(), watch(model) as seen:
        model(**tiny.inputs("vit"))
    return seen


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_an_image_is_saved_and_loaded_with_its_grid(kind, tmp_path):
    seen, content = seen_image(), drawn(kind)
    assert seen.grid.rows * seen.grid.columns + seen.grid.first == seen[0].shape[-1]
    assert seen.grid.first == 1
    assert seen.image is None
    (tmp_path / "photo").write_bytes(content)
    for given in (content, tmp_path / "photo", str(tmp_path / "photo")):
        again = load(seen.save(tmp_path / "run", image=given))
        assert again.image.read_bytes() == content
        assert again.grid == seen.grid
    copied = load(again.save(tmp_path / "copy"))
    assert copied.image.read_bytes() == content
    assert load(seen.save(tmp_path / "run")).image is None  # what was there before is gone
    assert not list((tmp_path / "run").glob("image*"))


def huge():
    """A PNG that says it has more pixels than are taken."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", 9000, 9000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("wrong", [b"", b"GIF89a", drawn()[:-30], drawn("GIF"), huge()])
def test_what_is_no_image_is_refused_and_nothing_is_written(wrong, tmp_path):
    with pytest.raises(InputError, match="image"):
        seen_image().save(tmp_path / "run", image=wrong)
    assert not (tmp_path / "run").exists()


def test_other_things_and_a_missing_package_are_said(tmp_path, monkeypatch):
    seen, content = seen_image(), drawn()
    with pytest.raises(InputTypeError, match="a file or its bytes"):
        seen.save(tmp_path / "run", image=3)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match="plots"):
        seen.save(tmp_path / "run", image=content)


@pytest.mark.parametrize(
    "wrong", [{"image": "../x.png"}, {"image": 3}, {"grid": [1, 2]}, {"grid": [1, 2, -3]}, {"patches": ["x"]}]
)
def test_folders_that_say_something_else_are_refused(wrong, tmp_path):
    folder = seen_image().save(tmp_path / "run", image=drawn())
    content = json.loads((folder / "index.json").read_text())
    content["meta"] |= wrong
    (folder / "index.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"meta\."):
        load(folder)


def test_an_image_that_is_a_link_is_refused(tmp_path):
    folder = seen_image().save(tmp_path / "run", image=drawn())
    (folder / "image.png").unlink()
    (folder / "image.png").symlink_to(folder / "index.json")
    with pytest.raises(ValueError, match="image"):
        load(folder)


def test_tokens_that_are_no_grid_have_none():
    cut = nn.Sequential(nn.Conv2d(3, 4, 4, 4))
    assert find_grid(cut, (3, 8, 8), 4) == ((2, 2, 0), None)
    assert find_grid(cut, (3, 8, 8), 40) == (None, None)
    assert find_grid(cut, (1, 8, 8), 4) == (None, None)
    assert find_grid(nn.Sequential(nn.Conv2d(3, 4, 4, 2)), (3, 8, 8), 4) == (None, None)
    assert find_grid(cut, None, 4) == (None, None)


def test_a_text_may_hold_the_patches():
    model = nn.Sequential(nn.Conv2d(3, 4, 4, 4))
    model.config = SimpleNamespace(image_token_id=9)
    text = [1, 2, *[9] * 4, 3]
    assert find_grid(model, (3, 8, 8), 5, [text, [1] * 7]) == ((2, 2, 1), [2, None])
    assert find_grid(model, (3, 8, 8), 7, [text]) == ((2, 2, 2), [2])  # no layer of the image itself
    assert find_grid(model, (3, 8, 8), 107, [[1] * 100 + text]) == ((2, 2, 102), [102])
    for other in ([9, 1, 9, 9, 9], [9] * 3, [9] * 5):
        assert find_grid(model, (3, 8, 8), 4, [other])[1] is None
