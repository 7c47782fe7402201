"""One bad saved run is left out by one line that names it; the others are served, and every answer is JSON."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from sightline.explore.saved import MAPS, MEMBERS
from sightline.watching import watch
from sightline.web.serve import make_service
from sightline.web.service import Service
from web.conftest import Client

LONE = "\ud800"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "good"
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 3, 16)
    with torch.no_grad(), watch(layer, keep_qk=True) as seen:
        layer(x, x, x)
    seen.tokens = [["the", "kids", "left"]]
    seen.meta |= {"name": "small", "text": "the kids left", "spans": [[0, 3], [4, 8], [9, 13]]}
    return seen.save(folder)


@pytest.fixture
def bad(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "good")
    return Path(shutil.copytree(good, tmp_path / "bad"))


@pytest.fixture
def served(bad: Path) -> Iterator[Callable[[], Service]]:
    made: list[Service] = []

    def start() -> Service:
        made.append(make_service([bad.parent], ["minilm"]))
        return made[-1]

    yield start
    for service in made:
        service.close()


def rewrite(folder: Path, change: Callable[[Any], Any]) -> None:
    path = folder / "index.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content) or content))


def strict(body: bytes) -> Any:
    """JSON as a browser reads it: no NaN, and UTF-8 without halves of characters."""

    def no(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(body.decode("utf-8"), parse_constant=no)


def assert_left_out(service: Service, name: str = "bad") -> None:
    assert len(service.skipped) == 1
    assert service.skipped[0].startswith(f"{name}: ")
    assert service.skipped[0].isprintable(), "one line, and nothing that a terminal obeys"
    assert len(service.skipped[0]) < 500
    client = Client(service)
    answer = client.get("/api/runs")
    assert answer.status_code == 200
    (run,) = strict(answer.content)["runs"]
    assert run["title"] == "the kids left"
    about = client.get(f"/api/runs/{run['id']}")
    assert about.status_code == 200
    assert strict(about.content)["model"] == "small"


NAN = float("nan")
META: dict[str, list[Any]] = {
    "text": [5, NAN, True, [], ["a"], {}, {"a": 1}, LONE, f"a{LONE}b", "\udfff"],
    "name": [5, NAN, float("inf"), False, ["small"], {"a": 1}, LONE, "x" * 100_000],
    "model": [5, NAN, [NAN], {}, LONE],
    "spans": [5, "abc", {}, {"a": 1}, [5], [[1]], [[1, 2, 3]], [["a", "b"]], [[NAN, 1]], [None], [[0.5, 1]]],
}


@pytest.mark.parametrize("key, value", [(key, value) for key, values in META.items() for value in values])
def test_wrong_metadata_is_left_out(served: Callable[[], Service], bad: Path, key: str, value: Any) -> None:
    # A name counts before the class of the model, so that one is only looked at without it.
    rewrite(bad, lambda content: content["meta"].update({"name": None, key: value}))
    assert_left_out(served())


CHANGES: dict[str, Callable[[Any], Any]] = {
    "no metadata": lambda content: content.update(meta=None),
    "metadata that is a number": lambda content: content.update(meta=5),
    "metadata that is a list": lambda content: content.update(meta=[1]),
    "tokens that are a number": lambda content: content.update(tokens=5),
    "tokens that are numbers": lambda content: content.update(tokens=[[1, 2, 3]]),
    "a token that is half a character": lambda content: content.update(tokens=[["a", LONE, "b"]]),
    "memory tokens that are none": lambda content: content.update(memory_tokens=[["a", None]]),
    "a memory that is half a character": lambda content: content.update(memory_tokens=[[LONE]]),
    "ids that are words": lambda content: content.update(ids=[["a"]]),
    "no layers": lambda content: content.update(layers=[]),
    "layers that are nothing": lambda content: content.update(layers=None),
    "a layer that is a number": lambda content: content.update(layers=[5]),
    "a layer that is half a character": lambda content: content["layers"][0].update(name=LONE),
    "a layer without a name": lambda content: content["layers"][0].update(name=5),
    "an index that is NaN": lambda content: content["layers"][0].update(index=NAN),
    "an index without end": lambda content: content["layers"][0].update(index=float("inf")),
    "heads that are words": lambda content: content["layers"][0].update(heads="ab"),
    "heads that are too many": lambda content: content["layers"][0].update(heads=list(range(100_000))),
    "a file elsewhere": lambda content: content["layers"][0].update(file=f"../good/{content['layers'][0]['file']}"),
    "a file that is not there": lambda content: content["layers"][0].update(file="nothing.safetensors"),
    "another version": lambda content: content.update(version=99),
    "a list": lambda content: [content],
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_index_that_does_not_hold_is_left_out(served: Callable[[], Service], bad: Path, what: str) -> None:
    rewrite(bad, CHANGES[what])
    assert_left_out(served())


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


INDEXES: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link in a circle": lambda path: path.symlink_to(path.name),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to a run": lambda path: path.symlink_to("../good/index.json"),
    "a terabyte": _sparse,
    "nothing": lambda path: path.write_bytes(b""),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "a number": lambda path: path.write_text("5"),
    "brackets": lambda path: path.write_text("[" * 100_000),
    "a long number": lambda path: path.write_text("9" * 10_000),
}


@pytest.mark.parametrize("what", INDEXES)
def test_an_index_that_is_no_file_of_ours_is_left_out(served: Callable[[], Service], bad: Path, what: str) -> None:
    (bad / "index.json").unlink()
    INDEXES[what](bad / "index.json")
    assert_left_out(served())


def test_damaged_layers_are_left_out(served: Callable[[], Service], bad: Path) -> None:
    for file in bad.glob("*.safetensors"):
        file.write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00notjson!")
    assert_left_out(served())


@pytest.mark.parametrize("what", ["a pipe", "a folder", "a device"])
@pytest.mark.parametrize("kind", ["rows", "file"])
def test_layers_that_are_no_files_are_left_out(served: Callable[[], Service], bad: Path, what: str, kind: str) -> None:
    file = bad / json.loads((bad / "index.json").read_text())["layers"][0][kind]
    file.unlink()
    INDEXES[what](file)
    assert_left_out(served())


@pytest.mark.parametrize("shape", [(0, 2, 3), (1, 0, 3), (1, 2, 0), (MEMBERS + 1, 1, 1), (1, MAPS + 1, 1)])
def test_sizes_that_cannot_be_served_are_left_out(
    served: Callable[[], Service], bad: Path, shape: tuple[int, int, int]
) -> None:
    """A file without numbers may claim any size: no time or memory is taken for it."""
    batch, heads, queries = shape
    (name,) = (entry["file"] for entry in json.loads((bad / "index.json").read_text())["layers"])
    with safe_open(bad / name, framework="pt") as file:
        about = json.loads(file.metadata()["sightline"])
    about |= {"sizes": [[batch], heads, heads, queries, 3, 8, 8], "kept": []}
    save_file({"row": torch.zeros(shape)}, bad / name, metadata={"sightline": json.dumps(about)})
    rewrite(bad, lambda content: content.update(tokens=None))
    assert_left_out(served())


@pytest.mark.parametrize("key", ["tokens", "memory_tokens"])
def test_tokens_of_fewer_texts_than_there_are_are_left_out(served: Callable[[], Service], bad: Path, key: str) -> None:
    shutil.rmtree(bad)
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    with torch.no_grad(), watch(layer) as seen:
        layer(*[torch.randn(2, 3, 16)] * 3)
    seen.save(bad)
    rewrite(bad, lambda content: content.update({key: [["a", "b", "c"]]}))
    assert_left_out(served())


def test_a_panic_while_reading_is_left_out(
    served: Callable[[], Service], bad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sightline.explore import saved

    load = saved.load_run

    def broken(path: Path) -> Any:
        if path.name == "bad":
            raise type("PanicException", (BaseException,), {})("a header\nof another world\x1b[2J")
        return load(path)

    monkeypatch.setattr(saved, "load_run", broken)
    assert_left_out(served())


def test_a_bad_run_that_was_named_alone_is_left_out_too(bad: Path) -> None:
    rewrite(bad, lambda content: content["meta"].update(text=5))
    service = make_service([bad, bad.parent / "good"], ["minilm"])
    try:
        assert_left_out(service)
    finally:
        service.close()


def test_names_of_folders_end_no_line_and_no_answer(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "odd\n\x1b[2Jname")
    shutil.copytree(good, os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))  # safetensors opens no such path
    service = make_service([tmp_path], ["minilm"])
    try:
        assert [line[:3] for line in service.skipped] == ["?: "]
        answer = Client(service).get("/api/runs")
        assert answer.status_code == 200
        (run,) = strict(answer.content)["runs"]
        assert run["origin"] == "odd??[2Jname"
        assert strict(Client(service).get(f"/api/runs/{run['id']}").content)["origin"] == run["origin"]
    finally:
        service.close()


def test_a_run_that_goes_bad_later_says_so(served: Callable[[], Service], bad: Path) -> None:
    rewrite(bad, lambda content: content["meta"].update(name="another"))
    service = served()
    assert not service.skipped
    client = Client(service)
    listed = strict(client.get("/api/runs").content)["runs"]
    (id,) = (run["id"] for run in listed if run["origin"] == "bad")
    shutil.rmtree(bad)
    answer = client.get(f"/api/runs/{id}")
    assert answer.status_code == 500
    assert answer.json()["error"] == "the saved run bad cannot be read any more"
    assert client.get("/api/runs").status_code == 200
