"""What a model writes: the probabilities of its logits, the tokens that are given, the pace of whoever watches."""

from __future__ import annotations

import threading

import pytest
import torch

from sightline.errors import InputError
from sightline.explore.writing import OTHERS, Pace, Writing, likeliest


def test_each_token_has_its_probability_and_four_others() -> None:
    writing = Writing(None, [3, 4], begun=[5])
    rows = torch.randn(3, 1, 50, generator=torch.Generator().manual_seed(1))
    chosen = [int(writing(row)) for row in rows]
    assert chosen == [5, int(rows[1].argmax()), int(rows[2].argmax())]
    assert writing.ids == [3, 4, *chosen]
    about = writing.about()
    assert about["prompt"] == 2
    for row, token in zip(rows[:, 0], about["tokens"], strict=True):
        chances = row.softmax(-1)
        assert token["p"] == pytest.approx(float(chances[token["id"]]))
        expected = [i for i in row.argsort(descending=True).tolist() if i != token["id"]][:OTHERS]
        assert [one["id"] for one in token["others"]] == expected
        assert [one["p"] for one in token["others"]] == pytest.approx(chances[expected].tolist())


def test_what_comes_next_has_logits_too() -> None:
    row = torch.tensor([0.5, 3.0, -1.0])
    assert [(one["id"], one["logit"]) for one in likeliest(row, 9, None, [])] == [(1, 3.0), (0, 0.5), (2, -1.0)]


def run(pace: Pace, said: threading.Semaphore, done: list[int], most: int = 5) -> threading.Thread:
    def write() -> None:
        for i in range(most):
            done.append(i)
            said.release()
            pace.wait({"tokens": i})
            if pace.stopped:
                return

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_a_pause_holds_until_a_step_or_the_end() -> None:
    pace, said, done = Pace(), threading.Semaphore(0), []  # type: ignore[var-annotated]
    pace.set("pause")
    thread = run(pace, said, done)
    said.acquire(timeout=5)
    pace.set("step")
    said.acquire(timeout=5)
    assert done == [0, 1]
    assert pace.paused
    pace.set("stop")
    thread.join(5)
    assert (done, thread.is_alive()) == ([0, 1], False)
    with pytest.raises(InputError, match="no such pace"):
        pace.set("faster")


def test_who_is_not_wanted_any_more_does_not_wait() -> None:
    over = threading.Event()
    pace, said, done = Pace(over), threading.Semaphore(0), []  # type: ignore[var-annotated]
    pace.set("pause")
    thread = run(pace, said, done)
    said.acquire(timeout=5)
    over.set()
    pace.wake()
    thread.join(5)
    assert (done, thread.is_alive()) == ([0, 1, 2, 3, 4], False)
