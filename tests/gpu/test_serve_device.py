"""The explorer's server with its models on a GPU: what it answers is what it answers with them on the CPU."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_cases import TEXT, assert_alike, decoder, encoder

DEVICE = "cuda"
AIM = {"token": "Mary", "than": "John"}
EDITS = ["ablate:0.1", "cut:1.2:q3:k1", "scale:0.2:x0.5", "boost:1.*:k0:x2"]


class Asked:
    """The application as `sightline serve --device` makes it, asked without a socket."""

    def __init__(self, folders: list[Path], device: str) -> None:
        from fastapi.testclient import TestClient

        from sightline.web.app import application
        from sightline.web.serve import make_service

        self.service = make_service(models=[str(folder) for folder in folders], device=device)
        self.client = TestClient(application(self.service), base_url="http://127.0.0.1:8000")

    def json(self, path: str, **given: Any) -> Any:
        answer = self.client.get(f"/api/runs/{path}", params=given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def floats(self, path: str) -> np.ndarray:
        answer = self.client.get(f"/api/runs/{path}")
        assert answer.status_code == 200, answer.text
        return np.frombuffer(answer.content, "<f4")

    def done(self, path: str, given: dict[str, Any]) -> str:
        """The id of what was ordered, once it is there."""
        ordered = self.client.post(f"/api/runs{path}", json=given)
        assert ordered.status_code == 202, ordered.text
        id = str(ordered.json()["id"])
        lines = self.client.get(f"/api/runs/{id}/events").text.splitlines()
        last = json.loads([line[6:] for line in lines if line.startswith("data: ")][-1])
        assert last["state"] == "done", last
        return id


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("served")
    return [decoder(place / "decoder"), encoder(place / "encoder")]


@pytest.fixture(scope="module")
def both(folders: list[Path]) -> Iterator[tuple[Asked, Asked]]:
    """There, and here."""
    pytest.importorskip("fastapi", reason="no FastAPI on this machine")
    pytest.importorskip("httpx", reason="no httpx on this machine")
    pytest.importorskip("uvicorn", reason="no uvicorn on this machine")
    made = Asked(folders, DEVICE), Asked(folders, "cpu")
    yield made
    for asked in made:
        asked.service.close()


def answers(asked: Asked, run: str) -> dict[str, Any]:
    """What a page asks of a run."""
    found = {
        "rows": asked.floats(f"{run}/rows/1/2?q=3,6"),
        "columns": asked.floats(f"{run}/columns/1/2?k=2"),
        "tracks": asked.floats(f"{run}/tracks/1/1"),
        "grid": asked.json(f"{run}/grid", q=6, k=2),
        "strongest": asked.json(f"{run}/grid", q=6),
        "path": asked.json(f"{run}/path", q=6),
        "links": asked.json(f"{run}/links/0/1"),
        "portraits": asked.json(f"{run}/portraits")["heads"],
        "export": asked.client.get(f"/api/runs/{run}/export?format=csv&layer=1&head=1").status_code,
    }
    assert asked.client.get(f"/api/runs/{run}/tiles/1/2/0/0/0/0").status_code == 200
    assert asked.client.get(f"/api/runs/{run}/thumbs").status_code == 200
    return found


@pytest.mark.parametrize(
    "given",
    [
        {"model": "encoder"},
        {"model": "encoder", "edits": EDITS},
        {"model": "decoder"},
        {"model": "decoder", "edits": EDITS},
        {"model": "decoder", "generate": 5},
    ],
    ids=str,
)
def test_a_text(both: tuple[Asked, Asked], given: dict[str, Any]) -> None:
    there, here = (answers(asked, asked.done("", {"text": TEXT, **given})) for asked in both)
    assert_alike(there, here)


@pytest.mark.parametrize("edits", [[], EDITS], ids=["plain", "edited"])
def test_why(both: tuple[Asked, Asked], edits: list[str]) -> None:
    found = []
    for asked in both:
        run = asked.done("", {"text": TEXT, "model": "decoder", "edits": edits})
        reading = asked.done(f"/{run}/readings", AIM)
        asked.done(f"/{run}/effects", AIM)
        steps = {} if edits else asked.json(f"{run}/steps/1/2", q=5)
        steps.pop("python", None)
        found.append(
            {
                "readings": [answers(asked, f"{reading}_{of}") for of in ("norms", "influence")],
                "effects": asked.json(f"{run}/effects", **AIM),
                "next": [asked.json(f"{run}/next", **more) for more in ({}, AIM, {**AIM, "after": 4})],
                "rollout": asked.floats(f"{run}/rollout?q=6"),
                "steps": steps,
            }
        )
    assert_alike(*found)


def test_a_program_runs_where_the_model_lies(
    both: tuple[Asked, Asked], folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, _ = both
    run = there.done("", {"text": TEXT, "model": "decoder"})
    asked = {"q": "3", "also": "row,effects,heads,likely", **AIM}
    program = there.json(f"{run}/python/1/2", **asked)["python"]
    assert f"device={DEVICE!r}" in program
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "of").symlink_to(folders[0].parent)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["model"].device.type == DEVICE.partition(":")[0]
    assert_alike(np.nan_to_num(names["row"].numpy()), np.nan_to_num(there.floats(f"{run}/rows/1/2?q=3")))
    there.done(f"/{run}/effects", AIM)
    table = there.json(f"{run}/effects", **AIM)
    assert_alike(names["effects"].exact[0].tolist(), table["exact"])


def test_a_picture(both: tuple[Asked, Asked], tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="no Pillow on this machine")
    import image_cases

    folder = image_cases.checkpoint(tmp_path / "vit")
    picture = base64.b64encode(image_cases.png(image_cases.picture())).decode()
    found = []
    for device in (DEVICE, "cpu"):
        asked = Asked([folder], device)
        run = asked.done("", {"text": "photo.png", "model": "vit", "image": picture, "edits": ["ablate:0.1"]})
        found.append({"rows": asked.floats(f"{run}/rows/1/1?q=9"), "grid": asked.json(f"{run}/grid", q=9, k=5)})
        asked.service.close()
    assert_alike(*found)
