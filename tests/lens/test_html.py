"""What a notebook shows of a sight."""

from __future__ import annotations

import base64
import re
import struct
import zlib

import numpy as np
import torch

import sightline as sl
from sightline.lens.html import colours, png, shades


def pixels(data):
    """A PNG file, read again."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, content = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            width, height = struct.unpack(">II", body[:8])
        content += body if kind == b"IDAT" else b""
        at += 12 + length
    lines = np.frombuffer(zlib.decompress(content), np.uint8).reshape(height, width * 3 + 1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def test_a_picture_can_be_read_again():
    made = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(pixels(png(made)), made)


def test_colours_rise_in_brightness_and_hidden_is_grey():
    shown = colours(np.linspace(0, 1, 50))
    assert (np.diff(shown @ [0.2126, 0.7152, 0.0722]) > 0).all()
    assert colours(np.array([np.nan])).tolist() == [[160, 160, 160]]
    assert colours(np.array([-1.0, 2.0])).tolist() == [[4, 4, 20], [252, 253, 191]]


def test_shades_are_logarithmic():
    values = shades(torch.tensor([[1.0, 1e-3, 0.0, torch.nan]]), keys=100)
    assert np.allclose(values[0, :3], [1.0, 0.0, 0.0], atol=1e-6)
    assert np.isnan(values[0, 3])


def images(text):
    return [pixels(base64.b64decode(found)) for found in re.findall(r'base64,([^"]+)"', text)]


def test_a_sight_shows_its_heads():
    sight = sl.look(torch.randn(2, 20, 12, 8), torch.randn(2, 20, 12, 8), mask=sl.causal())
    text = sight._repr_html_()
    assert "2 x 20 x 12 x 12, mask causal()" in text
    assert "and 4 more heads" in text
    assert "the first of 2 sequences" in text
    shown = images(text)
    assert len(shown) == 16
    assert shown[0].shape == (12, 12, 3)
    assert shown[0][0, 5].tolist() == [160, 160, 160], "the future is hidden"
    whole = sight.tile(slice(0, 12), slice(0, 12))
    assert np.array_equal(shown[0][11], colours(shades(whole[0, 0, 11:], 12))[0])


def test_one_map_and_a_long_one():
    assert len(images(sl.look(torch.randn(5, 8), torch.randn(7, 8))._repr_html_())) == 1
    long = sl.look(torch.randn(1, 1, 1500, 4), torch.randn(1, 1, 1500, 4))
    assert images(long._repr_html_())[0].shape == (375, 375, 3)


def test_what_would_take_long_is_not_computed_to_be_shown(monkeypatch):
    from sightline.lens import html

    monkeypatch.setattr(html, "_MOST_CELLS", 10)
    sight = sl.look(torch.randn(5, 8), torch.randn(7, 8))
    assert "No picture was computed" in sight._repr_html_()
    assert "No picture was computed" in sl.look(torch.randn(0, 8), torch.randn(7, 8))._repr_html_()
