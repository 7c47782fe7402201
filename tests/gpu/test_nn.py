"""Modules on a real GPU: the lean encoder, the fused feed-forward, the joined projections, each beside float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import sightline as sl
from sightline.nn.fast.encoder_layer import Lean

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
BOUND = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}
WIDTH, HEADS = 128, 4


@pytest.fixture(autouse=True)
def one_kernel():
    """By one of torch's kernels, however often a shape came: two of them round differently."""
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield


def encoder(dtype, **options):
    torch.manual_seed(0)
    module = sl.nn.Encoder(WIDTH, layers=3, heads=HEADS, **options).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return module.to("cuda", dtype)


def distance(got, want):
    assert got.isfinite().all()
    return ((got.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"activation": "relu"}, {"activation": "gelu_tanh"}, {"gated": True, "activation": "silu"}, {"bias": False},
     {"norm_first": False}, {"kv_heads": 2}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("mask", [None, sl.causal(), sl.padding([77, 200])], ids=["full", "causal", "padding"])
def test_the_encoder_without_gradients_is_that_of_float64(dtype, options, mask):
    module, x = encoder(dtype, **options), torch.randn(2, 200, WIDTH, device="cuda", dtype=dtype)
    exact = copy.deepcopy(module).double()
    with torch.no_grad():
        want = exact(x.double(), mask=mask)
        assert distance(module(x, mask=mask), want) <= BOUND[dtype]
    with_gradients = module(x, mask=mask)
    assert distance(with_gradients, want) <= BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_lean_way_gives_the_bits_of_the_modules(monkeypatch, dtype):
    module, x = encoder(dtype), torch.randn(2, 200, WIDTH, device="cuda", dtype=dtype)
    called = []
    lean = Lean.encode
    monkeypatch.setattr(Lean, "encode", lambda *given: called.append(lean(*given)) or called[-1])
    with torch.no_grad():
        short = module(x)
        assert len(called) == 3
        assert all(result is not None for result in called)
        monkeypatch.setattr(Lean, "encode", lambda *_: None)
        assert torch.equal(short, module(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("shape", [(3, 65), (1,), (2, 3, 5), (0,)], ids=str)
def test_product_and_activation_in_one_kernel(dtype, activation, shape):
    torch.manual_seed(0)
    part = sl.nn.FeedForward(WIDTH, activation=activation).to("cuda", dtype)
    # Large inputs too: where a GELU in half precision could overflow or lose its tail.
    x = 5 * torch.randn(*shape, WIDTH, device="cuda", dtype=dtype)
    with torch.no_grad():
        fused = part._in_one(x)
        assert fused is not None
        assert fused.shape == (*shape, 4 * WIDTH)
        assert fused.dtype == dtype
        exact = copy.deepcopy(part).double()
        want = exact.up_and_act(x.double())
    if x.numel():
        # What rounding the product before the activation, as two kernels do, would cost.
        apart = part.up_and_act(x.clone().requires_grad_())
        assert distance(fused, want) <= max(1.2 * distance(apart, want), BOUND[dtype] / 10)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_projections_side_by_side_stay_so_on_the_gpu(dtype):
    torch.manual_seed(0)
    attention = sl.nn.MultiHeadAttention(WIDTH, HEADS).to("cuda", dtype)
    x = torch.randn(2, 130, WIDTH, device="cuda", dtype=dtype)
    exact = copy.deepcopy(attention).double()
    with torch.no_grad():
        want = exact(x.double(), mask=sl.causal())
        assert distance(attention(x, mask=sl.causal()), want) <= BOUND[dtype]
        attention.query.weight.mul_(2)
        exact.query.weight.mul_(2)
        assert distance(attention(x, mask=sl.causal()), exact(x.double(), mask=sl.causal())) <= BOUND[dtype]


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torchs_encoder_with_its_weights(dtype, norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 512, 0.0, "gelu", batch_first=True, norm_first=norm_first)
    theirs = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).to("cuda", dtype).eval()
    ours = sl.nn.Encoder.from_torch(theirs)
    x = torch.randn(2, 200, WIDTH, device="cuda", dtype=dtype)
    # Without gradients torch's own encoder takes the tanh form of GELU, in every precision.
    want = copy.deepcopy(theirs).double()(x.double()).detach()
    bound = max(2 * distance(theirs(x), want), BOUND[dtype] / 10)
    assert distance(ours(x), want) <= bound
    with torch.no_grad():
        assert distance(ours(x), want) <= bound


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sights_leave_the_output_as_it_is(dtype):
    module, x = encoder(dtype), torch.randn(2, 200, WIDTH, device="cuda", dtype=dtype)
    with torch.no_grad():
        out, sights = module.observe(x, stats=("received", "entropy"))
        assert torch.equal(out, module(x))
    assert len(sights) == 3
    for sight in sights.values():
        assert ((sight.received().double().sum(-1) - 200).abs() <= 0.2).all()
        assert ((sight.entropy > 0) & (sight.entropy <= 5.3)).all()


def test_a_step_of_training_is_that_of_float64():
    module, x = encoder(torch.float32), torch.randn(2, 200, WIDTH, device="cuda")
    exact = copy.deepcopy(module).double()
    module(x).square().mean().backward()
    exact(x.double()).square().mean().backward()
    for (name, got), want in zip(module.named_parameters(), exact.parameters(), strict=True):
        if not name.endswith("key.bias"):  # it shifts all scores of a row alike: no gradient but rounding
            assert distance(got.grad, want.grad) <= 1e-3, name
