"""Flash while a shape is new, cuDNN afterwards: on a GPU where torch takes cuDNN."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import sightline as sl
from sightline.backends import plans, reference


@pytest.fixture(autouse=True)
def anew():
    x = torch.randn(1, 2, 65, 64, device="cuda", dtype=torch.bfloat16)
    if torch._fused_sdp_choice(x, x, x) != SDPBackend.CUDNN_ATTENTION.value:
        pytest.skip("torch does not take cuDNN here")
    plans.forget()
    yield
    assert torch.backends.cuda.cudnn_sdp_enabled()
    plans.forget()


def draw(length: int, heads: int = 8, kv_heads: int = 8, grads: bool = False) -> list[torch.Tensor]:
    each = (heads, kv_heads, kv_heads)
    return [torch.randn(1, n, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=grads) for n in each]


def kernels(run) -> str:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiled:
        run()
        torch.cuda.synchronize()
    return " ".join(event.key for event in profiled.key_averages())


@pytest.mark.parametrize("mask", [None, sl.causal()], ids=["none", "causal"])
@pytest.mark.parametrize("kv_heads", [8, 2], ids=["one for one", "grouped"])
@pytest.mark.parametrize("grads", [False, True], ids=["forward", "backward"])
def test_either_kernel_gives_the_same(mask, kv_heads, grads):
    q, k, v = draw(777, 8, kv_heads, grads)
    choice = sl.which_backend(q, k, v, mask=mask)
    assert (choice.backend, "flash" in choice.reason) == ("sdpa", True)
    first = sl.attention(q, k, v, mask=mask)
    exact = reference.matrix_view(*(x.detach().double() for x in (q, k, v)), mask=mask)
    torch.testing.assert_close(first.detach().double(), exact, rtol=0.02, atol=0.02)
    if grads:
        first.sum().backward()
        assert q.grad is not None
    for _ in range(150):
        later = sl.attention(q, k, v, mask=mask)
    assert "flash" not in sl.which_backend(q, k, v, mask=mask).reason
    torch.testing.assert_close(later, first, rtol=0.02, atol=0.02)


def test_a_shape_that_comes_again_goes_to_cudnn():
    q, k, v = draw(901)
    assert "cudnn" not in kernels(lambda: sl.attention(q, k, v))
    for _ in range(150):
        sl.attention(q, k, v)
    assert "cudnn" in kernels(lambda: sl.attention(q, k, v))


def test_torchs_setting_fixes_one():
    q, k, v = draw(333)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        assert "cudnn" in kernels(lambda: sl.attention(q, k, v))
        assert "flash" not in sl.which_backend(q, k, v).reason
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for _ in range(150):
            sl.attention(q, k, v)
        assert "cudnn" not in kernels(lambda: sl.attention(q, k, v))


def test_unseen_lengths_take_no_longer_than_torchs_own():
    sl.attention(*draw(64))
    F.scaled_dot_product_attention(*draw(64))

    def total(attend, lengths) -> float:
        spent = 0.0
        for length in lengths:
            given = draw(length)
            torch.cuda.synchronize()
            start = time.perf_counter()
            attend(*given)
            torch.cuda.synchronize()
            spent += time.perf_counter() - start
        return spent

    ours = total(sl.attention, range(401, 421))
    assert ours < 0.5 * total(F.scaled_dot_product_attention, range(421, 441))


def test_the_account_of_an_unseen_length_needs_no_plan():
    q, k, v = draw(555)
    assert "cudnn" not in kernels(lambda: sl.observe(q, k, v, mask=sl.causal(), stats=("received",)))
