"""Pictures over HTTP: what is taken, what is refused before a model runs, and what comes back, also as Python."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import image_cases
import sightline as sl
from sightline.explore import image_runs
from sightline.explore.model_runs import Models
from sightline.models.pixels import Pixels
from sightline.web.jobs import performer
from sightline.web.service import Service
from web.conftest import Client
from web.test_why import done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_cases.checkpoint(tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture(scope="module")
def asked(folder: Path) -> Iterator[Client]:
    models = Models([str(folder), "minilm"])
    service = Service(performer(models, lambda run: service.library.add(run)), models, threads=1)
    yield Client(service)
    service.close()


def sent(content: bytes, **more: Any) -> dict[str, Any]:
    return {"text": "photo.png", "model": "vit", "image": base64.b64encode(content).decode(), **more}


def drawn(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (9, 9)).save(file, kind)
    return file.getvalue()


def vast() -> bytes:
    """A PNG of few bytes that says it has 25 million pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", 5000, 5000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_picture_is_run_and_comes_back_as_it_was_seen(asked: Client, folder: Path) -> None:
    photo = image_cases.picture(100)
    run = done(asked, asked.post("/api/runs", json=sent(image_cases.png(photo))))
    about = asked.get(f"/api/runs/{run}").json()
    assert about["image"] == {"rows": 8, "columns": 8, "first": 1, "memory": None, "alone": True}
    answer = asked.get(f"/api/runs/{run}/image")
    assert answer.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(answer.content)).tobytes() == photo.tobytes()
    assert done(asked, asked.post("/api/runs", json=sent(image_cases.png(photo)))) == run  # the same one once more
    assert done(asked, asked.post("/api/runs", json=sent(drawn("JPEG")))) != run
    model, _ = sl.models.load(folder)
    with torch.no_grad(), sl.watch(model, keep_qk=True) as seen:
        model(model.prepare(photo)[None])
    row = torch.frombuffer(bytearray(asked.get(f"/api/runs/{run}/rows/0/1?q=9").content), dtype=torch.float32)
    torch.testing.assert_close(row, seen[0].tile(slice(9, 10), slice(None))[0, 1, 0])
    program = asked.get(f"/api/runs/{run}/python/0/1?q=9").json()["python"]
    names: dict[str, Any] = {}
    path = folder / "photo.png"
    path.write_bytes(image_cases.png(photo))
    exec(program.replace("folder/of/vit", str(folder)).replace("'photo.png'", repr(str(path))), names)
    torch.testing.assert_close(names["cells"][0], row)


@pytest.mark.parametrize(
    "wrong, status, says",
    [
        (sent(drawn("GIF")), 422, "can be read"),
        (sent(drawn("PNG")[:-30]), 422, "can be read"),
        (sent(b"<svg onload=alert(1)>"), 422, "can be read"),
        (sent(vast()), 422, "too large"),
        (sent(b"") | {"image": "no base64!"}, 422, "no base64"),
        (sent(drawn("PNG"), model="minilm"), 422, "reads no pictures"),
        ({"text": "a text", "model": "vit"}, 422, "reads pictures"),
        (sent(bytes(image_runs.BYTES + 4)), 422, "image cannot be understood"),
    ],
    ids=["gif", "cut short", "svg", "vast", "base64", "text model", "no picture", "bytes"],
)
def test_what_is_no_picture_is_refused_before_anything_runs(
    asked: Client, wrong: dict[str, Any], status: int, says: str
) -> None:
    before = len(asked.service.jobs.by_id)
    answer = asked.post("/api/runs", json=wrong)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text
    assert len(asked.service.jobs.by_id) == before


def test_the_part_that_a_model_sees_is_what_is_kept() -> None:
    photo = image_cases.picture(200).resize((200, 100))
    pixels = Pixels(size=50, crop=(50, 50))
    seen = Image.open(io.BytesIO(image_runs.seen_by(photo, pixels)))
    assert seen.tobytes() == photo.crop((50, 0, 150, 100)).tobytes()


def test_a_saved_run_is_read_by_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad(), sl.watch(layer, keep_qk=True) as seen:
        layer(x, x, x)
    seen.save(tmp_path / "mine")
    service = Service(lambda *_: None, threads=1)  # type: ignore[arg-type, return-value]
    service.library.shelve_folder(tmp_path / "mine")
    second = service.library.listed()[1]["id"]
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    exec(Client(service).get(f"/api/runs/{second}/python/0/1?q=2&k=3").json()["python"], names)
    assert torch.equal(names["cells"], seen[0].tile(slice(2, 3), slice(3, 4))[1, 1])
    service.close()
