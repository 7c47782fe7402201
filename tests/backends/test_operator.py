"""The streaming backend in graphs: compiled, exported and written down, it gives what it gives without."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
import torch
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.torch_version import TorchVersion

import sightline as sl
from sightline.backends import operator, streaming
from sightline.backends.call import make_call
from sightline.backends.spelled import spell
from sightline.errors import InputError, SightlineError
from sightline.masks import Mask

pytestmark = [
    # Of the oldest torch.
    pytest.mark.filterwarnings("ignore:Skipping serialization of skipfiles"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),
    pytest.mark.filterwarnings("ignore:Node .* does not reference an nn.Module"),
]

# The compiler of the oldest torch neither follows `&` between objects nor lists attributes of one: graphs end there.
WHOLE = TorchVersion(torch.__version__) >= (2, 9)

LENGTH = 7
IDS = torch.tensor([0, 0, 0, 1, 1, 2, 2])


def left_padded(*lengths: int, length: int = LENGTH) -> torch.Tensor:
    return torch.stack([torch.arange(length) >= length - n for n in lengths])


def inputs(length: int = LENGTH, grad: bool = True, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(length)
    shapes = (2, 4, length, 8), (2, 2, length, 8), (2, 2, length, 6)
    return [torch.randn(shape, dtype=dtype, requires_grad=grad) for shape in shapes]


class Every(Mask):
    """A mask of one's own, with a number and a text."""

    def __init__(self, step: int, which: str) -> None:
        self.step, self.which = step, which

    def tile(self, rows, columns, queries, keys, device):
        column = torch.arange(columns.start, columns.stop, device=device)
        return (column % self.step == (0 if self.which == "first" else self.step - 1))[None]


class Near(Mask):
    """A mask of one's own, with a tensor and a mask: each head sees so far, and what the mask allows."""

    def __init__(self, reach: torch.Tensor, mask: Mask) -> None:
        self.reach, self.mask = reach, mask

    def tile(self, rows, columns, queries, keys, device):
        row = torch.arange(rows.start, rows.stop, device=device)[:, None] + keys - queries
        column = torch.arange(columns.start, columns.stop, device=device)
        near = (row - column).abs() <= self.reach[:, None, None]
        return near & self.mask.tile(rows, columns, queries, keys, device)


class ByFunction(Mask):
    """A mask of one's own that no graph can hold."""

    def __init__(self, rule) -> None:
        self.rule = rule

    def tile(self, rows, columns, queries, keys, device):
        return self.rule(torch.arange(columns.start, columns.stop, device=device))[None]


MASKS = {
    "window": sl.window(2),
    "both sides": sl.window(1, 2),
    "start": sl.causal(align="start") & sl.window(3),
    "beyond any length": sl.window(2, 10**30) & sl.padding([3, 7]),
    "prefix": sl.prefix(3),
    "documents": sl.documents(IDS),
    "documents of each": sl.documents(torch.tensor([[0, 0, 1, 1, 1, 1, 2], [5, 5, 5, 5, 5, 5, 5]])) & sl.causal(),
    "padding": sl.padding([3, 7]) & sl.causal(),
    "left padding": sl.padding(left_padded(4, 7)) & sl.window(3),
    "dense": sl.dense(torch.tensor([[True, False, True, True, False, True, True]]).expand(LENGTH, -1)) & sl.causal(),
    "or": sl.window(1) | sl.documents(IDS) & sl.causal(),
    "not": ~sl.window(1),
    "nothing": sl.padding([0, 7]) & sl.window(2),
}
# Each with what it trains.
OPTIONS = {
    "plain": {"backend": "streaming"},
    "causal sinks": {"mask": sl.causal(), "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True)},
    "window sinks": {"mask": sl.window(2), "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True)},
    "softcap": {"mask": sl.padding(left_padded(2, 6)) & sl.causal(), "softcap": 1.5, "scale": 0.7},
    "alibi": {"mask": sl.causal(), "bias": sl.alibi(4)},
    "alibi softcap": {"mask": sl.window(3, 1), "bias": sl.alibi(4), "softcap": 2.0},
    "bias": {"mask": sl.window(3), "bias": torch.linspace(-1, 1, 49).reshape(7, 7).requires_grad_()},
    "fixed bias": {"mask": sl.window(3), "bias": torch.linspace(-1, 1, 7)},
    "relu": {"mask": sl.padding([3, 7]) & sl.causal(), "normalizer": "relu"},
    "sigmoid": {"mask": sl.documents(IDS), "normalizer": "sigmoid", "bias": sl.alibi(4)},
    "uniform": {"mask": sl.prefix(2), "normalizer": "uniform"},
    "no scale": {"mask": sl.window(2), "scale": 0.0},
}
CASES = {name: {"mask": mask} for name, mask in MASKS.items()} | OPTIONS


def both(compiled, eager, tensors: list[torch.Tensor]) -> None:
    """Hold outputs and gradients to each other."""
    ours, theirs = compiled(*tensors[:3]), eager(*tensors[:3])
    torch.testing.assert_close(ours, theirs)
    weight = torch.linspace(-1, 1, ours.numel()).view(ours.shape)
    grads = [torch.autograd.grad((out.sin() * weight).sum(), tensors) for out in (ours, theirs)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_compiled_as_one_graph_it_is_the_same(options) -> None:
    torch.compiler.reset()
    trained = [x for x in options.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    tensors = [*inputs(), *trained]
    assert sl.which_backend(*tensors[:3], **options).backend == "streaming"

    def f(q, k, v):
        return sl.attention(q * 1, k, v, **options)

    both(torch.compile(f, fullgraph=True, backend="aot_eager"), f, tensors)


def test_inductor_makes_the_same_of_it() -> None:
    torch.compiler.reset()
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True)

    def f(q, k, v):
        # As layers call it: heads and time change places, so that no tensor lies in one piece.
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q * 2, k.exp(), v))
        mask = MASKS["left padding"]
        return sl.attention(q, k, v, mask=mask, sinks=sinks) + sl.attention(q, k, v, mask=mask, normalizer="relu")

    both(torch.compile(f, fullgraph=True), f, [*inputs(), sinks])


@pytest.mark.parametrize("dynamic, most", [(True, 1), (None, 2)])
def test_one_graph_does_every_length(dynamic, most) -> None:
    torch.compiler.reset()
    counters.clear()

    def f(q, k, v, real, ids, mask):
        mine = sl.attention(q, k, v, mask=sl.padding(real), softcap=3.0, bias=sl.alibi(4))
        return mine + sl.attention(q, k, v, mask=sl.documents(ids)) + sl.attention(q, k, v, mask=mask)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for length, limit in ((7, 2), (11, 3), (300, 5), (299, 4)):
        tensors, real = inputs(length), left_padded(length - 2, length, length=length)
        rest = real, torch.arange(length) // 4, sl.window(limit)
        both(lambda *qkv, rest=rest: compiled(*qkv, *rest), lambda *qkv, rest=rest: f(*qkv, *rest), tensors)
    assert counters["stats"]["unique_graphs"] <= most
    assert not counters["graph_break"]


def test_another_mask_is_never_taken_for_the_one_before() -> None:
    torch.compiler.reset()
    q, k, v = inputs(grad=False)
    compiled = torch.compile(lambda mask: sl.attention(q, k, v, mask=mask), fullgraph=True, backend="aot_eager")
    real = left_padded(4, 7)
    masks = [sl.window(2), sl.window(3), sl.window(2, 1), sl.prefix(3), sl.causal() & sl.padding(real)]
    for mask in [*masks, *masks, sl.causal(align="start") & sl.padding(~real), sl.causal() | sl.padding(real)]:
        torch.testing.assert_close(compiled(mask), sl.attention(q, k, v, mask=mask))
    real = left_padded(4, 7)
    changed = sl.causal() & sl.padding(real)
    before = compiled(changed).clone()
    real[0] = True
    torch.testing.assert_close(compiled(changed), sl.attention(q, k, v, mask=changed))
    assert not torch.equal(compiled(changed), before)


def test_masks_of_ones_own() -> None:
    torch.compiler.reset()
    q, k, v = inputs(grad=False)
    compiled = torch.compile(lambda mask: sl.attention(q, k, v, mask=mask), fullgraph=WHOLE, backend="aot_eager")
    reach = torch.tensor([0, 1, 3, 9])
    near = Near(reach, sl.causal()), Near(reach + 1, sl.padding([3, 7])), Near(reach, Every(2, "first") | sl.causal())
    every = Every(2, "first"), Every(3, "first"), Every(3, "last"), ~Every(2, "last") & sl.window(4)
    for mask in (*every, *near):
        torch.testing.assert_close(compiled(mask), sl.attention(q, k, v, mask=mask))


def test_masks_combined_inside() -> None:
    torch.compiler.reset()

    def f(q, k, v, lengths):
        return sl.attention(q, k, v, mask=(sl.padding(lengths) & sl.window(3)) | sl.causal() & sl.documents(IDS))

    compiled, lengths = torch.compile(f, fullgraph=WHOLE, backend="aot_eager"), torch.tensor([3, 7])
    both(lambda *qkv: compiled(*qkv, lengths), lambda *qkv: f(*qkv, lengths), inputs())


def test_a_class_that_is_defined_anew_is_another_one() -> None:
    def define(step: int) -> Mask:
        class Again(Mask):
            def tile(self, rows, columns, queries, keys, device):
                return (torch.arange(columns.start, columns.stop, device=device) % step == 0)[None]

        return Again()

    first, second = define(2), define(3)
    for mask, step in ((first, 2), (second, 3)):
        again, _ = operator.unspell(spell((mask, None), [], []), [], [])
        assert type(again) is type(mask)
        assert again.to_dense(1, 7).equal((torch.arange(7) % step == 0)[None])
    with pytest.raises(InputError, match="not known here"):
        operator.unspell("('part','elsewhere.Mask')", [], [])


def test_a_mask_of_a_function_ends_the_graph_and_says_so() -> None:
    torch.compiler.reset()
    q, k, v = inputs(grad=False)
    mask = ByFunction(lambda j: j % 2 == 0)

    def f(q, k, v):
        return sl.attention(q, k, v, mask=mask)

    with pytest.raises(Exception, match="a mask or bias that holds a function" if WHOLE else "__dict__"):
        torch.compile(f, fullgraph=True, backend="eager")(q, k, v)
    torch.testing.assert_close(torch.compile(f, backend="eager")(q, k, v), f(q, k, v))


def test_dropout_draws_anew_each_time_and_the_same_backwards() -> None:
    torch.compiler.reset()
    q, k, _ = inputs(grad=False)
    v = torch.eye(LENGTH).expand(2, 2, -1, -1).clone().requires_grad_()

    def f(v):
        return sl.attention(q, k, v, mask=sl.window(4), dropout=0.5, backend="streaming")

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    first, second = compiled(v), compiled(v)
    assert not torch.equal(first, second)
    # The output is linear in the values, and of an identity it is the weights that were kept.
    seen = first.detach().unflatten(1, (2, 2)).sum(2).mT @ torch.ones(LENGTH)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), v)[0][..., 0], seen)


def test_autocast_and_half_precision() -> None:
    torch.compiler.reset()
    tensors = inputs(grad=False)

    def f(q, k, v):
        return sl.attention(q, k, v, mask=sl.window(2), softcap=2.0)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = compiled(*tensors), f(*tensors)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}], ids=["fused", "tiles"])
def test_what_is_not_finite_stays_hidden_in_a_graph_too(options) -> None:
    torch.compiler.reset()
    q, k, v = inputs(grad=False)
    k[:, :, 5], v[:, :, 6] = torch.nan, torch.inf
    tensors = [t.requires_grad_() for t in (q, k, v)]
    mask = sl.window(2)

    def f(q, k, v):
        return sl.attention(q, k, v, mask=mask, **options)

    out = torch.compile(f, fullgraph=True, backend="aot_eager")(*tensors)
    assert out[:, :, :5].isfinite().all()
    assert torch.equal(out.isnan(), f(*tensors).isnan())
    for ours, theirs in zip(
        *(torch.autograd.grad(x[:, :, :5].sum(), tensors) for x in (out, f(*tensors))), strict=True
    ):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        assert ours[:, :, :3].isfinite().all()  # the others stand in rows with NaN, or are seen by them


class Layer(torch.nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.sinks, self.options = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 0.0])), options
        self.window = sl.window(2)

    def forward(self, q, k, v, real):
        out = sl.attention(q, k, v, mask=self.window, sinks=self.sinks)
        return out + sl.attention(q, k, v, mask=sl.padding(real), softcap=2.0, **self.options)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
def test_exported_saved_and_loaded(strict, dynamic) -> None:
    torch.compiler.reset()
    layer = Layer(bias=sl.alibi(4))
    length = torch.export.Dim("length", min=2, max=4096)
    along = {2: length}
    shapes = {"q": along, "k": along, "v": along, "real": {1: length}} if dynamic else None
    example = (*inputs(9, grad=False), left_padded(4, 9, length=9))
    program, file = torch.export.export(layer, example, strict=strict, dynamic_shapes=shapes), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for n in (9, 13, 301) if dynamic else (9,):
        given = (*inputs(n, grad=False), left_padded(n - 4, n, length=n))
        torch.testing.assert_close(loaded(*given), layer(*given))
    assert sum(node.target is torch.ops.sightline.stream.default for node in program.graph.nodes) == 2


def test_written_down_for_other_lengths_and_other_values() -> None:
    def f(q, k, v, lengths):
        return sl.attention(q, k, v, mask=sl.padding(lengths) & sl.window(3))

    lengths = torch.tensor([3, 7])
    graph = make_fx(f, tracing_mode="symbolic")(*inputs(grad=False), lengths)
    for length in (7, 12):
        given = (*inputs(length, grad=False), torch.tensor([length, 5]))
        torch.testing.assert_close(graph(*given), f(*given))


def test_vmap_inside() -> None:
    torch.compiler.reset()
    bias = torch.linspace(-1, 1, 49).reshape(7, 7)

    def f(q, k, v):
        return torch.func.vmap(lambda q, k, v: sl.attention(q, k, v, mask=sl.window(2), bias=bias, softcap=2.0))(
            q, k, v
        )

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs(grad=False)), f(*inputs(grad=False)))

    def other_masks(q, k, v, real):
        return torch.func.vmap(lambda q, k, v, r: sl.attention(q, k, v, mask=sl.padding(r), softcap=1.0))(q, k, v, real)

    with pytest.raises(Exception, match="one mask"):
        torch.compile(other_masks, fullgraph=True, backend="aot_eager")(*inputs(grad=False), left_padded(3, 7))


def test_torch_func_ends_the_graph() -> None:
    torch.compiler.reset()
    tensors = inputs(grad=False)
    gradient = torch.func.grad(lambda q, k, v: sl.attention(q, k, v, mask=sl.window(2)).sin().sum())
    torch.testing.assert_close(torch.compile(gradient, backend="aot_eager")(*tensors), gradient(*tensors))


@pytest.mark.parametrize(
    "options",
    [
        {"mask": MASKS["left padding"], "sinks": torch.randn(4, requires_grad=True)},
        {"mask": sl.prefix(2), "bias": torch.randn(4, 1, 7, requires_grad=True), "softcap": 2.0},
        {"mask": None, "bias": sl.alibi(4), "normalizer": "sigmoid"},
    ],
    ids=["sinks", "bias", "sigmoid"],
)
def test_torchs_own_checks_of_the_operators(options, monkeypatch) -> None:
    seen = []
    for name in ("stream", "stream_backward"):
        real = getattr(operator, name)
        monkeypatch.setattr(operator, name, lambda *args, real=real: seen.append((real, args)) or real(*args))
    q, k, v = inputs()
    q = q.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()  # in no order of its own
    out, _ = operator.run_with_rows(make_call(q, k, v, **options))
    out.sin().sum().backward()
    assert [op._name for op, _ in seen] == ["stream", "stream_backward"]
    (forward, given), (backward, gradients) = seen
    torch.library.opcheck(forward, given)
    # It has no derivative of its own.
    torch.library.opcheck(backward, [x.detach() if isinstance(x, torch.Tensor) else x for x in gradients])


def test_the_operator_has_no_second_derivative() -> None:
    q, k, v = inputs()
    out, _ = operator.run_with_rows(make_call(q, k, v, mask=sl.window(2)))
    (grad,) = torch.autograd.grad(out.sin().sum(), q, create_graph=True)
    with pytest.raises(SightlineError, match="second derivative"):
        grad.sum().backward()


def test_tensors_without_values() -> None:
    arguments = ("softmax", 0.0, True)
    tensors, numbers = [], []
    rule = spell((MASKS["left padding"], None), tensors, numbers)
    meta = [t.detach().to("meta") for t in inputs(dtype=torch.float16)]
    out, row = operator.stream(*meta, None, None, None, tensors, numbers, rule, 0.3, None, *arguments)
    assert (out.shape, out.dtype, row.shape, row.dtype) == ((2, 4, 7, 6), torch.float16, (2, 4, 7), torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = [torch.empty(t.shape) for t in meta]
        out, row = operator.stream(*fake, None, None, None, tensors, numbers, rule, 0.3, None, *arguments)
        assert {type(out), type(row)} == {FakeTensor}
        assert sl.attention(*fake, mask=sl.window(2)).shape == (2, 4, 7, 6)


def test_without_a_graph_the_operator_is_not_called(monkeypatch) -> None:
    monkeypatch.setattr(operator, "run_with_rows", None)
    out, _ = streaming.run_with_rows(make_call(*inputs(), mask=sl.window(2)))
    assert "_Stream" in type(out.grad_fn).__name__


def test_it_does_not_load_the_compiler() -> None:
    code = "import sys, sightline.backends.operator; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
