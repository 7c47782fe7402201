"""Whatever stands between a product and its softmax, or between weights and theirs: seen as it is, or named."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.watching import watch
from sightline.watching.intercept.by_hand import CHANGED
from sightline.watching.intercept.unseen import BY_HAND

BATCH, HEADS, TIME, DIM = 2, 2, 7, 8
LOW = torch.tensor(-1e4)
HALF = torch.arange(TIME) * -0.5


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def written_into(x):
    x[..., 0] = -1.0
    return x


def largest(x):
    values, places = x.topk(3, -1)
    return torch.full_like(x, -1e4).scatter(-1, places, values)


def in_place(x):
    x -= HALF
    return x


# What leaves each cell where it is: the account is of what the softmax was given.
IN_THEIR_PLACES = {
    "max": lambda x: torch.max(x, LOW),
    "min": lambda x: x.min(-LOW),
    "maximum": lambda x: torch.maximum(x, LOW),
    "logaddexp": lambda x: torch.logaddexp(x, LOW),
    "addcmul": lambda x: torch.addcmul(x, HALF, HALF),
    "lerp": lambda x: torch.lerp(x, HALF.expand_as(x), 0.1),
    "full size": lambda x: x + HALF.expand_as(x).contiguous(),
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "threshold": lambda x: F.threshold(x, -1, -1e4),
    "sin": torch.sin,
    "log1p": lambda x: x.abs().log1p(),
    "round": torch.round,
    "float_power": lambda x: torch.float_power(x.abs(), 1.2).float(),
    "floor_divide": lambda x: x // 0.1,
    "cumsum": lambda x: x.cumsum(-1),
    "layer_norm": lambda x: F.layer_norm(x, (TIME,)),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "less its largest": lambda x: x - x.amax(-1, keepdim=True),
    "written into": written_into,
    "in place": in_place,
}
# What may put them elsewhere.
ELSEWHERE = {
    "sort": lambda x: x.sort(-1)[0],
    "topk": largest,
    "cat": lambda x: torch.cat([x, x[..., :1]], -1)[..., :TIME],
    "stack": lambda x: torch.stack([x, x]).mean(0),
    "roll": lambda x: x.roll(1, -1),
    "mean of heads": lambda x: x.mean(1, keepdim=True).expand_as(x),
}
# What changes weights.
# What leaves weights, which are between 0 and 1, as they are; all else changes them.
HARMLESS = {"max", "min", "maximum", "relu6", "leaky_relu", "threshold", "floor_divide", "logaddexp"}
CHANGES = {name: change for name, change in (IN_THEIR_PLACES | ELSEWHERE).items() if name not in HARMLESS} | {
    "a function of its own": Double.apply,
    "twice": lambda x: x * 2.0,
    "twice in place": lambda x: x.mul_(2),
    "a soft mask": lambda x: x * torch.linspace(0, 1, x.numel()).view_as(x),
    "two hops": lambda x: x @ x,
    "other weights": lambda x: 0.5 * x + 0.5 * x.roll(1, 0),
}


class Attends(nn.Module):
    def __init__(self, scores, weights):
        super().__init__()
        self.num_heads, self.qkv = HEADS, nn.Linear(HEADS * DIM, 3 * HEADS * DIM)
        self.scores, self.weights = scores, weights

    def forward(self, x):
        q, k, v = self.qkv(x).view(BATCH, TIME, 3, HEADS, DIM).permute(2, 0, 3, 1, 4)
        self.used = self.weights(self.scores(q @ k.mT * DIM**-0.5).softmax(-1))
        return (self.used @ v).transpose(1, 2).reshape(x.shape)


def run(scores=lambda x: x, weights=lambda x: x):
    torch.manual_seed(0)
    model = nn.Sequential(Attends(scores, weights)).eval()
    x = torch.randn(BATCH, TIME, HEADS * DIM)
    with torch.no_grad():
        plain = model(x)
        with watch(model) as seen:
            out = model(x)
    assert torch.equal(out, plain)
    return seen, model[0].used


@pytest.mark.parametrize("name", IN_THEIR_PLACES)
def test_scores_that_stay_in_their_places_are_seen(name):
    seen, weights = run(scores=IN_THEIR_PLACES[name])
    assert seen.layers == ["0"]
    assert not seen.unseen
    torch.testing.assert_close(seen[0].tile(slice(0, TIME), slice(0, TIME)), weights, atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:1 module attended")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_scores_that_may_be_elsewhere_are_named(name):
    seen, _ = run(scores=ELSEWHERE[name])
    assert not seen.layers
    assert seen.unseen == {"0": BY_HAND}


@pytest.mark.filterwarnings("ignore:1 module attended")
@pytest.mark.parametrize("name", CHANGES)
def test_weights_that_are_changed_are_named(name):
    seen, _ = run(weights=CHANGES[name])
    assert not seen.layers
    assert list(seen.unseen.values()) in ([CHANGED], [BY_HAND])


def test_a_softmax_of_something_else_is_no_attention():
    """Its scores come of one product, but are a number for each text, not for each key."""

    class Gate(nn.Module):
        def forward(self, x):
            gate = (x @ x.mT).amax((-1, -2)).softmax(-1)
            return gate[:, None, None] * x

    model = nn.Sequential(Gate(), nn.Linear(8, 8))
    with torch.no_grad(), pytest.warns(UserWarning, match="saw no attention"), watch(model) as seen:
        model(torch.randn(3, TIME, 8))
    assert not seen.layers
    assert not seen.unseen
