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


class Tokens(nn.Module):
    """Patches with tokens of the model's own before and after them."""

    def __init__(self, before, after):
        super().__init__()
        self.cut, self.attend = nn.Conv2d(3, 16, 4, 4), nn.MultiheadAttention(16, 2, batch_first=True)
        self.before, self.after = nn.Parameter(torch.randn(1, before, 16)), nn.Parameter(torch.randn(1, after, 16))

    def forward(self, image):
        x = self.cut(image).flatten(2).mT
        x = torch.cat([self.before.expand(len(x), -1, -1), x], 1)
        x = torch.cat((x, self.after.expand(len(x), -1, -1)), dim=-2)
        return self.attend(x, x, x)[0]


@pytest.mark.parametrize("before, after", [(0, 1), (1, 3), (2, 0), (1, 40), (30, 2), (8, 8)])
def test_tokens_may_stand_on_both_sides_of_the_patches(before, after):
    model = Tokens(before, after).eval()
    sizes = [(8, 12), (4, 8), (12, 12), (8, 12)]  # some as long as others are with what is around them
    with torch.no_grad(), watch(model, runs="all") as seen:
        for height, width in sizes:
            model(torch.randn(2, 3, height, width))
    assert [run.grid for run in seen.runs] == [(height // 4, width // 4, before) for height, width in sizes]


def test_detection_tokens_stand_behind_the_patches():
    t = tiny.classes()
    config = t.YolosConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[24, 32],
        patch_size=8,
        num_detection_tokens=7,
    )
    model = t.YolosModel(config).eval()
    for height in (24, 24, 24, 24, 32, 24):  # it is listened to less and less
        with torch.no_grad(), watch(model) as seen:
            model(torch.randn(1, 3, height, 32))
        assert seen[0].shape[-1] == 1 + height // 2 + 7
        assert seen.grid == (height // 8, 4, 1)


def test_registers_are_put_between_the_class_and_the_patches():
    t = tiny.classes()
    config = t.Dinov2WithRegistersConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        mlp_ratio=1,
        image_size=24,
        patch_size=8,
        num_register_tokens=3,
    )
    model = t.Dinov2WithRegistersModel(config).eval()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 3, 24, 24))
    assert seen.grid == (3, 3, 4)


def test_two_pieces_as_long_as_the_patches_leave_it_open():
    cut = nn.Sequential(nn.Conv2d(3, 4, 4, 4))
    assert find_grid(cut, (3, 8, 8), 9, None, [(1, 4, 4)]) == (None, None)
    assert find_grid(cut, (3, 8, 8), 9, None, [(1, 4), (5, 4)]) == (None, None)
    assert find_grid(cut, (3, 8, 8), 8, None, [(1, 4), (5, 3)]) == ((2, 2, 1), None)
    assert find_grid(cut, (3, 8, 8), 9, None, [(5, 5)]) == ((2, 2, 5), None)


def test_a_text_may_hold_the_patches():
    model = nn.Sequential(nn.Conv2d(3, 4, 4, 4))
    model.config = SimpleNamespace(image_token_id=9)
    text = [1, 2, *[9] * 4, 3]
    assert find_grid(model, (3, 8, 8), 5, [text, [1] * 7]) == ((2, 2, 1), [2, None])
    assert find_grid(model, (3, 8, 8), 7, [text]) == ((2, 2, 2), [2])  # no layer of the image itself
    assert find_grid(model, (3, 8, 8), 107, [[1] * 100 + text]) == ((2, 2, 102), [102])
    for other in ([9, 1, 9, 9, 9], [9] * 3, [9] * 5):
        assert find_grid(model, (3, 8, 8), 4, [other])[1] is None
