"""`sightline look`: a text in, an account out, and a folder or a page that can be opened again."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from sightline.cli import app as cli
from sightline.cli import look as command
from sightline.cli.account import account
from sightline.cli.app import app
from sightline.errors import InputError
from sightline.explore.run import as_run
from sightline.watching import load

SENTENCE = "The kids were scared of the lions, so they left right away."


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("look") / "kids"
    done = CliRunner().invoke(app, ["look", SENTENCE, "--out", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    return folder, done.stdout


def test_the_account_names_what_there_is_to_see(saved: tuple[Path, str]) -> None:
    folder, told = saved
    assert "minilm: 16 tokens, 6 layers, 72 heads" in told
    assert "they → kids 0.814" in told
    assert "[CLS] The kids were scared" in told
    assert f"sightline serve {folder}" in told.replace("\n", "")


def test_the_folder_is_a_watched_run(saved: tuple[Path, str]) -> None:
    seen = load(saved[0])
    assert len(seen.layers) == 6
    assert seen.meta["text"] == SENTENCE
    tokens = seen.tokens[0]
    weights = seen[3].tile(slice(None), slice(None))[0, 1]
    assert weights[tokens.index("they"), tokens.index("kids")].item() == pytest.approx(0.814, abs=1e-3)


@pytest.mark.parametrize("color", [None, "truecolor"])
def test_the_map_is_drawn_with_and_without_colours(saved: tuple[Path, str], color: str | None) -> None:
    run = as_run("x", load(saved[0]))
    console = Console(
        file=io.StringIO(), width=100, color_system=color, force_terminal=color is not None, highlight=False
    )
    account(run, 3, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "L3 H1" in text
    assert ": queries down, keys across" in text
    assert ("█" in text) == (color is not None)
    assert ("@@" in text) == (color is None)


def test_a_head_is_no_number_and_what_is_said_is_explained(saved: tuple[Path, str]) -> None:
    told = saved[1]
    assert not re.search(r"(?m)^\d+\.\d+ ", told), "1.8 is layer 1 head 8 to nobody"
    assert re.search(r"(?m)^L3 H1 .* they → kids 0\.814", told)
    assert re.search(r"(?m)^L3 H1 +they \(10\) → kids \(2\) 0\.814", told)
    header = re.search(r"(?m)^head .*$", told)
    assert header is not None
    said = " ".join(told.split())
    for column in re.split(r"\s{1,}", header[0].replace("strongest link", "strongest-link").strip())[1:]:
        assert re.search(rf"{column.replace('-', ' ')}[:,]", said), f"{column} is explained"
    assert "sightline steps TEXT --model minilm --layer 3 --head 1" in told


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_the_account_fits_its_columns_also_through_a_pipe(
    columns: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = " ".join(["Antidisestablishmentarianism and pneumonoultramicroscopicsilicovolcanoconiosis left."] * 9)
    done = CliRunner().invoke(app, ["look", text, "--layers", "3"], catch_exceptions=False)
    lines = [cell_len(line.rstrip()) for line in done.stdout.splitlines()]
    assert max(lines) <= columns
    assert max(lines) > 0.75 * min(columns, 100), "the room is used"
    assert "…" not in done.stdout or columns < 132
    assert re.search(r"a sign is the mean of \d+ x \d+", " ".join(done.stdout.split()))


def told_unseen(folder: Path, unseen: dict[str, str], width: int = 100) -> str:
    seen = load(folder)
    seen._unseen = unseen
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    account(as_run("x", seen), 3, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_what_was_not_seen_is_told_by_reason(saved: tuple[Path, str]) -> None:
    assert "without being seen" not in saved[1]
    unseen = {f"layers.{i}": "it is written [by hand]" for i in range(11)}
    unseen |= {"head.attention": "torch.jit made it", "layers.11": "it is written [by hand]"}
    assert """\
13 modules attended without being seen:
  it is written [by hand]
    layers.0, layers.1, layers.2, layers.3, layers.4, layers.5, layers.6, layers.7 and 4 more
  torch.jit made it
    head.attention

""" in told_unseen(saved[0], unseen)
    assert "1 module attended without being seen:\n  why\n    it\n" in told_unseen(saved[0], {"it": "why"})


def test_what_was_not_seen_keeps_its_indent_and_its_end(saved: tuple[Path, str]) -> None:
    """In a narrow terminal, and with more reasons than anybody reads."""
    text = told_unseen(saved[0], {f"layers.{i}.attention": f"reason {i // 2}" for i in range(21)}, width=38)
    assert "  reason 0\n    layers.0.attention,\n    layers.1.attention\n  reason 1\n" in text
    assert "  and 5 more, for other reasons" in text
    assert "reason 8" not in text


def test_some_layers_keep_the_numbers_of_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "kids"
    done = CliRunner().invoke(app, ["look", SENTENCE, "--layers", "3,5", "--out", str(folder)], catch_exceptions=False)
    named = set(re.findall(r"\bL(\d+) H\d+", done.stdout))
    assert named == {"3", "5"}
    assert not re.search(r"(?i)layer 0", done.stdout)
    seen = load(folder)
    assert [seen.number(name) for name in seen.layers] == [3, 5]
    run = as_run("x", seen)
    assert [(layer.index, layer.number, layer.name) for layer in run.layers] == [
        (0, 3, "encoder.layers.3.attention"),
        (1, 5, "encoder.layers.5.attention"),
    ]
    assert run.summary()["layer_numbers"] == [3, 5]


def test_a_report_is_one_page_without_addresses_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline.explore import report

    static = tmp_path / "static"
    static.mkdir()
    (static / "app.js").write_text("console.log('</script>')")
    (static / "app.css").write_text("body { color: red }")
    monkeypatch.setattr(report.report, "__defaults__", (static,))
    page = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["look", SENTENCE, "--layers", "3", "--out", str(page)], catch_exceptions=False)
    assert done.exit_code == 0
    text = page.read_text()
    assert "default-src 'none'" in text
    assert text.count("</script>") == 2
    assert "http" not in text.replace("http-equiv", "")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_where_the_text_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "text.txt"
    file.write_text("from a file")
    assert command.read(str(file)) == "from a file"
    assert command.read("no such file, so a text") == "no such file, so a text"
    assert command.read("x" * 5000) == "x" * 5000
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from outside")))
    assert command.read("-") == "from outside"


@pytest.mark.parametrize(
    "content, text",
    [
        (b"", "there is no text"),
        (b"  \n", "there is no text"),
        (b"\xff\xfe", "not text"),
        (b"x" * 1_000_001, "too long"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(InputError, match=text):
        command.read(str(file))


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--model", "gpt-9"], "there is no model 'gpt-9'"),
        (["--out", "/no/such/folder/run"], "there is no such folder"),
        (["--layers", "9-1"], "no such layers"),
        (["--layers", ","], "no such layers"),
        (["--layers", "nothing"], "encoder.layers.0.attention, encoder.layers.1.attention, "),
    ],
)
def test_mistakes_are_errors_of_ours(arguments: list[str], text: str) -> None:
    with pytest.raises(InputError, match=text):
        CliRunner().invoke(app, ["look", "a text", *arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    "arguments",
    [["look", "a text"], ["heads", "minilm"], ["steps", "a text", "--model", "minilm"], ["serve", "--model", "minilm"]],
    ids=lambda given: given[0],
)
def test_a_device_that_is_not_there_is_refused_before_a_model_is_read(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sightline.models.loading.open_checkpoint", None)
    option = {"serve": None, "steps": "--html"}.get(arguments[0], "--out")
    out = [] if option is None else [option, str(tmp_path / "x.html")]
    with pytest.raises(SystemExit) as stopped:
        cli.run([*arguments, *out, "--device", "cuda:99"])
    said = str(stopped.value.code)
    assert re.fullmatch(
        r"sightline: this device is not there; expected: auto, or one of cpu.*; try: --device auto", said
    )
    assert "got: 'cuda:99' (" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_a_device_that_is_named(device: str, saved: tuple[Path, str], tmp_path: Path) -> None:
    folder = tmp_path / "kids"
    given = ["look", SENTENCE, "--device", device, "--out", str(folder)]
    told = CliRunner().invoke(app, given, catch_exceptions=False).stdout
    assert told.replace(str(folder), "") == saved[1].replace(str(saved[0]), "")


@pytest.mark.parametrize(
    "layers, missing", [("99", "99"), ("0,6-20", "6, 7, 8, 9, 10, 11, 12, 13 …"), ("2,embed*", "embed*")]
)
def test_layers_that_are_not_there_are_one_line_and_no_run(
    layers: str, missing: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """The others that were asked for are not shown as if they were all."""
    with pytest.raises(SystemExit) as stopped:
        cli.run(["look", "a text", "--layers", layers, "--out", str(tmp_path / "run")])
    assert str(stopped.value.code) == (
        "sightline: minilm has no such layers; expected: 0 to 5, or a name such as encoder.layers.5.attention; "
        f"got: {missing}; try: 0-5"
    )
    assert not recwarn.list
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert CliRunner().invoke(app, ["look", "a text", "--layers", "0"]).exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_what_mattered_and_parts_of_the_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = "When Mary and John went to the store, John gave a drink to"
    asked = ["--of", "influence", "--target", " Mary", "--instead", " John", "--layers", "22,23"]
    folder = tmp_path / "run"
    given = ["look", text, *asked, "--spans", "names=0:18,John=38:42", "--heads", "3", "--out", str(folder)]
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    assert "smollm2: the logit of ' Mary' less that of ' John' is 6.12" in done.stdout
    assert re.search(r"(?m)^L23 H3 \+2\.60 to \(13\) → John \(9\) \+2\.785", done.stdout)
    assert re.search(r"(?m)^L23 +0\.385 +2\.075 +0\.005", done.stdout)
    assert max(cell_len(line.rstrip()) for line in done.stdout.splitlines() if str(folder) not in line) <= 80
    seen = load(folder)
    assert seen.by_head()[0, 1, 3].item() == pytest.approx(2.60, abs=0.005)
    edge = seen[1].top(1, of="influence")
    assert edge.keys[0, 3, -1, 0] == 9


def test_a_page_of_what_mattered_says_what_for(tmp_path: Path) -> None:
    text, page = "When Mary and John went to the store, John gave a drink to", tmp_path / "report.html"
    asked = ["--of", "influence", "--target", " Mary", "--instead", " John", "--layers", "23"]
    done = CliRunner().invoke(app, ["look", text, *asked, "--out", str(page)], catch_exceptions=False)
    assert done.exit_code == 0
    data = json.loads(page.read_text(encoding="utf-8").split('id="sightline-data">')[1].split("</script>")[0])
    for reading in data["readings"]:
        assert reading["info"]["aim"] == {"token": " Mary", "than": " John", "after": None}
        assert reading["info"]["value"] == pytest.approx(6.12, abs=0.005)
    assert [reading["info"]["of"] for reading in data["readings"]] == ["norms", "influence"]


def test_what_is_carried_by_a_model_without_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    given = ["look", SENTENCE, "--of", "norms", "--layers", "3", "--heads", "2"]
    spans = "the kids of the story=0:8,b=9:20,c=20:30,d=30:40,e=40:59"
    done = CliRunner().invoke(app, [*given, "--spans", spans], catch_exceptions=False)
    assert "norms of output of encoder.layers.3.attention" in " ".join(done.stdout.split())
    assert re.search(r"\d more parts do not fit", " ".join(done.stdout.split()))
    told = done.stdout.split("Next, every head")[0]
    assert max(cell_len(line.rstrip()) for line in told.splitlines()) <= 44


@pytest.mark.parametrize(
    "given, said",
    [
        (["--of", "meaning"], "unknown reading"),
        (["--of", "influence"], "--target TOKEN"),
        (["--target", " Mary"], "--of influence"),
        (["--spans", "a=5:2"], "name=start:end"),
        (["--spans", "a=0:5,a=5:9"], "each name once"),
        (["--spans", "question"], "name=start:end"),
        (["--of", "influence", "--target", " Mary", "--model", "minilm"], "--model smollm2"),
    ],
)
def test_readings_that_do_not_go_together_are_refused(given: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        CliRunner().invoke(app, ["look", SENTENCE, *given], catch_exceptions=False)
