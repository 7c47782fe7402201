"""Flash while a shape is new, cuDNN once it has come often enough; what needs a GPU is in tests/gpu."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sightline.backends import plans


class OnGpu(SimpleNamespace):
    """What `plans` asks of a tensor that lies on a GPU."""


def tensor(*shape: int, grads: bool = False) -> OnGpu:
    x = torch.empty(shape, device="meta")
    return OnGpu(
        shape=x.shape,
        stride=x.stride,
        dtype=torch.bfloat16,
        requires_grad=grads,
        is_cuda=True,
        device=SimpleNamespace(index=0),
    )


@pytest.fixture(autouse=True)
def both(monkeypatch):
    """Torch would take cuDNN, and flash can as well."""
    plans.forget()
    monkeypatch.setattr(plans, "_both", lambda *given: True)
    yield
    plans.forget()


def calls_by_flash(length: int, **options: bool) -> int:
    x = tensor(1, 16, length, 128, grads=options.pop("grads", False))
    count = 0
    while plans.is_new(x, x, x, True, False, **options):
        count += 1
        assert count < 1000
    return count


def test_a_short_shape_stays_new_for_a_pass_of_many_layers():
    assert 100 < calls_by_flash(777) < 200


def test_the_longer_the_sooner_a_plan_pays():
    found = [calls_by_flash(length) for length in (2000, 16_384, 50_000, 131_072)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == 0  # one call saves more than a plan costs


def test_every_shape_counts_for_itself():
    calls_by_flash(777)
    x = tensor(1, 16, 778, 128)
    assert plans.is_new(x, x, x, True, False)


def test_what_autocast_makes_another_dtype_of_is_torchs(monkeypatch):
    x = tensor(1, 16, 777, 128)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
    for dtype, mine in ((torch.float16, False), (torch.bfloat16, True)):
        monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind, dtype=dtype: dtype)
        assert plans.is_new(x, x, x, True, False) is mine


def test_asking_without_counting_changes_nothing():
    x = tensor(1, 16, 777, 128)
    for _ in range(500):
        assert plans.is_new(x, x, x, True, False, count=False)


def test_a_table_of_shapes_does_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(plans, "_MOST", 10)
    for length in range(1, 50):
        x = tensor(1, 2, length, 64)
        plans.is_new(x, x, x, False, False)
    assert len(plans._spent) == 10


def test_gradients_are_other_plans():
    assert 0 < calls_by_flash(16_384, grads=True) < calls_by_flash(16_384)


def test_where_torch_decides_otherwise_nothing_is_decided(monkeypatch):
    monkeypatch.setattr(plans, "_both", lambda *given: False)
    x = tensor(1, 16, 777, 128)
    assert not plans.is_new(x, x, x, True, False)


def test_nothing_is_asked_of_what_lies_on_the_cpu(monkeypatch):
    monkeypatch.setattr(plans, "_both", lambda *given: pytest.fail("asked"))
    x = torch.randn(1, 2, 9, 8)
    torch.testing.assert_close(
        plans.attend(x, x, x, True, False), torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    )
