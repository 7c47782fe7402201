"""Tasks are spread over threads, and torch is left as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
import torch

from sightline.lens.cpu import threads as workers


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many threads for torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_tasks(threads: int) -> None:
    assert workers.spread([lambda i=i: i * i for i in range(20)]) == [i * i for i in range(20)]
    assert workers.spread([]) == []


def test_tasks_run_at_the_same_time(threads: int) -> None:
    together = threading.Barrier(threads)
    assert sorted(workers.spread([lambda: together.wait(timeout=20)] * threads)) == list(range(threads))


def test_each_thread_has_its_share_of_the_cores(threads: int) -> None:
    counts = workers.spread([torch.get_num_threads] * 8)
    assert counts == [1] * 8


@pytest.mark.parametrize("cores, workers_then, each", [(8, 8, 1), (16, 8, 2), (64, 8, 8)])
def test_many_cores_are_few_threads_with_many_cores(
    cores: int, workers_then: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Pool:
        def submit(self, function: Callable[[], None]) -> Future[None]:
            done: Future[None] = Future()
            function()
            done.set_result(None)
            return done

    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    monkeypatch.setattr(workers, "_pool", lambda *sizes: (asked.append(sizes), Pool())[1])
    assert workers.spread([lambda: 1, lambda: 2]) == [1, 2]
    assert asked == [(workers_then, each)]


def test_torch_has_as_many_threads_as_before(threads: int) -> None:
    workers._forget()  # so that threads are started now
    workers.spread([lambda: 1] * 4)
    assert torch.get_num_threads() == threads
    seen: list[int] = []
    late = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    late.start()
    late.join()
    assert seen == [threads]


def test_alone_means_here(threads: int) -> None:
    here = threading.get_ident()
    assert workers.spread([threading.get_ident] * 3, alone=True) == [here] * 3
    assert workers.spread([threading.get_ident]) == [here]
    if threads > 1:
        assert here not in workers.spread([threading.get_ident] * 3)


def test_threads_are_kept() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    first = set(workers.spread([threading.get_ident] * 50))
    second = set(workers.spread([threading.get_ident] * 50))
    torch.set_num_threads(before)
    assert len(first | second) <= 2


@pytest.mark.parametrize("alone", [False, True])
def test_an_error_in_a_task_is_raised(alone: bool, threads: int) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        workers.spread([lambda: None, fail, lambda: None], alone=alone)
    assert workers.spread([lambda: 1] * 3) == [1] * 3


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_no_gradients_in_tasks(mode: type, alone: bool, threads: int) -> None:
    """Whatever holds outside; and what was made outside can be written to."""
    with mode():
        outside, leaf = torch.zeros(4), torch.ones(3)
    leaf = leaf if leaf.is_inference() else leaf.requires_grad_()

    def task(i: int) -> bool:
        product = leaf * 2
        outside[i] = product.sum()
        return product.requires_grad

    with mode():
        assert workers.spread([lambda i=i: task(i) for i in range(4)], alone=alone) == [False] * 4
    assert outside.tolist() == [6.0] * 4
    assert outside.is_inference() == (mode is torch.inference_mode)
