"""Training monitors: the numbers are right, training is not changed, and in between nothing happens."""

from __future__ import annotations

import copy
import gc
import pickle

import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import sightline as sl
from sightline import nn as slnn
from sightline.backends import reference
from sightline.errors import InputError, InputTypeError


def read(module: torch.nn.Module, *args: object, first: int = 4, **options: object) -> slnn.Reading:
    """One call of a module that attends, monitored."""
    with slnn.Monitor(module, first=first) as monitor:
        module(*args, **options)
        monitor.step()
    assert monitor.latest is not None
    return monitor.latest[""]


masks = st.sampled_from(
    [None, sl.causal(), sl.window(1, 1), sl.prefix(2), sl.causal() & sl.padding([3, 1]), sl.padding([0, 4])]
)


@given(
    mask=masks,
    kv_heads=st.sampled_from([1, 2, 4]),
    normalizer=st.sampled_from(["softmax", "relu", "sigmoid", "uniform"]),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
    queries=st.integers(1, 6),
    first=st.sampled_from([1, 2, 9]),
)
def test_numbers_are_those_of_the_whole_map(mask, kv_heads, normalizer, softcap, sinks, queries, first) -> None:
    torch.manual_seed(0)
    options = {"normalizer": normalizer, "softcap": softcap}
    mha = slnn.MultiHeadAttention(
        16, heads=4, kv_heads=kv_heads, sinks=sinks and normalizer == "softmax", dropout=0.5, **options
    ).double()
    x, memory = (torch.randn(2, n, 16, dtype=torch.float64) for n in (queries, 6))
    reading = read(mha, x, memory, mask=mask, first=first)

    with torch.no_grad():
        q = mha.query(x).unflatten(-1, (4, 4)).transpose(1, 2)
        k = mha.key(memory).unflatten(-1, (kv_heads, 4)).transpose(1, 2)
        each_key = torch.eye(6, dtype=torch.float64).expand(2, kv_heads, 6, 6)
        weights = reference.matrix_view(q, k, each_key, mask=mask, sinks=mha.sinks, **options)  # before dropout
        scores = q @ k.repeat_interleave(4 // kv_heads, 1).mT / 2
        scores = scores if softcap is None else softcap * (scores / softcap).tanh()
        visible = torch.ones(queries, 6).bool() if mask is None else mask.to_dense(queries, 6)
        visible = visible.expand(scores.shape)
        largest = scores.masked_fill(~visible, -torch.inf).amax((0, 2, 3))
        shares = weights / weights.sum(-1, keepdim=True).where(weights.sum(-1, keepdim=True) > 0, 1.0)
        entropy = -torch.xlogy(shares, shares).sum(-1)
        rows = visible.any(-1)
        entropy = torch.stack([entropy[:, h][rows[:, h]].mean() for h in range(4)])
        total = weights.sum((0, 2, 3))
        share = torch.where(total > 0, weights[..., :first].sum((0, 2, 3)) / total, 0.0)
    for ours, theirs in zip(reading, (entropy, largest, share), strict=True):
        assert ours.device.type == "cpu"
        assert ours.dtype == torch.float32
        assert ours.shape == (4,)
        assert not ours.requires_grad
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-6)


def test_all_weight_on_the_first_key_and_none() -> None:
    head = slnn.AttentionHead(4, head_size=4, masked=True)
    with torch.no_grad():
        head.query.weight.zero_()
    reading = read(head, torch.randn(8, 4), first=2)
    # A causal average over i + 1 keys: 1, then 2 / (i + 1).
    torch.testing.assert_close(reading.first_share, torch.tensor([sum(min(2 / n, 1) for n in range(1, 9)) / 8]))
    torch.testing.assert_close(reading.entropy, torch.arange(1.0, 9).log().mean()[None])
    assert reading.max_score == 0


def test_calls_without_a_row_and_without_a_visible_key() -> None:
    mha = slnn.MultiHeadAttention(8, heads=2)
    nothing = slnn.Reading(torch.zeros(2), torch.full((2,), -torch.inf), torch.zeros(2))
    for reading in (
        read(mha, torch.randn(0, 5, 8)),
        read(mha, torch.randn(2, 0, 8), torch.randn(2, 5, 8)),
        read(mha, torch.randn(2, 3, 8), torch.randn(2, 0, 8)),
        read(mha, torch.randn(1, 3, 8), mask=sl.padding([0])),
    ):
        assert all(map(torch.equal, reading, nothing))


def test_what_is_not_a_number_shows() -> None:
    mha, x = slnn.MultiHeadAttention(8, heads=2), torch.randn(2, 5, 8)
    with torch.no_grad():
        mha.query.weight[:4] = torch.nan  # the first head
    for part in read(mha, x):
        assert part.isnan().tolist() == [True, False]


def train(
    model: torch.nn.Module,
    every: int | None = None,
    compiler: str | None = None,
    *,
    steps: int = 4,
    accumulate: int = 1,
    autocast: bool = False,
    hooked: bool = False,
    fullgraph: bool = True,
) -> tuple[list[torch.Tensor], slnn.Monitor | None, list]:
    """Train a copy of a model on noise: its weights, its monitor, and the graphs that were compiled."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    graphs: list = []

    def count(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend(compiler)(graph, inputs)

    run = model if compiler is None else torch.compile(model, fullgraph=fullgraph, backend=count)
    monitor = None
    if every is not None:
        monitor = slnn.Monitor(model, every, first=2, optimizer=optimizer if hooked else None)
    for _ in range(steps):
        for _ in range(accumulate):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                out = run(torch.randn(3, 8, 16))
            out.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if monitor is not None and not hooked:
            monitor.step()
    return list(model.parameters()), monitor, graphs


@pytest.fixture
def decoder() -> slnn.Decoder:
    return slnn.Decoder(16, heads=4, layers=1, kv_heads=2, dropout=0.2)


@pytest.mark.parametrize(
    "compiler, options",
    [("aot_eager", {}), ("eager", {"autocast": True}), ("eager", {"accumulate": 2, "hooked": True})],
    ids=str,
)
def test_training_with_it_and_without_gives_the_same_weights(decoder, compiler, options) -> None:
    plain, _, _ = train(decoder, **options)
    monitored, monitor, _ = train(decoder, every=3, **options)
    assert all(map(torch.equal, plain, monitored))
    assert not torch.equal(plain[0], next(decoder.parameters()))
    assert monitor.steps == [0, 3]
    # Compiled, there are two whole graphs: one for the steps that are recorded, and one for all others.
    plain, _, _ = train(decoder, compiler=compiler, **options)
    monitored, compiled, graphs = train(decoder, every=3, compiler=compiler, **options)
    assert all(map(torch.equal, plain, monitored))
    assert len(graphs) == 2
    assert compiled.steps == [0, 3]
    for ours, theirs in zip(*(m.series("layers.0.attention") for m in (compiled, monitor)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")  # what dynamo does
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_call_is_counted_as_it_was(fullgraph) -> None:
    """A mask made in the graph, and a table that the optimizer changes before it is counted; sinks break the graph."""
    torch.compiler.reset()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = slnn.MultiHeadAttention(8, heads=2, sinks=not fullgraph)
            self.table = torch.nn.Parameter(torch.randn(9, 9))

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            return self.attention(x, mask=sl.padding(lengths), bias=self.table[:5, :5])

    model, x, lengths = Model(), torch.randn(2, 5, 8), torch.tensor([5, 2])
    readings = []
    for run in (model, torch.compile(model, backend="eager", fullgraph=fullgraph)):
        with slnn.Monitor(model) as monitor:
            run(x, lengths)
            for by in (1.0, -1.0):
                with torch.no_grad():
                    model.table.add_(by)  # an optimizer's step, and back
                    if model.attention.sinks is not None:
                        model.attention.sinks.add_(by)
                if by > 0:
                    monitor.step()
        readings.append(monitor.latest["attention"])
    for ours, theirs in zip(*readings, strict=True):
        torch.testing.assert_close(ours, theirs)


# In between


def test_nothing_is_looked_at_in_between(decoder, monkeypatch) -> None:
    looked = []
    real = sl.lens.look
    monkeypatch.setattr("sightline.lens.look", lambda *args, **options: looked.append(0) or real(*args, **options))
    monitor = slnn.Monitor(decoder, every=3)
    for step in range(7):
        assert monitor.due == (step % 3 == 0)
        looked.clear()
        decoder(torch.randn(2, 5, 16))
        assert len(looked) == int(monitor.due)
        monitor.step()
        assert len(looked) == int(step % 3 == 0)
        assert decoder.layers[0].attention._tap.last is None  # nothing is held


def test_no_graph_is_broken_and_none_is_compiled_again(decoder) -> None:
    torch.compiler.reset()
    graphs: list = []
    run = torch.compile(decoder, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    monitor = slnn.Monitor(decoder, every=2)
    x = torch.randn(2, 5, 16)
    for _ in range(2):
        run(x).sum().backward()
        monitor.step()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(6):
            run(x).sum().backward()
            monitor.step()
    assert monitor.steps == [0, 2, 4, 6]
    assert len(graphs) == 2
    # The one for in between is the one of a model without a monitor.
    monitor.remove()
    with torch._dynamo.config.patch(error_on_recompile=True):
        run(x)
    assert [len(graph.graph.find_nodes(op="call_method", target="detach")) for graph in graphs] == [2, 0]


def test_checkpointed_layers() -> None:
    """They are called once more in the backward pass, with the same numbers."""
    layer, x = slnn.EncoderLayer(8, heads=2), torch.randn(2, 5, 8, requires_grad=True)
    expected = slnn.Monitor(layer)
    layer(x)
    expected.step()
    expected.remove()
    for reentrant in (False, True):
        with slnn.Monitor(layer) as monitor:
            checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
            monitor.step()
        assert all(map(torch.equal, monitor.latest["attention"], expected.latest["attention"]))


class Checkpointed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = slnn.EncoderLayer(16, heads=2, dropout=0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, x, use_reentrant=False)


def test_checkpointed_layers_inside_a_compiled_model() -> None:
    model = Checkpointed()
    _, eager, _ = train(model, every=2)
    # Older versions of torch have no option that keeps the graph whole.
    whole = hasattr(torch._dynamo.config, "skip_fwd_side_effects_in_bwd_under_checkpoint")
    with torch._dynamo.config.patch(**{"skip_fwd_side_effects_in_bwd_under_checkpoint": True} if whole else {}):
        plain, _, _ = train(model, compiler="aot_eager")
        same, compiled, graphs = train(model, every=2, compiler="aot_eager", fullgraph=whole)
    assert all(map(torch.equal, plain, same))
    assert len(graphs) == 2 or not whole
    _, uncompiled, _ = train(model, every=2, compiler="aot_eager", fullgraph=False)
    for monitor in (compiled, uncompiled):
        for ours, theirs in zip(*(m.series("layer.attention") for m in (monitor, eager)), strict=True):
            torch.testing.assert_close(ours, theirs)


# What is recorded


def test_of_several_calls_in_one_step_the_last_is_recorded() -> None:
    mha, a, b = slnn.MultiHeadAttention(8, heads=2), torch.randn(2, 5, 8), torch.randn(3, 4, 8)
    alone = read(mha, b)
    with slnn.Monitor(mha) as monitor:
        mha(a)
        mha(b)
        monitor.step()
    assert all(map(torch.equal, monitor.latest[""], alone))


def test_validation_is_not_recorded() -> None:
    mha, x = slnn.MultiHeadAttention(8, heads=2), torch.randn(2, 5, 8)
    monitor = slnn.Monitor(mha, every=2)
    with torch.no_grad():
        mha(x)
    with torch.inference_mode():
        mha(x)
    torch.func.vmap(mha)(x)
    monitor.step()
    assert monitor.latest is None
    assert monitor.steps == []
    mha.eval()(x)  # not due
    monitor.step()
    mha(x)  # due, frozen but with gradients
    monitor.step()
    assert monitor.steps == [2]


def test_a_layer_that_was_left_out_is_nan_in_the_series() -> None:
    decoder, x = slnn.Decoder(8, heads=2, layers=2), torch.randn(3, 8)
    monitor = slnn.Monitor(decoder, every=1)
    for part in (decoder, decoder.layers[0], decoder):
        part(x)
        monitor.step()
    assert monitor.steps == [0, 1, 2]
    assert list(monitor.history[1]) == ["layers.0.attention"]
    series = monitor.series("layers.1.attention")
    for part in series:
        assert part.shape == (3, 2)
        assert part.isnan().all(1).tolist() == [False, True, False]
    assert not monitor.series("layers.0.attention").entropy.isnan().any()


def test_as_a_table() -> None:
    decoder = slnn.Decoder(8, heads=2, layers=2, cross=True)
    monitor = slnn.Monitor(decoder, every=1, layers="*.cross_attention")
    for _ in range(3):
        decoder(torch.randn(2, 3, 8), torch.randn(2, 5, 8))
        monitor.step()
    table = pandas.DataFrame(monitor.rows())
    assert list(table.columns) == ["step", "module", "head", "entropy", "max_score", "first_share"]
    assert len(table) == 3 * 2 * 2
    last = table[(table.step == 2) & (table.module == "layers.1.cross_attention")]
    assert last.entropy.tolist() == monitor.latest["layers.1.cross_attention"].entropy.tolist()
    assert repr(monitor) == "Monitor(every=1, first=4, modules=2, records=3)"
    assert repr(monitor.latest) == "Record(step=2, layers.0.cross_attention, layers.1.cross_attention)"


# Coming and going


def test_two_monitors_do_not_disturb_each_other() -> None:
    mha = slnn.MultiHeadAttention(8, heads=2)
    often, seldom = slnn.Monitor(mha, every=2, first=1), slnn.Monitor(mha, every=3, first=2)
    for step in range(7):
        mha(torch.randn(2, 5, 8))
        for monitor in (often, seldom) if step % 2 else (seldom, often):
            monitor.step()
    assert often.steps == [0, 2, 4, 6]
    assert seldom.steps == [0, 3, 6]
    a, b = often.latest[""], seldom.latest[""]
    assert torch.equal(a.entropy, b.entropy)
    assert (a.first_share < b.first_share).all()
    assert mha._tap.due is False
    often.remove()
    for _ in range(3):
        mha(torch.randn(2, 5, 8))
        seldom.step()
    assert often.steps == [0, 2, 4, 6]
    assert seldom.steps == [0, 3, 6, 9]


def test_removing_it_or_dropping_it_turns_it_off() -> None:
    mha, x = slnn.MultiHeadAttention(8, heads=2), torch.randn(2, 5, 8)
    with slnn.Monitor(mha, every=1) as monitor:
        mha(x)
        monitor.step()
        assert mha._tap.due
    assert not mha._tap.due
    assert not monitor.due
    mha(x)
    monitor.step()
    monitor.remove()
    assert monitor.steps == [0]  # what was recorded stays
    dropped = slnn.Monitor(mha)
    assert mha._tap.due
    del dropped
    gc.collect()
    assert not mha._tap.due


def test_an_error_ends_it_too() -> None:
    mha = slnn.MultiHeadAttention(8, heads=2)
    with pytest.raises(InputError), slnn.Monitor(mha):
        mha(torch.randn(5, 9))
    assert not mha._tap.due


def test_an_optimizer_can_call_it() -> None:
    mha = slnn.MultiHeadAttention(8, heads=2)
    optimizer = torch.optim.SGD(mha.parameters(), lr=0.1)
    with slnn.Monitor(mha, every=2, optimizer=optimizer) as monitor:
        for _ in range(4):
            mha(torch.randn(3, 8)).sum().backward()
            optimizer.step()
    assert monitor.steps == [0, 2]
    mha(torch.randn(3, 8))
    optimizer.step()
    assert monitor.steps == [0, 2]


def test_copies_of_a_monitored_model_are_free() -> None:
    mha, x = slnn.MultiHeadAttention(8, heads=2), torch.randn(2, 5, 8)
    monitor = slnn.Monitor(mha)
    mha(x)
    names = list(mha.state_dict())
    for other in (copy.deepcopy(mha), pickle.loads(pickle.dumps(mha))):
        assert not other._tap.due
        assert other._tap.last is None
        assert torch.equal(other(x), mha(x))
    monitor.step()
    assert monitor.steps == [0]
    assert names == list(slnn.MultiHeadAttention(8, heads=2).state_dict())


def test_it_is_watched_and_observed_at_once() -> None:
    mha, x = slnn.MultiHeadAttention(8, heads=2), torch.randn(2, 5, 8)
    with slnn.Monitor(mha) as monitor:
        _, sight = mha.observe(x)
        monitor.step()
    torch.testing.assert_close(monitor.latest[""].entropy, sight.entropy.mean((0, 2)))


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"every": 0}, InputError, "every is too small"),
        ({"every": 1.5}, InputTypeError, "every must be a whole number"),
        ({"first": 0}, InputError, "first is too small"),
        ({"layers": 7}, InputError, "there is no such layer"),
        ({"optimizer": 1}, InputTypeError, "this is not an optimizer"),
    ],
)
def test_bad_arguments(options, error, text) -> None:
    mha = slnn.MultiHeadAttention(8, heads=2)
    with pytest.raises(error, match=text):
        slnn.Monitor(mha, **options)
    assert not mha._tap.due


def test_a_name_that_was_not_recorded() -> None:
    monitor = slnn.Monitor(slnn.Encoder(8, heads=2, layers=1))
    with pytest.raises(InputError) as error:
        monitor.series("layers.0")
    assert str(error.value).splitlines() == [
        "nothing was recorded under this name",
        "  expected: one of layers.0.attention, after a step that was due",
        "  got: 'layers.0'",
        "  try: monitor.steps are the steps that were recorded",
    ]
