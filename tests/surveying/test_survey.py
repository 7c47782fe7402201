"""Surveys: what a row says is true, bad texts are rows, and whoever is killed goes on: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import sightline as sl
from sightline.errors import InputError, InputTypeError
from sightline.surveying import heads, local, parts, texts
from sightline.surveying.identity import fingerprint
from sightline.surveying.texts import Text, read
from sightline.surveying.work import Order, orders
from surveys import KIDS, PLAY, killing_driver


@pytest.fixture(scope="module")
def minilm() -> torch.nn.Module:
    return sl.models.load("minilm")[0]


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["key"], row["number"] or 0, row["head"] or 0))


def test_a_row_says_what_the_head_did(minilm: torch.nn.Module, tmp_path: Path) -> None:
    record = {"text": KIDS, "name": "kids", "spans": {"who": [4, 8], "what": [27, 32]}}
    found = sl.survey(minilm, [record], tmp_path / "out", links=2)
    assert (found.texts, found.errors, len(found.rows())) == (1, 0, 72)
    assert found.table().num_rows == 72
    with torch.no_grad(), sl.watch(minilm, keep_qk=True) as seen:
        minilm(minilm.batch(KIDS).ids[None])
    tokens = minilm.tokens(KIDS)
    for portrait in seen.portraits():
        (row,) = [r for r in found.rows() if (r["layer"], r["head"]) == portrait[:2]]
        for measure in ("previous", "first", "same", "distance", "entropy", "induction"):
            assert row[measure] == pytest.approx(getattr(portrait, measure), abs=1e-5)
        weights = seen[portrait.layer].tile(slice(None), slice(None))[0, portrait.head]
        share = weights[:, tokens.index("kids")].mean()
        assert row["spans"][0] == {"name": "who", "share": pytest.approx(float(share), abs=1e-5)}
        plain = torch.tensor([[k in (0, q, q - 1) for k in range(len(tokens))] for q in range(len(tokens))])
        best = weights.masked_fill(plain, 0).flatten().max(0)
        query, key = divmod(int(best.indices), len(tokens))
        (first, *_) = row["links"]
        assert (first["query"], first["key"]) == (query, key)
        assert first["weight"] == pytest.approx(float(best.values), abs=1e-5)
        assert "".join(first["key_context"]) in KIDS
    they = next(r for r in found.rows() if (r["number"], r["head"]) == (3, 1))["links"][0]
    assert (they["query_context"][1], they["key_context"][1]) == ("they", "kids")


def test_all_kinds_of_corpora_give_the_same_texts(tmp_path: Path) -> None:
    named = {"a.txt": "one text", "b.txt": "another ☃"}
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, text in named.items():
        (folder / name).write_text(text, "utf-8")
    records = [{"name": name, "text": text} for name, text in named.items()]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, records)), "utf-8")
    table = pa.Table.from_pylist(records)
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    (dataset / "dataset_info.json").write_text("{}")
    with (
        pa.OSFile(str(dataset / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as to,
    ):
        to.write_table(table)
    wanted = [Text(name, text) for name, text in named.items()]
    for source in (folder, tmp_path / "x.jsonl", tmp_path / "x.parquet", dataset, records, str(dataset)):
        found = read(source)
        assert [(one.name, one.text, one.spans or {}) for one in found] == [(w.name, w.text, {}) for w in wanted], (
            source
        )
    assert len(read(["same", "same"])) == 2  # by their names
    assert len(read([Text("x", "same"), Text("x", "same")])) == 1


def test_what_is_no_corpus_is_refused(tmp_path: Path) -> None:
    for source, word in ((tmp_path / "none", "no such texts"), ([], "no texts"), (tmp_path, "no texts")):
        with pytest.raises(InputError, match=word):
            read(source)
    with pytest.raises(InputTypeError, match="no texts"):
        read(3)
    pyarrow.parquet.write_table(pa.table({"words": ["x"]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"(?s)no column of texts.*words"):
        read(tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet", column="words")[0].text == "x"
    for name in ("damaged.parquet", "damaged.arrow"):
        (tmp_path / name).write_bytes(b"PAR1, and then nothing")
        with pytest.raises(InputError, match=f"{name} cannot be read"):
            read(tmp_path / name)


def test_long_texts_are_cut_at_lines_and_nothing_is_lost() -> None:
    lines = "".join(f"line {i} of a play\n" for i in range(100))
    whole = Text("play", lines, {"near": (0, 4), "across": (90, 300)})
    found = texts.read([whole], cut=120)
    assert "".join(one.text for one in found) == lines
    assert all(len(one.text) <= 120 and one.text.endswith("\n") for one in found)
    assert [one.name for one in found[:2]] == ["play#0", "play#1"]
    assert found[0].spans == {"near": (0, 4)}
    assert len(texts.read([whole], cut=120, limit=3)) == 3


def test_a_bad_text_is_a_row_with_its_error(minilm: torch.nn.Module, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    (folder / "good.txt").write_text(KIDS)
    (folder / "long.txt").write_text("long " * 3000)
    lines = ['{"text": 3}', "not json", '{"other": 1}', '{"text": "x", "spans": 3}', '"a string"', "[" * 100_000]
    lines += [f'{{"text": "x", "spans": {{"a": [{pair}]}}}}' for pair in ("1e999, 2", "0, 9", "-1, 1", "1, 1")]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    found = sl.survey(minilm, folder, tmp_path / "out")
    said = {row["name"]: row["error"] for row in found.rows()}
    assert said["good.txt"] is None
    assert "UnicodeDecodeError" in said["bytes.txt"]
    assert "more than the" in said["long.txt"]
    assert (found.texts, found.errors, len(found.rows())) == (3, 2, 74)
    assert [i for i, one in enumerate(read(tmp_path / "x.jsonl")) if one.problem is None] == [4]
    odd = sl.survey(minilm, ["\ud800 alone", "a\0b", "", KIDS], tmp_path / "odd").rows()
    assert {row["name"]: row["error"] for row in odd} == {"0": "this text is not UTF-8", **dict.fromkeys("123")}


def test_killed_workers_and_drivers_lose_nothing_and_write_nothing_twice(tmp_path: Path) -> None:
    """A worker is killed in the middle, then the driver; who goes on has what one process has, row by row."""
    done = subprocess.run(
        [sys.executable, "-c", killing_driver(tmp_path / "killed")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},  # these sources, wherever they are
    )
    assert done.returncode == -9, done.stderr
    begun = parts.done(tmp_path / "killed")
    assert 0 < len(begun) < len(PLAY)
    reports: list[tuple[int, int, int]] = []
    found = sl.survey(
        "minilm", PLAY, tmp_path / "killed", workers=0, per_part=2, report=lambda *said: reports.append(said)
    )
    assert reports[0][0] == len(begun)  # it goes on where it was
    assert reports[-1] == (len(PLAY), len(PLAY), 0)
    alone = sl.survey("minilm", PLAY, tmp_path / "alone", workers=0)
    assert ordered(found.rows()) == ordered(alone.rows())
    assert len(found.rows()) == 72 * len(PLAY)
    assert not [file for file in (tmp_path / "killed").iterdir() if file.name.endswith(".part.parquet")]
    before = [path.stat().st_mtime_ns for path in parts.parts(tmp_path / "killed")]
    assert sl.survey("minilm", PLAY, tmp_path / "killed", workers=2).texts == len(PLAY)  # nothing left to do
    assert [path.stat().st_mtime_ns for path in parts.parts(tmp_path / "killed")] == before


def test_few_texts_are_shared_among_all_workers() -> None:
    """Eight texts and a part of eight would leave one of two workers without work."""
    some = [Text(str(i), "text") for i in range(8)]
    assert [len(order.texts) for order in orders(some, 8, workers=2)] == [4, 4]
    assert [len(order.texts) for order in orders(some, 2, workers=2)] == [2] * 4
    assert [len(order.texts) for order in orders(some, 8, workers=0)] == [8]
    assert [len(order.texts) for order in orders(some[:1], 8, workers=4)] == [1]
    assert orders([], 8, workers=4) == []


def test_an_order_that_ends_workers_is_tried_text_by_text_and_then_given_up() -> None:
    tried: dict = {}
    order = Order([Text("a", "a"), Text("b", "b")])
    assert local._again(order, tried) == [order]
    assert local._again(order, tried) == [Order([text]) for text in order.texts]
    single = Order(order.texts[:1])
    assert local._again(single, tried) == [single]
    assert local._again(single, tried) == [single._replace(give_up=True)]


def test_a_part_that_its_worker_could_not_report_is_not_done_again(tmp_path: Path) -> None:
    """Done once more, and then text by text, its rows would be there twice."""
    order = Order([Text("a", "a"), Text("b", "b")])
    assert local._written(tmp_path, order) is None
    parts.write_part(tmp_path, order.texts, [heads.error_row(text, "no tokens") for text in order.texts])
    assert local._written(tmp_path, order) == (2, 2)


def test_workers_that_never_begin_are_a_fault_and_not_rows(tmp_path: Path) -> None:
    """As in a script without `if __name__ == "__main__"`, which every worker runs again."""
    tried: dict = {}
    for _ in range(2):
        local._not_even_begun(tried)
    with pytest.raises(InputError, match=r"(?s)workers end before they begin.*__main__"):
        local._not_even_begun(tried)


def test_a_folder_of_something_else_is_refused(minilm: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").write_text("mine")
    with pytest.raises(InputError, match="something else"):
        sl.survey(minilm, [KIDS], tmp_path / "other")
    sl.survey(minilm, [KIDS], tmp_path / "out")
    with pytest.raises(InputError, match=r"(?s)another survey.*links=3.*links=5"):
        sl.survey(minilm, [KIDS], tmp_path / "out", links=5)
    settings = parts.read_about(tmp_path / "out")["settings"]
    with parts.driving(tmp_path / "out", settings), pytest.raises(InputError, match="another survey writes"):
        sl.survey(minilm, [KIDS], tmp_path / "out")
    assert [one.name for one in (tmp_path / "other").iterdir()] == ["note.txt"], "not even a lock is left there"
    with pytest.raises(InputError, match="a survey is a folder"):
        sl.survey(minilm, [KIDS], tmp_path / "other" / "note.txt")


@pytest.mark.parametrize(
    "options, word",
    [
        ({"engine": "spark"}, "unknown engine"),
        ({"workers": -1}, "workers is a whole number"),
        ({"per_part": 0}, "per_part is a whole number"),
        ({"cut": 0}, "cut is a whole number"),
        ({"limit": -1}, "limit is a whole number"),
        ({"influence": True, "workers": 0}, "predicts no tokens"),
        ({"texts": [3, None]}, r"(?s)none of the texts can be read.*no text, but int"),
        ({"texts": [{"words": "x"}]}, r"(?s)none of the texts can be read.*no 'text' among words"),
        ({"model": "no-such-model"}, "no model"),
        ({"engine": "ray", "model": torch.nn.Linear(1, 1)}, "load the model themselves"),
    ],
)
def test_what_cannot_be_done_is_refused_and_leaves_nothing(tmp_path: Path, options: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        sl.survey(**{"model": "minilm", "texts": [KIDS], "out": tmp_path / "deep" / "out", **options})
    assert not (tmp_path / "deep").exists()


def test_another_model_of_the_same_name_is_refused(tmp_path: Path) -> None:
    """What is there would be taken for what the new weights say."""
    one, other, folder = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), tmp_path / "checkpoint"
    assert fingerprint(one) == fingerprint(one) != fingerprint(other)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"one")
    before = fingerprint(str(folder))
    (folder / "notes.log").write_text("not the model")
    assert fingerprint(str(folder)) == before
    (folder / "model.safetensors").write_bytes(b"two")
    assert fingerprint(str(folder)) != before
    parts.begin(tmp_path / "out", {"weights": before})
    parts.begin(tmp_path / "out", {"weights": "other"})  # nothing was written yet
    parts.write_part(tmp_path / "out", [Text("bad", "")], [heads.error_row(Text("bad", ""), "no tokens")])
    with pytest.raises(InputError, match=r"(?s)another survey.*weights='other'.*weights='third'"):
        parts.begin(tmp_path / "out", {"weights": "third"})


def test_pieces_of_another_size_are_another_survey(minilm: torch.nn.Module, tmp_path: Path) -> None:
    sl.survey(minilm, [KIDS], tmp_path / "out", cut=30)
    with pytest.raises(InputError, match=r"(?s)another survey.*cut=30.*cut=40"):
        sl.survey(minilm, [KIDS], tmp_path / "out", cut=40)


def test_a_worker_whose_driver_is_gone_writes_nothing(tmp_path: Path) -> None:
    with parts.driving(tmp_path / "out", {}) as before:
        parts.write_part(tmp_path / "out", [Text("bad", "")], [heads.error_row(Text("bad", ""), "no tokens")])
        os.close(parts.working(tmp_path / "out", before))
    with parts.driving(tmp_path / "out", {}), pytest.raises(InputError, match="survey of this worker has ended"):
        parts.working(tmp_path / "out", before)


def test_a_full_disk_ends_the_survey_and_leaves_whole_parts(
    minilm: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = pyarrow.parquet.write_table, []

    def full(table: Any, path: Path, **options: Any) -> None:
        calls.append(path)
        real(table, path, **options)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(pyarrow.parquet, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        sl.survey(minilm, PLAY[:3], tmp_path / "out", per_part=1)
    assert len(parts.parts(tmp_path / "out")) == 1
    assert not list((tmp_path / "out").glob(".*.part.*"))
    assert len(sl.survey(minilm, PLAY[:3], tmp_path / "out", per_part=1).rows()) == 3 * 72


def test_no_text_is_lost_and_a_mark_of_the_encoding_is_none(tmp_path: Path) -> None:
    blank = read([" " * 90, "one text"], cut=40)
    assert [(text.name, text.problem) for text in blank] == [("0", "no text, but spaces"), ("1", None)]
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone text")
    (tmp_path / "x.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one text", "name": "a.txt"}\n')
    assert read(tmp_path) == [Text("a.txt", "one text")]
    assert [text.text for text in read(tmp_path / "x.jsonl")] == ["one text"]


def test_a_full_disk_of_a_worker_ends_the_survey_and_blames_no_text(tmp_path: Path) -> None:
    """Files of a few thousand bytes at most: the description fits, a part of one text does not."""
    code = f"""
import resource
import sightline as sl

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
    sl.survey("minilm", {PLAY[:2]!r}, {str(tmp_path / "deep" / "out")!r}, workers=1, per_part=2)
"""
    script = tmp_path / "driver.py"
    script.write_text(code)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=False)
    assert "File too large" in ended.stderr.splitlines()[-1]
    assert not (tmp_path / "deep").exists(), "neither rows of errors nor half a file"


def test_a_text_that_was_given_up_is_not_tried_for_ever() -> None:
    with pytest.raises(InputError, match="only to write down why"):
        local._again(Order([Text("bad", "x")], give_up=True), {})


def test_a_model_is_trained_on_after_its_survey(minilm: torch.nn.Module, tmp_path: Path) -> None:
    minilm.train()
    minilm.embedding.eval()
    try:
        sl.survey(minilm, [KIDS], tmp_path / "out")
        assert minilm.training
        assert minilm.encoder.training
        assert not minilm.embedding.training
    finally:
        minilm.eval()


def test_another_tokenizer_is_another_survey(minilm: torch.nn.Module, tmp_path: Path) -> None:
    sl.survey(minilm, [KIDS], tmp_path / "out", tokenizer=minilm.tokenizer)
    sl.survey(minilm, PLAY[:1], tmp_path / "out", tokenizer=minilm.tokenizer)
    other = type(minilm.tokenizer).from_str(minilm.tokenizer.to_str())
    other.add_tokens(["kids were"])
    with pytest.raises(InputError, match=r"(?s)another survey.*tokenizer="):
        sl.survey(minilm, PLAY[1:2], tmp_path / "out", tokenizer=other)


def _interrupted(out: Path, name: str) -> None:
    with parts.driving(out, {}):
        (out / name).write_text("half")
        raise KeyboardInterrupt


def test_an_interrupted_survey_tells_what_ended_it(tmp_path: Path) -> None:
    """A worker that was killed while it wrote leaves its file; what ended the survey is told all the same."""
    out = tmp_path / "deep" / "out"
    with pytest.raises(KeyboardInterrupt):
        _interrupted(out, ".part-0.parquet.1234.part.parquet")
    assert not (tmp_path / "deep").exists()
    with pytest.raises(KeyboardInterrupt):
        _interrupted(out, "note.txt")
    assert [one.name for one in out.iterdir()] == ["note.txt"], "of somebody else"


def test_influence_and_retrieval_of_a_language_model(minilm: torch.nn.Module, tmp_path: Path) -> None:
    model, _ = sl.models.load("smollm2")
    text = "When Mary and John went to the store, John gave a drink to"
    rows = sl.survey(model, [text], tmp_path / "influence", influence=True).rows()
    ids = model.batch(text).ids[None]
    with sl.watch(model, influence=True) as seen:
        seen.backward(sl.targets.loss(ids[:, 1:], at=1)(model(ids)))
    wanted = seen.by_head()[0]
    assert len(rows) == 270
    for row in rows:
        assert row["influence"] == pytest.approx(float(wanted[row["number"], row["head"]]), abs=1e-5)
        assert row["retrieval"] is None
    made = sl.survey(model, ["Paris 7431, Rome 8265. Again: Paris 7431, Rome"], tmp_path / "made", generate=5).rows()
    assert max(row["retrieval"] for row in made) == 1  # some head looks at the very figure that is written next
    assert min(row["retrieval"] for row in made) == 0
    for options in ({"generate": 1}, {"influence": True}):
        with pytest.raises(InputError, match="predicts no tokens"):
            sl.survey(minilm, [KIDS], tmp_path / "none", **options)
        assert not (tmp_path / "none").exists(), "what is refused leaves nothing behind"


def test_retrieval_counts_copies_of_what_is_written() -> None:
    class Made:
        """Eight tokens, of which the last three were generated; head 0 looks at their copies, head 1 elsewhere."""

        ids = ([1, 2, 3, 4, 5, 2, 3, 4],)
        layers = ("only",)

        def heads(self, _: str) -> list[int]:
            return [0, 1]

        def __getitem__(self, _: str) -> Any:
            at = torch.tensor([[0, 0, 0, 0, 1, 2, 3, 0], [0, 0, 0, 0, 3, 3, 3, 0]])
            keys = torch.eye(8)
            return sl.look(keys[at][None], keys.expand(1, 2, 8, 8), scale=9.0)

    found = heads._retrieval(Made(), prompt=5)  # type: ignore[arg-type]
    assert found == {("only", 0): 1.0, ("only", 1): pytest.approx(1 / 3)}
