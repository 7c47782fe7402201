"""Images are decoded whole before they are used, or refused."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from sightline.errors import InputError, InputTypeError
from sightline.image_files import content_of, decoded, upright


def drawn(kind: str, size: tuple[int, int] = (6, 4), mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


def test_only_whole_files_of_two_kinds_and_of_a_size_are_read() -> None:
    for kind in ("PNG", "JPEG"):
        assert decoded(drawn(kind), "a test").format == kind
        with pytest.raises(InputError, match="can be read"):
            decoded(drawn(kind)[:-40], "a test")
        with pytest.raises(InputError, match="too large"):
            decoded(drawn(kind), "a test", largest=23)
    for wrong in (b"", b"\x89PNG\r\n\x1a\n", drawn("GIF", mode="L"), drawn("BMP"), drawn("TIFF"), b"<svg/>"):
        with pytest.raises(InputError, match="can be read"):
            decoded(wrong, "a test")
    with pytest.raises(InputTypeError, match="a file or its bytes"):
        content_of(3)  # type: ignore[arg-type]


def test_an_image_is_turned_and_has_three_colours() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter of a turn
    assert upright(decoded(drawn("JPEG", exif=exif), "a test")).size == (4, 6)
    assert upright(decoded(drawn("PNG", mode="LA"), "a test")).mode == "RGB"
