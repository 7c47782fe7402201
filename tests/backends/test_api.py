"""`sl.attention` as a whole: every backend gives what the definition gives, whatever the input looks like."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch.overrides import TorchFunctionMode

import sightline as sl
from cases import DTYPES, Case, cases, check, error, exact, inputs, plain_error
from sightline.backends import reference
from sightline.backends.call import make_call
from sightline.positions import alibi

# One call of each path: torch's kernel, our bands of it, our tiles, and the definition.
PATHS = {
    "sdpa": {"backend": "sdpa"},
    "bands": {"backend": "streaming"},
    "tiles": {"backend": "streaming", "softcap": 5.0},
    "relu": {"backend": "streaming", "normalizer": "relu"},
    "sigmoid": {"backend": "streaming", "normalizer": "sigmoid"},
    "uniform": {"backend": "streaming", "normalizer": "uniform"},
    "reference": {"backend": "reference"},
    "auto": {},
}
paths = pytest.mark.parametrize("path", PATHS)


@settings(max_examples=300)
@given(cases())
def test_auto_makes_at_most_twice_the_error_of_plain_torch(case):
    check(case, "auto")


def test_s0_1_the_average_of_the_past_is_a_product_with_a_row_normalised_tril():
    words = ["I", "am", "not", "interested", "in", "this", "workshop", "now"]
    x = torch.randn(len(words), 6, dtype=torch.float64)
    tril = torch.tril(torch.ones(len(words), len(words), dtype=torch.float64))
    average = tril / tril.sum(-1, keepdim=True) @ x
    out = sl.attention(x, x, x, mask=sl.causal(), normalizer="uniform")
    torch.testing.assert_close(out, average)
    torch.testing.assert_close(out[3], x[:4].mean(0))


def test_s4_1_context_without_weights():
    x = torch.randn(5, 3, dtype=torch.float64)
    z = sl.attention(x, x, x, scale=1)
    omega = torch.stack([x[1] @ x[j] for j in range(5)])  # i = 2, counted from one
    alpha = omega.exp() / omega.exp().sum()
    torch.testing.assert_close(z[1], sum(alpha[j] * x[j] for j in range(5)))


def test_s4_2_the_alphas_of_a_row_sum_to_one():
    x = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(reference.weights(x, x, scale=1).sum(-1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(
        sl.attention(x, x, torch.ones(5, 1, dtype=torch.float64), scale=1), torch.ones(5, 1, dtype=torch.float64)
    )


def test_a_batch_equals_its_members():
    q, k, v = inputs(2, 3, heads=4, kv_heads=2, queries=5, keys=7)
    ids = torch.randint(0, 2, (2, 3, 7))
    out = sl.attention(q, k, v, mask=sl.documents(ids) & sl.causal())
    for a in range(2):
        for b in range(3):
            one = sl.attention(q[a, b], k[a, b], v[a, b], mask=sl.documents(ids[a, b]) & sl.causal())
            torch.testing.assert_close(out[a, b], one)


def test_rows_equal_the_whole():
    """The last query alone, with all keys, is the last row: what a cache relies on."""
    q, k, v = inputs(2, queries=6, keys=6)
    for mask in (sl.causal(), sl.window(2), sl.prefix(2), sl.documents([0, 0, 1, 1, 2, 2])):
        whole = sl.attention(q, k, v, mask=mask)
        torch.testing.assert_close(sl.attention(q[..., -1:, :], k, v, mask=mask), whole[..., -1:, :])


# Rows that see nothing.

EMPTY_ROWS = {
    "dense": lambda: torch.tensor([True, False, True, True, False])[:, None].expand(5, 7),
    "queries after the keys": lambda: (
        sl.dense(torch.arange(5)[:, None] > torch.tensor([0, 0, 0, 1, 1, 2, 2])) & sl.window(None, None)
    ),
    "everything": lambda: torch.zeros(5, 7, dtype=torch.bool),
    "padding of 0": lambda: sl.padding([0, 4]),
}


@paths
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EMPTY_ROWS)
def test_a_row_that_sees_nothing_gives_zero_and_has_no_gradient(path, dtype, name):
    mask = EMPTY_ROWS[name]()
    if path == "sdpa" and name == "queries after the keys":
        mask = mask.to_dense(5, 7)
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=5, keys=7, value_dim=3, dtype=dtype, grad=True)
    out = sl.attention(q, k, v, mask=mask, **PATHS[path])
    call = make_call(q, k, v, mask=mask)
    empty = ~call.mask.to_dense(5, 7).expand(2, 4, 5, 7).any(-1)
    assert empty.any()
    assert (out[empty] == 0).all()
    assert path == "relu" or (out[~empty] != 0).any(-1).all()
    out.backward(torch.randn(out.shape).to(dtype))
    for t in (q, k, v):
        grad = torch.zeros_like(t) if t.grad is None else t.grad
        assert grad.isfinite().all()
    if q.grad is not None:
        assert (q.grad[empty] == 0).all()


@pytest.mark.parametrize("path", ["sdpa", "bands", "tiles", "reference"])
def test_a_row_hidden_by_a_bias_of_minus_infinity_is_the_same(path):
    q, k, v = inputs(2, queries=4, keys=5, grad=True)
    bias = torch.zeros(4, 5, dtype=torch.float64)
    bias[1] = -torch.inf
    out = sl.attention(q, k, v, bias=bias, **PATHS[path])
    out.sum().backward()
    assert (out[..., 1, :] == 0).all()
    assert out.isfinite().all()
    assert (q.grad[..., 1, :] == 0).all()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


@pytest.mark.parametrize("path", ["bands", "tiles", "reference"])
def test_a_sink_of_minus_infinity_is_no_sink(path):
    q, k, v = inputs(2, queries=4, keys=5, grad=True)
    sinks = torch.tensor([-torch.inf, 0.0], dtype=torch.float64)
    bias = torch.zeros(4, 5, dtype=torch.float64)
    bias[1] = -torch.inf
    out = sl.attention(q, k, v, bias=bias, sinks=sinks, **PATHS[path])
    without = sl.attention(q, k, v, bias=bias, **PATHS[path])
    torch.testing.assert_close(out[:, 0], without[:, 0])
    out.sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


@pytest.mark.parametrize("queries, keys", [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0,)], ids=str)
@paths
def test_no_query_and_no_key(path, batch, queries, keys):
    q, k, v = inputs(*batch, queries=queries, keys=keys, value_dim=3, grad=True)
    table = torch.ones(queries, keys, dtype=torch.bool)
    masks = [None, table, sl.padding(torch.zeros(batch, dtype=torch.int64)), sl.causal(align="start")]
    for mask in masks:
        out = sl.attention(q, k, v, mask=mask, **PATHS[path])
        assert out.shape == (*batch, 2, queries, 3)
        assert (out == 0).all()
        out.sum().backward()


# What is not finite.

SEEN = {
    "none": lambda: None,
    "causal": lambda: sl.causal(),
    "causal start": lambda: sl.causal(align="start"),
    "window": lambda: sl.window(1, 1),
    "prefix": lambda: sl.prefix(2),
    "documents": lambda: sl.documents([0, 0, 0, 1, 1, 1, 2]),
    "padding": lambda: sl.padding([7, 4]),
    "dense": lambda: torch.rand(2, 4, 6, 7, generator=torch.Generator().manual_seed(3)) < 0.5,
    "not": lambda: ~sl.causal(),
    "both": lambda: sl.padding([7, 4]) & sl.causal(),
}


def of_what_is_read(q, k, v, visible, **options):
    """The definition over the keys a row may see and no others; rows that see the same are computed together."""
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    groups = q.shape[-3] // k.shape[-3]
    for b in range(q.shape[0]):
        for g in range(k.shape[1]):
            heads = slice(g * groups, (g + 1) * groups)
            for see in visible[b, heads].flatten(0, 1).unique(dim=0):
                if see.any():
                    rows = (visible[b, heads] == see).all(-1)
                    seen = reference.matrix_view(q[b, heads][rows], k[b, g][see], v[b, g][see], **options)
                    out[b, heads][rows] = seen
    return out


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("path", [path for path in PATHS if path != "reference"])
def test_what_is_not_finite_reaches_only_the_rows_that_read_it(path, name, where, value):
    mask = SEEN[name]()
    options = {o: x for o, x in PATHS[path].items() if o != "backend"}
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=6, keys=7, value_dim=3)
    if path == "sdpa" and name in ("causal", "window", "prefix", "documents", "not", "both"):
        mask = mask.to_dense(6, 7)
    visible = torch.ones(6, 7, dtype=torch.bool) if mask is None else make_call(q, k, v, mask=mask).mask.to_dense(6, 7)
    visible = visible.expand(2, 4, 6, 7)
    clean = sl.attention(q, k, v, mask=mask, **PATHS[path])
    {"q": q, "k": k, "v": v}[where][0, 1, 3, 1] = value
    out = sl.attention(q, k, v, mask=mask, **PATHS[path])
    expected = of_what_is_read(q, k, v, visible, **options)
    assert torch.equal(out.isfinite(), expected.isfinite())
    if torch.tensor(value).isnan() and not (path == "uniform" and where != "v"):
        assert torch.equal(out.isnan(), expected.isnan())
    torch.testing.assert_close(out.masked_fill(~out.isfinite(), 0), expected.masked_fill(~expected.isfinite(), 0))
    untouched = visible.new_ones(2, 4, 6)
    if where == "q":
        untouched[0, 1, 3] = False
    else:
        untouched[0, 2:] = ~visible[0, 2:, :, 3]
    torch.testing.assert_close(out[untouched], clean[untouched])


def test_the_definition_too_reads_only_what_is_visible():
    q, k, v = inputs(queries=4, keys=4)
    v[0, 3, 0] = torch.nan
    assert sl.attention(q, k, v, mask=sl.causal(), backend="reference")[0, :3].isfinite().all()


def test_what_is_not_finite_over_several_tiles():
    q, k, v = inputs(1, queries=700, keys=1300, dtype=torch.float32)
    clean = sl.attention(q, k, v, mask=sl.window(200))
    v[0, 0, 900, 2] = torch.nan
    out = sl.attention(q, k, v, mask=sl.window(200))
    reads = sl.window(200).to_dense(700, 1300)[:, 900]
    assert out[0, 0, reads, 2].isnan().all()
    out[0, 0, reads, 2] = clean[0, 0, reads, 2]
    torch.testing.assert_close(out, clean)


# Gradients.


@pytest.mark.parametrize("queries, keys", [(3, 4), (1, 4), (0, 4), (3, 0)])
@pytest.mark.parametrize("batch", [(), (2,), (0,)], ids=str)
@pytest.mark.parametrize("needs", ["q", "k", "v", "bias", "sinks"])
@paths
def test_an_output_has_a_grad_fn_whenever_an_input_needs_gradients(path, needs, batch, queries, keys):
    """Also where the input does not matter: nothing is read, nothing is seen, or the normaliser does not ask."""
    softmax = PATHS[path].get("normalizer", "softmax") == "softmax"
    for mask in (None, torch.zeros(queries, keys, dtype=torch.bool), sl.padding(torch.zeros(batch, dtype=torch.int64))):
        given = dict(zip("qkv", inputs(*batch, queries=queries, keys=keys), strict=True))
        if needs == "bias":
            given["bias"] = torch.zeros(queries, keys, dtype=torch.float64)
        if needs == "sinks":
            if not softmax or path == "sdpa":
                return
            given["sinks"] = torch.zeros(2, dtype=torch.float64)
        given[needs].requires_grad_()
        out = sl.attention(**given, mask=mask, **PATHS[path])
        assert out.grad_fn is not None
        (grad,) = torch.autograd.grad(out.sum(), given[needs])
        assert grad.isfinite().all()


# What the inputs may look like.


@paths
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_output_has_the_dtype_of_the_input(path, dtype):
    q, k, v = inputs(2, dtype=dtype)
    bias, mask = torch.randn(6, 6), sl.causal() if path not in ("sdpa", "auto") else None
    assert sl.attention(q, k, v, bias=bias, mask=mask, **PATHS[path]).dtype == dtype


@paths
@pytest.mark.parametrize("look", ["transposed", "strided", "last axis", "expanded", "heads last"])
def test_inputs_need_not_be_contiguous(path, look):
    q, k, v = inputs(2, heads=4, queries=5, keys=5, dim=6)

    def same(t):
        if look == "transposed":
            return t.transpose(-1, -2).contiguous().transpose(-1, -2)
        if look == "strided":
            return torch.stack([t, torch.full_like(t, torch.nan)], -2).flatten(-3, -2)[..., ::2, :]
        if look == "last axis":
            return torch.stack([t, torch.full_like(t, torch.nan)], -1).flatten(-2)[..., ::2]
        if look == "expanded":
            return t[:1, :1].expand(t.shape)
        return t.transpose(1, 2).contiguous().transpose(1, 2)

    options = {"mask": sl.padding([3, 5]), **PATHS[path]}
    strange = [same(t) for t in (q, k, v)]
    assert not any(t.is_contiguous() for t in strange)
    out = sl.attention(*strange, **options)
    torch.testing.assert_close(out, sl.attention(*(t.contiguous() for t in strange), **options))

    leaves = [t.contiguous().detach().requires_grad_() for t in (q, k, v)]
    plain = [t.contiguous().detach().requires_grad_() for t in (same(t) for t in (q, k, v))]
    sl.attention(*(same(t) for t in leaves), **options).sum().backward()
    sl.attention(*plain, **options).sum().backward()
    for ours, theirs in zip(leaves, plain, strict=True):
        if theirs.grad is not None and look != "expanded":
            torch.testing.assert_close(ours.grad, theirs.grad)


@paths
def test_under_autocast_it_is_the_call_in_the_lower_precision(path):
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=70, keys=90, dim=16, dtype=torch.float32)
    options = {"mask": sl.padding([50, 90]), **PATHS[path]}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sl.attention(q, k, v, **options)
    assert out.dtype == torch.bfloat16
    lower = [t.bfloat16() for t in (q, k, v)]
    case = Case(
        *lower,
        {o: x for o, x in options.items() if o != "backend"},
        sl.padding([50, 90]).to_dense(70, 90).expand(2, 4, 70, 90),
    )
    truth = exact(case)
    floor = 4 * torch.finfo(torch.bfloat16).eps
    assert error(out, truth) <= 2 * plain_error(case, truth, PATHS[path].get("backend", "auto")) + floor
    if path != "reference":
        # Scores are held in float32 also under autocast, so that both calls are the same.
        assert torch.equal(out, sl.attention(*lower, **options))


@paths
def test_gradients_under_autocast(path):
    q, k, v = inputs(2, queries=9, keys=9, dtype=torch.float32, grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sl.attention(q, k, v, mask=sl.padding([5, 9]), **PATHS[path])
    out.float().sum().backward()
    for t in (q, k, v):
        if t.grad is not None:
            assert t.grad.dtype == torch.float32
            assert t.grad.isfinite().all()


def test_float64_stays_float64_under_autocast():
    q, k, v = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sl.attention(q, k, v).dtype == torch.float64


# torch.func and torch.compile.

FUNC = {
    "plain": {},
    "causal": {"mask": sl.causal()},
    "window": {"mask": sl.window(2)},
    "padding": {"mask": sl.padding(4)},
    "dense": {"mask": torch.tril(torch.ones(5, 6, dtype=torch.bool))},
    "alibi": {"bias": alibi(2), "mask": sl.causal()},
    "bias": {"bias": torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(5, 6)},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": torch.tensor([0.5, -1.0], dtype=torch.float64)},
    "relu": {"normalizer": "relu", "mask": sl.causal()},
    "sigmoid": {"normalizer": "sigmoid"},
}
func = pytest.mark.parametrize("backend", ["auto", "streaming"])
with_options = pytest.mark.parametrize("options", FUNC.values(), ids=FUNC)


def stacked(n: int):
    q, k, v = inputs(n, heads=2, queries=5, keys=6, dim=4, value_dim=3)
    return q, k, v


# torch has no batching rule for the backward pass of its CPU kernel; it warns and loops.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@func
@with_options
def test_grad_vjp_and_jacrev_equal_autograd(backend, options):
    q, k, v = (t[0] for t in stacked(1))

    def f(q, k, v):
        return sl.attention(q, k, v, backend=backend, **options)

    def loss(q, k, v):
        return (f(q, k, v) ** 2).sum()

    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = reference.matrix_view(*leaves, **options)
    expected = torch.autograd.grad((out**2).sum(), leaves, materialize_grads=True)
    for ours, theirs in zip(torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    value, pull = torch.func.vjp(f, q, k, v)
    torch.testing.assert_close(value, out.detach())
    for ours, theirs in zip(pull(2 * value), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    jacobian = torch.func.jacrev(f, argnums=(0, 1, 2))(q, k, v)
    for ours, theirs in zip(jacobian, expected, strict=True):
        torch.testing.assert_close(torch.tensordot(2 * value, ours, dims=3), theirs)


@func
@with_options
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 0, 0), (0, 0, None)], ids=str)
def test_vmap_equals_the_loop(backend, options, in_dims):
    tensors = [t if dim == 0 else t[0] for t, dim in zip(stacked(3), in_dims, strict=True)]

    def f(q, k, v):
        return sl.attention(q, k, v, backend=backend, **options)

    def loss(q, k, v):
        return (f(q, k, v) ** 2).sum()

    def loop(g):
        rows = [g(*(t[n] if dim == 0 else t for t, dim in zip(tensors, in_dims, strict=True))) for n in range(3)]
        return (
            torch.stack(rows)
            if isinstance(rows[0], torch.Tensor)
            else [torch.stack(column) for column in zip(*rows, strict=True)]
        )

    torch.testing.assert_close(torch.func.vmap(f, in_dims)(*tensors), loop(f))
    gradient = torch.func.grad(loss, argnums=(0, 1, 2))
    for ours, theirs in zip(torch.func.vmap(gradient, in_dims)(*tensors), loop(gradient), strict=True):
        torch.testing.assert_close(ours, theirs)


@func
def test_vmap_over_another_axis_and_over_two(backend):
    q, k, v = inputs(3, 4, queries=5, keys=5)

    def f(q, k, v):
        return sl.attention(q, k, v, mask=sl.window(2), backend=backend)

    expected = f(q, k, v)
    torch.testing.assert_close(torch.func.vmap(f, 1, 1)(q, k, v), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.vmap(f))(q, k, v), expected)


@func
@pytest.mark.parametrize("shape", [(5, 6), (1, 6), (2, 1, 1), (6,), ()], ids=str)
def test_vmap_of_the_gradient_of_a_bias_and_of_sinks(backend, shape):
    q, k, v = stacked(3)
    bias, sinks = torch.randn(shape, dtype=torch.float64), torch.randn(2, dtype=torch.float64)

    def loss(q, k, v, bias, sinks):
        return (sl.attention(q, k, v, bias=bias, sinks=sinks, mask=sl.causal(), backend=backend) ** 2).sum()

    gradient = torch.func.grad(loss, argnums=(3, 4))
    ours = torch.func.vmap(gradient, (0, 0, 0, None, None))(q, k, v, bias, sinks)
    theirs = [gradient(q[n], k[n], v[n], bias, sinks) for n in range(3)]
    torch.testing.assert_close(ours[0], torch.stack([g for g, _ in theirs]))
    torch.testing.assert_close(ours[1], torch.stack([g for _, g in theirs]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": sl.causal()},
        {"mask": sl.causal(align="start")},
        {"mask": torch.tril(torch.ones(8, 8, dtype=torch.bool))},
        {"mask": sl.padding(torch.tensor([3, 8]))},
        {"bias": torch.randn(8, 8)},
    ],
    ids=["none", "causal", "start", "dense", "padding", "bias"],
)
def test_compiled_as_one_graph(options):
    torch.compiler.reset()
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=8, keys=8, dtype=torch.float32, grad=True)
    assert sl.which_backend(q, k, v, **options).backend == "sdpa"

    def f(q, k, v):
        return sl.attention(q, k, v, **options) * 2

    out = torch.compile(f, fullgraph=True, backend="aot_eager")(q, k, v)
    torch.testing.assert_close(out, f(q, k, v))
    compiled = torch.autograd.grad(out.sum(), (q, k, v))
    for ours, theirs in zip(compiled, torch.autograd.grad(f(q, k, v).sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_compiled_as_one_graph_for_any_sizes(backend):
    """One step of a generation after the other, for other heads too: all sizes are symbols in the graph."""
    torch.compiler.reset()

    def f(q, k, v):
        return sl.attention(q, k, v, mask=sl.causal(), backend=backend)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=True)
    for heads, kv_heads, queries, keys in ((8, 2, 1, 40), (8, 2, 1, 41), (4, 4, 1, 42), (6, 2, 1, 40), (6, 2, 9, 9)):
        q, k, v = inputs(2, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, dtype=torch.float32)
        torch.testing.assert_close(compiled(q, k, v), f(q, k, v))


def test_a_scale_of_zero_where_values_cannot_be_looked_at():
    """torch's causal flag hides a key by a score of -inf before the scale, and -inf times 0 is NaN."""
    q, k, v = inputs(2, queries=8, keys=8)
    out, _ = torch.func.vjp(lambda q: sl.attention(q, k, v, mask=sl.causal(), scale=0.0), q)
    torch.testing.assert_close(out, sl.attention(q, k, v, mask=sl.causal(), normalizer="uniform"))


def test_a_mask_made_inside_a_compiled_function():
    torch.compiler.reset()
    q, k, v = inputs(2, queries=8, keys=8, dtype=torch.float32)

    def f(q, k, v, lengths):
        return sl.attention(q, k, v, mask=sl.padding(lengths)) + sl.attention(q, k, v, mask=sl.causal())

    lengths = torch.tensor([3, 8])
    torch.testing.assert_close(
        torch.compile(f, fullgraph=True, backend="aot_eager")(q, k, v, lengths), f(q, k, v, lengths)
    )


def test_a_function_mode_sees_the_call() -> None:
    class Recorder(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.options: list[dict[str, object]] = []

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is sl.attention:
                self.options.append(kwargs)
            return func(*args, **(kwargs or {}))

    q, mask = torch.randn(2, 5, 4), sl.causal()
    with Recorder() as recorder:
        out = sl.attention(q, q, q, mask=mask, softcap=3.0)
    torch.testing.assert_close(out, sl.attention(q, q, q, mask=mask, softcap=3.0), rtol=0, atol=0)
    assert [(seen["mask"], seen["softcap"]) for seen in recorder.options] == [(mask, 3.0)]


LARGE = {
    "hidden as a whole": lambda bias: bias.index_fill_(-2, torch.tensor([2]), -1e9),
    "by the least number": lambda bias: bias.index_fill_(-2, torch.tensor([0, 4]), torch.finfo(torch.float32).min),
    "raised as a whole": lambda bias: bias.index_fill_(-2, torch.tensor([3]), 2e7),
    "but for hidden keys": lambda bias: bias.index_fill_(-1, torch.tensor([4, 5]), -1e9),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("mask", [None, sl.causal(), sl.padding(torch.tensor([4, 6]))], ids=str)
@pytest.mark.parametrize("backend", ["auto", "streaming"])
@pytest.mark.parametrize("shape", [(6, 6), (2, 3, 6, 6), (1, 3, 6, 6)], ids=str)
@pytest.mark.parametrize("with_sinks", [False, True])
def test_gradients_of_rows_whose_scores_are_large_as_a_whole(name, mask, backend, shape, with_sinks):
    """Their lse is -1e9, rounded to 64: what the row sums up to cannot be read from it."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, 3, 6, 8, requires_grad=True) for _ in "qkv")
    grad, bias = torch.randn(2, 3, 6, 8), LARGE[name](torch.randn(shape))
    sinks = torch.randn(3) if with_sinks else None

    def gradients(backend, *tensors):
        to = tensors[0].dtype
        more = {"bias": bias.to(to), "sinks": None if sinks is None else sinks.to(to)}
        return torch.autograd.grad(sl.attention(*tensors, mask=mask, backend=backend, **more), tensors, grad.to(to))

    mine = gradients(backend, q, k, v)
    # Beside such a bias float32 holds nothing of a product: the definition in float32 says what is right.
    for one, right in zip(mine, gradients("reference", q, k, v), strict=True):
        torch.testing.assert_close(one, right, atol=1e-5, rtol=1e-4)
