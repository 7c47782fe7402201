"""Training: it learns, it is fair, the same twice, and stopped anywhere it ends as if it had not been."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from sightline import files
from sightline.errors import InputError
from sightline.lessons.ladder import RUNGS, Settings, checkpoint, climb, make_text
from sightline.lessons.ladder.sample import sample
from sightline.lessons.ladder.threads import threads
from sightline.lessons.ladder.train import Training

SETTINGS = Settings(steps=5, batch=4, context=8, width=8, heads=2, layers=2, sample=6)
TEXT = make_text("fox", "the quick brown fox jumps over the lazy dog. " * 12, SETTINGS.context)


class Killed(Exception):
    pass


def essence(rungs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All that must be the same twice: everything but times."""
    return [{key: value for key, value in rung.items() if not key.endswith("seconds")} for rung in rungs]


@pytest.fixture(scope="module")
def straight() -> list[dict[str, Any]]:
    """One ladder without a stop and without a folder."""
    return essence(climb(TEXT, SETTINGS))


def test_the_same_twice_and_another_with_another_seed(straight: list[dict[str, Any]]) -> None:
    torch.rand(7)  # other random numbers in between do not matter
    assert essence(climb(TEXT, SETTINGS)) == straight
    other = climb(TEXT, Settings(**{**SETTINGS.as_dict(), "seed": 1}))
    assert all(a["loss"] != b["loss"] for a, b in zip(straight, other))


def test_what_is_told_of_a_rung(straight: list[dict[str, Any]]) -> None:
    assert [rung["name"] for rung in straight] == [rung.name for rung in RUNGS]
    for rung in straight:
        assert [step for step, _ in rung["curve"]] == SETTINGS.evaluations
        assert rung["loss"] == rung["curve"][-1][1]
        assert rung["loss"] < rung["curve"][0][1]
        assert len(rung["sample"]) == 6
        assert set(rung["sample"]) <= set(TEXT.alphabet)


@pytest.mark.parametrize("calls", [1, 8, 23, 40])
def test_stopped_anywhere_it_ends_as_if_it_had_not_been(
    calls: int, tmp_path: Path, straight: list[dict[str, Any]]
) -> None:
    """Stopped again and again after so many calls of the listener, until it is through."""
    left = 0

    def listen(rung: int, step: int, loss: float | None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    for attempt in range(60):
        left = calls + attempt  # a little further every time, so that it gets through
        try:
            done = climb(TEXT, SETTINGS, tmp_path, listen)
        except Killed:
            continue
        break
    assert attempt > 0
    assert essence(done) == straight
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]


def test_a_checkpoint_is_whole_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a file appears in the folder under its name, it can be read."""
    seen = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        if target.exists():
            checkpoint.load(tmp_path, checkpoint.identity(TEXT, SETTINGS))
        result = replace(self, target)
        seen.append(checkpoint.load(tmp_path, checkpoint.identity(TEXT, SETTINGS)))
        return result

    monkeypatch.setattr(files.Path, "replace", watched)
    climb(TEXT, SETTINGS, tmp_path)
    where = [(len(now.done), now.step) for now in seen]
    assert where == sorted(where)
    stops = [(rung, step) for rung in range(len(RUNGS)) for step in SETTINGS.stops]
    assert where == sorted([*stops, *((rung + 1, 0) for rung in range(len(RUNGS)))])


def test_a_disk_that_is_full_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    climb(TEXT, SETTINGS, tmp_path)
    before = (tmp_path / checkpoint.NAME).read_bytes()

    def full(tensors: object, file: Path, metadata: object = None) -> None:
        file.write_bytes(before[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.Checkpoint({}).save(tmp_path)
    assert (tmp_path / checkpoint.NAME).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]


def test_a_checkpoint_holds_weights_optimizer_and_random_state(tmp_path: Path) -> None:
    training = Training(RUNGS[3], TEXT, SETTINGS)
    for _ in range(3):
        training.advance()
    now = checkpoint.Checkpoint({"a": 1}, step=3, curve=[(1, 2.5)], tensors=training.state())
    now.save(tmp_path)
    found = checkpoint.load(tmp_path, {"a": 1})
    assert (found.step, found.curve) == (3, [(1, 2.5)])
    again = Training(RUNGS[3], TEXT, SETTINGS)
    again.restore(found.tensors, found.step)
    for _ in range(4):
        assert torch.equal(training.advance(), again.advance())
    for one, two in zip(training.state().items(), again.state().items(), strict=True):
        assert one[0] == two[0]
        assert torch.equal(one[1], two[1]), one[0]
    with safe_open(str(tmp_path / checkpoint.NAME), framework="pt") as file:
        assert sum(name.startswith("optimizer.exp_avg_sq.") for name in file.keys()) == 6  # noqa: SIM118


def write_bad(path: Path, how: str) -> None:
    about: Any = {"format": checkpoint.FORMAT, "identity": checkpoint.identity(TEXT, SETTINGS), "done": [], "step": 0}
    about |= {"curve": [], "seconds": 0.0, "cpu_seconds": 0.0}
    if how == "another format":
        about["format"] = 99
    elif how == "another rung":
        about["done"] = [{"name": "average"}]
    elif how == "too many rungs":
        names = [*(rung.name for rung in RUNGS), "one more"]
        rest = {"adds": "", "parameters": 1, "loss": 1.0, "curve": [], "seconds": 0, "cpu_seconds": 0, "sample": ""}
        about["done"] = [{"name": name, **rest} for name in names]
    elif how == "no weights":
        about["step"] = 3
    elif how == "a step that is none":
        about |= {"step": 99, "curve": [[1, 2.0]]}
    elif how == "not a description":
        about = [1, 2]
    if how == "cut short":
        climb(TEXT, Settings(**{**SETTINGS.as_dict(), "steps": 1}), path.parent)
        path.write_bytes(path.read_bytes()[:-7])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "another kind of file":
        save_file({"a": torch.zeros(2)}, path)
    else:
        save_file({"": torch.zeros(0)}, path, metadata={"sightline.ladder": json.dumps(about)})


@pytest.mark.parametrize(
    "how",
    [
        "cut short",
        "empty",
        "another kind of file",
        "another format",
        "another rung",
        "too many rungs",
        "no weights",
        "a step that is none",
        "not a description",
    ],
)
def test_a_damaged_checkpoint_is_refused_in_words(how: str, tmp_path: Path) -> None:
    write_bad(tmp_path / checkpoint.NAME, how)
    with pytest.raises(InputError, match="--fresh, to start from the first rung"):
        climb(TEXT, SETTINGS, tmp_path)


def test_another_ladder_is_not_continued(tmp_path: Path) -> None:
    climb(TEXT, SETTINGS, tmp_path)
    for change, words in (({"seed": 4}, "seed 0"), ({"steps": 6}, "steps 5"), ({"threads": 2}, "threads 1")):
        with pytest.raises(InputError, match=f"holds another ladder\n  expected: {words}\n"):
            climb(TEXT, Settings(**{**SETTINGS.as_dict(), **change}), tmp_path)
    other = make_text("fox", "The quick brown fox jumps over the lazy dog. " * 12, SETTINGS.context)
    with pytest.raises(InputError, match="text digest"):
        climb(other, SETTINGS, tmp_path)
    checkpoint.prepare(tmp_path, fresh=True)
    assert climb(other, SETTINGS, tmp_path)[0]["name"] == "no communication"


def test_what_a_kill_left_is_cleared_away_and_nothing_else(tmp_path: Path) -> None:
    def doomed(file: Path) -> None:
        left.append(tmp_path / f"{file.name}.kept")
        file.rename(left[-1])  # as if the program had ended here
        raise Killed

    left: list[Path] = []
    for name in (checkpoint.NAME, "ladder.svg", "ladder.json"):
        with pytest.raises((Killed, FileNotFoundError)):
            files.write_whole(tmp_path / name, doomed)
    for path in left:
        path.rename(path.with_suffix(""))
    for name in ("mine.txt", ".download.part.txt", "checkpoint.part.safetensors"):
        (tmp_path / name).write_text("kept")
    assert len(list(tmp_path.iterdir())) == 6
    checkpoint.prepare(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".download.part.txt",
        "checkpoint.part.safetensors",
        "mine.txt",
    ]


def test_every_rung_sees_the_same_batches() -> None:
    seen: list[list[list[int]]] = []
    for rung in (RUNGS[0], RUNGS[8]):
        training = Training(rung, TEXT, SETTINGS)
        batches: list[list[int]] = []
        training.model.register_forward_pre_hook(lambda _, inputs, kept=batches: kept.append(inputs[0].tolist()))
        for _ in range(4):
            training.advance()
        seen.append(batches)
    assert seen[0] == seen[1]
    assert seen[0][0] != seen[0][1]


def test_the_loss_is_the_mean_over_the_whole_held_out_part() -> None:
    training = Training(RUNGS[3], TEXT, SETTINGS)
    held, context = TEXT.held_out, SETTINGS.context
    whole = training.model.double()
    total = count = 0.0
    for start in range(0, len(held) - context, context):
        shares = whole(held[None, start : start + context])[0].log_softmax(-1)
        for t in range(context):
            total -= shares[t, held[start + t + 1]].item()
            count += 1
    assert count > 40
    assert training.evaluate() == pytest.approx(total / count, rel=1e-9)


def test_nothing_of_the_held_out_part_is_trained_on() -> None:
    training = Training(RUNGS[0], TEXT, SETTINGS)
    assert len(training.characters) + len(TEXT.held_out) == 12 * 45
    assert torch.equal(training.characters, TEXT.training)


def test_it_learns_what_a_rung_can_know() -> None:
    """A pattern in which the next character depends on the two before: the first rung cannot know it, the top can."""
    settings = Settings(steps=60, batch=8, context=16, width=16, heads=2, layers=1, learning_rate=1e-2)
    text = make_text("pattern", "aab" * 200, settings.context)
    losses = {}
    for number in (0, 7):
        training = Training(RUNGS[number], text, settings)
        for _ in range(settings.steps):
            training.advance()
        losses[RUNGS[number].name] = training.evaluate()
    # After an a, which is two thirds of the time, an a or a b comes equally often: 2/3 ln 2 nats at best.
    assert losses["no communication"] == pytest.approx(2 / 3 * math.log(2), abs=0.05)
    assert losses["positions"] < 0.15


def test_a_sample_is_drawn_from_what_the_model_expects() -> None:
    class Next(torch.nn.Module):
        """Sure that the alphabet goes on."""

        def __init__(self) -> None:
            super().__init__()
            self.size = torch.nn.Parameter(torch.tensor(50.0))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            assert ids.shape[1] <= 4
            return self.size * torch.nn.functional.one_hot((ids + 1) % 26, 26)

    text = make_text("letters", "abcdefghijklmnopqrstuvwxyz" * 9, context=4)
    start = text.spell(text.held_out[:4])
    letters = "abcdefghijklmnopqrstuvwxyz" * 3
    after = letters.index(start) + 4
    assert sample(Next(), text, 4, seed=0, length=20) == letters[after : after + 20]


def test_threads_are_as_before_afterwards() -> None:
    before = torch.get_num_threads()

    def fail() -> None:
        with threads(before + 1):
            assert torch.get_num_threads() == before + 1
            raise Killed

    with pytest.raises(Killed):
        fail()
    assert torch.get_num_threads() == before
