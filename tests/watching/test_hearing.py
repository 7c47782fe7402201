"""`sl.monitor` for any model: its numbers are those of sl.observe, and training does not notice it."""

from __future__ import annotations

import sys
import threading
import warnings
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

import sightline as sl
from sightline.errors import InputError, InputTypeError
from sightline.watching.intercept import mask_tables
from watch_cases import inputs, model

# What dynamo itself warns of.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.* should not be instantiated:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
)


# This compiler shows a mode nothing of FlexAttention, nor of a region that is compiled once for many.
OLD = TorchVersion(torch.__version__) < (2, 9)
HEARING = sys.modules["sightline.watching.hearing"]


class Attention(nn.Module):
    """Grouped heads, by torch's function; what went into it is kept for comparison."""

    def __init__(self, heads: int = 4, kv_heads: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.sizes, self.dropout = (heads, kv_heads, kv_heads), dropout
        self.of = nn.ModuleList(nn.Linear(16, n * 4) for n in self.sizes)
        self.out = nn.Linear(heads * 4, 16)
        self.given: tuple | None = None

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        q, k, v = (of(x).unflatten(-1, (n, 4)).transpose(1, 2) for of, n in zip(self.of, self.sizes, strict=True))
        if not torch.compiler.is_compiling():
            self.given = (q.detach(), k.detach(), mask, is_causal)
        y = F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=self.dropout, is_causal=is_causal, enable_gqa=True, scale=0.7
        )
        return x + self.out(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, layers: int = 2, checkpointed: bool | None = None, broken: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(layers))
        self.checkpointed, self.broken = checkpointed, broken

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        for layer in self.layers:
            if self.checkpointed is None:
                x = layer(x, mask, is_causal)
            else:
                x = checkpoint(layer, x, mask, is_causal, use_reentrant=self.checkpointed)
            if self.broken:
                torch._dynamo.graph_break()
        return x


def expected(given: tuple, first: int) -> list[torch.Tensor]:
    """The three numbers of a call, from sl.observe in float64."""
    q, k, mask, is_causal = given
    options = {"mask": sl.causal()} if is_causal else {}
    if mask is not None:
        options = {"mask": mask} if mask.dtype == torch.bool else {"bias": mask.double()}
    _, sight = sl.observe(q.double(), k.double(), k.double(), scale=0.7, stats=("entropy", "max_score"), **options)
    rows = sight.lse > -torch.inf
    entropy = torch.stack([sight.entropy[:, h][rows[:, h]].mean() for h in range(q.shape[1])])
    received = sight.received().sum(0)
    return [entropy, sight.max_score.amax((0, 2)), received[:, :first].sum(1) / received.sum(1)]


def compare(reading: sl.nn.Reading, given: tuple, first: int = 4) -> None:
    for ours, theirs in zip(reading, expected(given, first), strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-5)


def pad(side: str, batch: int, length: int) -> torch.Tensor:
    """Visible keys of a causal call over sequences that are padded on one side: some rows see nothing."""
    place, real = torch.arange(length), torch.tensor([length, length - 3, length - 5])[:batch, None]
    exists = place >= length - real if side == "left" else place < real
    return (exists[:, None, None, :] & torch.ones(length, length).tril().bool()).contiguous()


@pytest.mark.parametrize("length", [1, 7, 13])
@pytest.mark.parametrize("kind", ["none", "causal", "left", "right", "bias"])
@pytest.mark.parametrize("compiled", [False, True])
def test_numbers_are_those_of_observe(kind, length, compiled) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    net, x = Model(), torch.randn(3, length, 16)
    options = {
        "none": {},
        "causal": {"is_causal": True},
        "bias": {"mask": torch.randn(3, 4, length, length)},
    }.get(kind) or {"mask": pad(kind, 3, max(length, 6))[..., -length:, -length:]}
    if kind == "none":
        options = {}
    for layer in net.layers:
        layer.dropout = 0.0
    net(x, **options)
    given = [layer.given for layer in net.layers]
    run = torch.compile(net, backend="aot_eager", fullgraph=True) if compiled else net
    with sl.monitor(net, first=2) as monitor:
        run(x, **options)
        monitor.step()
    assert list(monitor.latest) == ["layers.0", "layers.1"]
    for name, call in zip(monitor.latest, given, strict=True):
        compare(monitor.latest[name], call, first=2)


# Training is not changed


def train(net, every=None, compiler=None, *, steps=5, side="left", fullgraph=True, on=None, regional=False):
    """Train on random tokens: weights, the monitor, and the graphs that were compiled."""
    torch.compiler.reset()
    torch.manual_seed(0)
    graphs: list = []

    def count(graph, given):
        graphs.append(graph)
        return torch._dynamo.lookup_backend(compiler)(graph, given)

    run = net
    if compiler is not None and regional:
        for layer in net.layers:
            layer.compile(backend=count, fullgraph=fullgraph)
    elif compiler is not None:
        run = torch.compile(net, backend=count, fullgraph=fullgraph)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    monitor = None if every is None else sl.monitor(on(net, run) if on else net, every, optimizer=optimizer)
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        if isinstance(net, Model):
            out = run(torch.randn(3, 7, 16, generator=draw).requires_grad_(), pad(side, 3, 7))
        else:
            given = inputs("llama", side, length=11)
            given["input_ids"] = torch.randint(2, 97, (3, 11), generator=draw)
            out = run(**given, labels=given["input_ids"], use_cache=False).loss
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.remove()
    return [p.detach().clone() for p in net.parameters()], monitor, len(graphs)


def llama(implementation: str = "sdpa"):
    return model("llama", implementation, attention_dropout=0.2).train()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_llama_is_trained_to_the_same_bits(implementation, side) -> None:
    plain, _, _ = train(llama(implementation), side=side)
    same, monitor, _ = train(llama(implementation), every=2, side=side)
    assert all(map(torch.equal, plain, same))
    assert not torch.equal(plain[0], next(llama().parameters()))
    assert monitor.steps == [0, 2, 4]
    assert list(monitor.latest) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert monitor.unseen == {}


@pytest.mark.parametrize("implementation, side", [("sdpa", "left"), ("eager", "right")])
def test_a_compiled_llama_is_trained_to_the_same_bits(implementation, side) -> None:
    _, eager, _ = train(llama(implementation), every=2, side=side)
    plain, _, before = train(llama(implementation), compiler="aot_eager", side=side)
    same, compiled, graphs = train(llama(implementation), every=2, compiler="aot_eager", side=side)
    assert all(map(torch.equal, plain, same))
    assert (before, graphs) == (1, 2)
    assert compiled.unseen == {}
    for name in eager.latest:
        for ours, theirs in zip(compiled.series(name), eager.series(name), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_with_the_compiler_that_people_use(checkpointed) -> None:
    """Inductor, with both kinds of checkpoint inside of it: a layer is compiled as it would be without.

    One layer: each takes its C++ compiler seconds, and what several share is tested below.
    """
    torch.manual_seed(3)
    state = Model(1, checkpointed=checkpointed).state_dict()

    def net() -> Model:
        made = Model(1, checkpointed=checkpointed)
        made.load_state_dict(state)
        return made

    plain, _, before = train(net(), compiler="inductor", fullgraph=not checkpointed)
    same, monitor, graphs = train(net(), every=2, compiler="inductor", fullgraph=not checkpointed)
    assert all(map(torch.equal, plain, same))
    assert graphs == 2 * before
    assert monitor.steps == [0, 2, 4]
    assert list(monitor.latest) == ["layers.0"]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("compiler", [None, "aot_eager"])
def test_a_checkpointed_layer_is_counted_once(checkpointed, compiler, monkeypatch) -> None:
    calls = []
    real = HEARING.counted
    monkeypatch.setattr(HEARING, "counted", lambda sight: calls.append(0) or real(sight))
    torch.manual_seed(3)
    net = Model(checkpointed=checkpointed)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    plain, _, _ = train(net, compiler=compiler, steps=3, fullgraph=not checkpointed)
    net.load_state_dict(state)
    same, monitor, _ = train(net, every=2, compiler=compiler, steps=3, fullgraph=not checkpointed)
    assert all(map(torch.equal, plain, same))
    assert monitor.steps == [0, 2]
    assert len(calls) == 2 * 2
    net.load_state_dict(state)
    net.checkpointed = None
    _, other, _ = train(net, every=2, steps=3)
    for ours, theirs in zip(monitor.history[0]["layers.1"], other.history[0]["layers.1"], strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("regional", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_layers_have_their_names_however_they_are_compiled(regional, wrapped) -> None:
    """The whole, or layer by layer, where layers share one piece of code."""
    torch.manual_seed(3)
    net = Model(3)
    _, eager, _ = train(net, every=1, steps=1)
    torch.manual_seed(3)
    net = Model(3)
    on = (lambda net, run: run) if wrapped else None
    _, monitor, _ = train(net, every=1, compiler="aot_eager", steps=1, on=on, regional=regional)
    assert list(monitor.latest) == [f"layers.{i}" for i in range(3)]
    for name, reading in monitor.latest.items():
        for ours, theirs in zip(reading, eager.latest[name], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)  # dropout draws anew in a graph
    assert not torch.equal(monitor.latest["layers.0"].max_score, monitor.latest["layers.1"].max_score)


def test_a_model_whose_graph_breaks() -> None:
    torch.manual_seed(3)
    state = Model(broken=True).state_dict()
    found = []
    for every in (None, 2):
        net = Model(broken=True)
        net.load_state_dict(state)
        found.append(train(net, every, "aot_eager", fullgraph=False))
    (plain, _, before), (same, monitor, graphs) = found
    assert all(map(torch.equal, plain, same))
    assert graphs <= 2 * before
    assert list(monitor.latest) == ["layers.0", "layers.1"]


def test_what_was_compiled_before_stays_and_nothing_is_compiled_anew() -> None:
    torch.compiler.reset()
    net, x, graphs = Model(), torch.randn(3, 7, 16), []
    run = torch.compile(net, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    run(x).sum().backward()
    monitors = [sl.monitor(net, every=2), sl.monitor(run, every=4)]
    for _ in range(2):
        run(x).sum().backward()
        for monitor in monitors:
            monitor.step()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(6):
            run(x).sum().backward()
            for monitor in monitors:
                monitor.step()
        for monitor in monitors:
            monitor.remove()
        run(x)
    assert len(graphs) == 2
    assert [monitor.steps for monitor in monitors] == [[0, 2, 4, 6], [0, 4]]
    told = [sum("attended" in str(node.target) for node in graph.graph.nodes) for graph in graphs]
    assert told == [0, 2]


# What layers share is found out once


class Rooms(Model):
    """Layers that are given masks in a way of their own: a step of training is compared with the same uncompiled."""

    def __init__(self, way: str) -> None:
        super().__init__(4, checkpointed=False if way == "checkpoints" else None)
        self.way = way
        for layer in self.layers:
            layer.dropout = 0.0

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        if self.way in ("one", "checkpoints"):
            return super().forward(x, mask)
        times = torch.arange(x.shape[1])
        for i, layer in enumerate(self.layers):
            if self.way == "slices":
                own = mask[:, :, :, : x.shape[1]]
            elif self.way == "two":
                own = mask if i % 2 else mask | (times == i)
            elif self.way == "changed":
                own = mask
                if i == 2:
                    mask[..., :3] = True
            else:  # each in memory of its own, which the next one's is then written to
                near = times[:, None] - times < (99, 2, 3, 4)[i]
                own = near.float() @ torch.eye(x.shape[1]) > 0.5
            x = layer(x, own)
        return x


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    "way, reads", [("one", 1), ("checkpoints", 1), ("slices", 1), ("two", 3), ("changed", 2), ("memory", 4)]
)
def test_a_graph_says_which_masks_are_one(way, reads, compiler, monkeypatch) -> None:
    """Each is read once, whatever memory the compiler writes it to, and no other is taken for it."""
    found, asked = [], []
    real = mask_tables.kind_of
    monkeypatch.setattr(mask_tables, "kind_of", lambda *given: asked.append(0) or real(*given))
    for compiled in (False, True):
        torch.compiler.reset()
        torch.manual_seed(0)
        net, x = Rooms(way), torch.randn(3, 13, 16)
        run = torch.compile(net, backend=compiler) if compiled else net
        with sl.monitor(net, every=1) as monitor:
            for side in ("right", "left"):
                asked.clear()
                run(x.clone(), pad(side, 3, 13)).square().mean().backward()
                monitor.step()
        found.append(monitor.history)
        assert monitor.unseen == {}
    assert len(asked) == reads
    for eager, compiled in zip(*found, strict=True):
        for name, reading in eager.items():
            for ours, theirs in zip(compiled[name], reading, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("regional", [False, True])
def test_a_graph_that_runs_again_in_a_step_has_other_masks(regional) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    net, x = Rooms("two" if regional else "one"), torch.randn(3, 13, 16)
    found = []
    for compiled in (False, True):
        run = torch.compile(net, backend="aot_eager") if compiled and not regional else net
        for layer in net.layers if compiled and regional else ():
            layer.compile(backend="aot_eager")
        with sl.monitor(net) as monitor:
            for mask in (torch.ones(3, 1, 13, 13, dtype=torch.bool), pad("left", 3, 13)):
                run(x, mask).sum().backward()
            monitor.step()
        found.append(monitor.latest)
    for name, reading in found[0].items():
        for ours, theirs in zip(found[1][name], reading, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiler", [None, "inductor"])
def test_the_layers_of_a_llama_share_their_mask_and_the_copy_of_their_numbers(compiler, monkeypatch) -> None:
    torch.compiler.reset()
    net = model("llama", num_hidden_layers=4, attention_dropout=0.2).train()
    run = net if compiler is None else torch.compile(net, backend=compiler, fullgraph=True)
    asked, copied, tables = [], {}, []
    kind_of, cpu, tell = mask_tables.kind_of, torch.Tensor.cpu, mask_tables.Tables.tell
    given = inputs("llama", "left", length=11)
    with sl.monitor(net) as monitor:
        monkeypatch.setattr(mask_tables, "kind_of", lambda *given: asked.append(0) or kind_of(*given))
        monkeypatch.setattr(mask_tables.Tables, "tell", lambda *given: tables.append(0) or tell(*given))
        run(**given, labels=given["input_ids"], use_cache=False).loss.backward()
        monkeypatch.setattr(torch.Tensor, "cpu", lambda x: cpu(copied.setdefault(id(x), x)))
        monitor.step()
    assert len(monitor.latest) == 4
    assert (len(asked), len(tables)) == ((0, 1) if compiler is None else (1, 0))
    assert len(copied) == 1
    assert {part.shape for reading in monitor.latest.values() for part in reading} == {(4,)}


# Other kinds of attention


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("masked", ["none", "padding", "causal", "both", "added"])
def test_torch_multihead(compiled, need_weights, masked) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    mha, x, memory = nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    hidden = torch.ones(5, 7).triu(3).bool()
    pads = torch.arange(7) >= torch.tensor([7, 4, 2])[:, None]
    options = {
        "none": {},
        "padding": {"key_padding_mask": pads},
        "causal": {"attn_mask": hidden},
        "both": {"key_padding_mask": pads, "attn_mask": hidden},
        "added": {"attn_mask": torch.randn(12, 5, 7)},
    }[masked]
    run = torch.compile(mha, backend="aot_eager", fullgraph=True) if compiled else mha
    with sl.monitor(mha) as monitor:
        run(x, memory, memory, need_weights=need_weights, **options)
        monitor.step()
    weights, bias = mha.in_proj_weight.detach(), mha.in_proj_bias.detach()
    q = F.linear(x, weights[:16], bias[:16]).unflatten(-1, (4, 4)).transpose(1, 2)
    k = F.linear(memory, weights[16:32], bias[16:32]).unflatten(-1, (4, 4)).transpose(1, 2)
    visible = torch.ones(3, 1, 5, 7).bool()
    if "key_padding_mask" in options:
        visible = visible & ~pads[:, None, None]
    if options.get("attn_mask") is hidden:
        visible = visible & ~hidden
    mask = options["attn_mask"].view(3, 4, 5, 7) if masked == "added" else visible
    compare(monitor.latest["MultiheadAttention"], (q * 0.5 / 0.7, k, mask, False))


@pytest.mark.parametrize("compiled", [False, True])
def test_flex_attention(compiled) -> None:
    torch.compiler.reset()

    class Flex(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return flex_attention(x, x, x, block_mask=block, scale=0.7)

    block = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 9), 2, None, 13, 13, device="cpu")
    x = torch.randn(2, 3, 13, 8)
    run = torch.compile(Flex(), backend="aot_eager", fullgraph=True) if compiled else Flex()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises to compile it
        with sl.monitor(run) as monitor:
            run(x)
            if compiled and OLD:
                with pytest.warns(UserWarning, match="saw no attention"):
                    monitor.step()
                return
            monitor.step()
    table = torch.ones(13, 13).tril().bool() & ~torch.ones(13, 13).tril(-9).bool()
    compare(monitor.latest["Flex"], (x, x, table, False))


def test_modules_of_ours_beside_those_of_others() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theirs, self.ours = Attention(), sl.nn.MultiHeadAttention(16, heads=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sl.attention(x, x, self.ours(self.theirs(x)), mask=sl.causal())

    net, x, found = Both(), torch.randn(3, 7, 16), []
    net.theirs.dropout = 0.0
    for compiled in (False, True):
        torch.compiler.reset()
        run = torch.compile(net, backend="aot_eager", fullgraph=True) if compiled else net
        with sl.monitor(net) as monitor:
            run(x)
            monitor.step()
        found.append(monitor.latest)
        assert set(monitor.latest) == {"theirs", "ours", "Both"}
    for name in found[0]:
        for ours, theirs in zip(found[1][name], found[0][name], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@contextmanager
def one_process():
    from torch import distributed

    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("checkpointed", [None, False])
def test_under_fsdp(checkpointed) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    state = {name: value.clone() for name, value in Model().state_dict().items()}
    weights, monitors = [], []
    with one_process():
        mesh = init_device_mesh("cpu", (1,))
        for every in (None, 2):
            net = Model(checkpointed=checkpointed)
            net.load_state_dict(state)
            for layer in net.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(net, mesh=mesh)
            found, monitor, _ = train(net, every)
            weights.append([p.full_tensor() for p in found])
            monitors.append(monitor)
    assert all(map(torch.equal, *weights))
    assert monitors[1].steps == [0, 2, 4]
    assert list(monitors[1].latest) == ["layers.0", "layers.1"]
    net = Model()
    net.load_state_dict(state)
    _, plain, _ = train(net, 2)
    for ours, theirs in zip(monitors[1].history[0]["layers.1"], plain.history[0]["layers.1"], strict=True):
        torch.testing.assert_close(ours, theirs)


# What is heard, and what is said


def test_in_between_and_afterwards_nothing_is_left() -> None:
    net, x = Model(), torch.randn(3, 7, 16)
    monitor = sl.monitor(net, every=3)
    on = []
    for _ in range(4):
        on.append(torch._C._len_torch_function_stack())
        net(x).sum().backward()
        monitor.step()
    assert on == [1, 0, 0, 1]
    monitor.close()
    assert monitor.steps == [0, 3]
    dropped = sl.monitor(net)
    assert torch._C._len_torch_function_stack() == 1
    del dropped
    assert torch._C._len_torch_function_stack() == 0


def test_blocks_of_other_modes_end_as_they_began() -> None:
    net, x = Model(), torch.randn(3, 7, 16)
    monitor = sl.monitor(net, every=2)
    with torch.device("cpu"):
        for _ in range(3):
            net(x).sum().backward()
            monitor.step()
    assert torch._C._len_torch_function_stack() == 0
    monitor.step()
    torch.set_default_device("cpu")
    try:
        net(x).sum().backward()
        monitor.step()
    finally:
        torch.set_default_device(None)
        with suppress(AttributeError):
            del torch._GLOBAL_DEVICE_CONTEXT.device_context  # torch 2.8 would ask that None for its device
    monitor.remove()
    assert monitor.steps == [0, 2, 4]
    assert torch._C._len_torch_function_stack() == 0


def test_validation_and_other_models_are_not_recorded() -> None:
    net, other, x = Model(), Model(), torch.randn(3, 7, 16)
    with sl.monitor(net) as monitor:
        with torch.no_grad():
            net(x)
        other(x)
        with pytest.warns(UserWarning, match="the monitor saw no attention"):
            monitor.step()
    assert monitor.history == []


def test_watching_meanwhile() -> None:
    net, x = Model(), torch.randn(3, 7, 16)
    with sl.monitor(net) as monitor:
        with sl.watch(net) as seen:
            net(x)
        monitor.step()
    assert seen.layers == list(monitor.latest) == ["layers.0", "layers.1"]
    entropy = seen["layers.1"].entropy
    torch.testing.assert_close(monitor.latest["layers.1"].entropy, entropy.mean((0, 2)))


class ByHand(nn.Module):
    """Scores with a mask of numbers, and what was made of them for whoever compares."""

    num_heads, axis = 4, -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        ahead = torch.ones(x.shape[1], x.shape[1]).triu(1) * -1e9
        self.given = (q.detach() * 0.5, q.detach() * 0.5, ahead, False)
        return (0.7 * (q * 0.5) @ (q * 0.5).mT + ahead).softmax(self.axis).matmul(q).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("checkpointed", [None, False, True])
def test_attention_by_hand_is_heard(checkpointed) -> None:
    torch.manual_seed(0)
    hand = ByHand()
    run = hand if checkpointed is None else lambda x: checkpoint(hand, x, use_reentrant=checkpointed)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.hand = Model(1), hand

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return run(self.model(x))

    net, x = Net(), torch.randn(3, 7, 16)
    with sl.monitor(net, first=2) as monitor:
        net(x).sum().backward()
        monitor.step()
    assert not monitor.unseen
    assert list(monitor.latest) == ["model.layers.0", "hand"]
    compare(monitor.latest["hand"], hand.given, first=2)


@pytest.mark.parametrize("compiled", [False, True])
def test_attention_by_hand_that_cannot_be_followed_is_named(compiled) -> None:
    torch.compiler.reset()
    net = nn.Sequential(Model(1), hand := ByHand())
    hand.axis = -2
    run = torch.compile(net, backend="aot_eager", fullgraph=True) if compiled else net
    with sl.monitor(net) as monitor:
        run(torch.randn(3, 7, 16))
        with pytest.warns(UserWarning, match=r"(?s)does not see 1 module.*by hand"):
            monitor.step()
    assert list(monitor.unseen) == ["1"]
    assert list(monitor.latest) == ["0.layers.0"]


def test_what_a_graph_hides_is_named() -> None:
    torch.compiler.reset()
    net, x = Model(), torch.randn(3, 7, 16)

    @torch.compiler.nested_compile_region
    def shared(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.net.layers:
                x = shared(layer, x)
            return x

    run = torch.compile(part := Nested(), backend="aot_eager", fullgraph=True)
    with sl.monitor(part) as monitor:
        run(x)
        said = "saw no attention" if OLD else r"(?s)does not see 1 module.*compiled graph"
        with pytest.warns(UserWarning, match=said):
            monitor.step()
    assert OLD or list(monitor.unseen) == ["Nested"]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_fast_path_of_a_frozen_encoder_is_kept(compiled) -> None:
    torch.compiler.reset()
    x, layer = torch.randn(3, 7, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).eval().requires_grad_(False)
    run = torch.compile(encoder, backend="aot_eager") if compiled else encoder
    plain = run(x)
    with sl.monitor(encoder) as monitor:
        assert torch.equal(run(x), plain)
        if compiled:  # one operator for the whole layer: nothing is seen, and it is said
            with pytest.warns(UserWarning, match="the monitor"):
                monitor.step()
        else:
            monitor.step()
    assert (monitor.latest is None) == compiled


def test_a_compiled_function_around_the_model() -> None:
    torch.compiler.reset()
    net, x = Model(), torch.randn(3, 7, 16)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x: torch.Tensor) -> torch.Tensor:
        return net(x, is_causal=True).square().mean()

    with sl.monitor(net) as monitor:
        loss(x).backward()
        monitor.step()
    assert list(monitor.latest) == ["layers.0", "layers.1"]


def test_arrays_in_a_compiled_model() -> None:
    """torch.compile follows numpy too."""
    torch.compiler.reset()

    class Counting(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count = np.arange(x.shape[1]) - np.ones(x.shape[1], dtype=np.int64)
            return super().forward(x) + torch.from_numpy(2 - count * 3)[:, None]

    net, x = Counting(), torch.randn(3, 7, 16)
    for layer in net.layers:
        layer.dropout = 0.0
    run = torch.compile(net, backend="aot_eager", fullgraph=True)
    with sl.monitor(net) as monitor:
        torch.testing.assert_close(run(x), net(x))
        monitor.step()
    assert list(monitor.latest) == ["layers.0", "layers.1"]


def test_an_account_that_fails_ends_no_training(monkeypatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no such account")

    monkeypatch.setattr(HEARING, "counted", fails)
    torch.manual_seed(3)
    net, x = Model(), torch.randn(3, 7, 16)
    torch.manual_seed(0)
    plain = net(x)
    with sl.monitor(net) as monitor:
        torch.manual_seed(0)
        assert torch.equal(net(x), plain)
        with pytest.warns(UserWarning, match="no such account"):
            monitor.step()
    assert set(monitor.unseen) == {"layers.0", "layers.1"}


@pytest.mark.parametrize(
    "layers, expected",
    [
        (-1, ["layers.2"]),
        (slice(0, 2), ["layers.0", "layers.1"]),
        ("layers.1", ["layers.1"]),
        ([0, "*.2"], ["layers.0", "layers.2"]),
        (lambda name: name.endswith("1"), ["layers.1"]),
    ],
)
def test_layers_are_chosen_as_everywhere(layers, expected) -> None:
    net = Model(3)
    with sl.monitor(net, layers=layers) as monitor:
        net(torch.randn(3, 7, 16))
        monitor.step()
    assert list(monitor.latest) == expected


def test_wrong_arguments() -> None:
    with pytest.raises(InputError, match="no attention has such a name"):
        sl.monitor(Model(), layers="encoder")
    with pytest.raises(InputTypeError, match="only modules have attention inside"):
        sl.monitor(print)
    with pytest.raises(InputError, match="these are no bounds"):
        sl.monitor(Model(), bounds={"loss": (0, 1)})
    with pytest.raises(InputTypeError, match="on_alarm is to be called"):
        sl.monitor(Model(), on_alarm=3)
    with pytest.raises(InputError):
        sl.monitor(nn.Linear(2, 2))
    assert torch._C._len_torch_function_stack() == 0
    net = Model(2)
    with sl.monitor(net, layers=7) as monitor:
        net(torch.randn(3, 7, 16))
        with pytest.warns(UserWarning, match="there is no such layer"):
            monitor.step()
    assert monitor.latest is None


def test_alarms_are_given_once_until_the_head_is_back() -> None:
    net, x, alarms, records = Model(1), torch.randn(3, 7, 16), [], []
    weight = net.layers[0].of[0].weight
    monitor = sl.monitor(net, every=1, on=records.append, on_alarm=alarms.append, bounds={"max_score": (None, 50.0)})
    for factor in (1.0, 1e4, 1.0, 1e-4, 1e4):
        with torch.no_grad():
            weight[:4] *= factor  # the first head
        net(x)
        monitor.step()
    monitor.remove()
    assert [(alarm.step, alarm.module, alarm.head, alarm.what) for alarm in alarms] == [
        (1, "layers.0", 0, "max_score"),
        (4, "layers.0", 0, "max_score"),
    ]
    assert monitor.alarms == alarms[1:]
    assert records == monitor.history
    assert monitor.scalars()["attention/layers.0/max_score/head0"] == alarms[1].value
    assert len(monitor.scalars()) == 4 * 3
    assert "max_score" in str(monitor)


def test_other_threads_are_not_heard() -> None:
    net, x = Model(), torch.randn(3, 7, 16)
    with sl.monitor(net) as monitor:
        thread = threading.Thread(target=net, args=(x,))
        thread.start()
        thread.join()
        with pytest.warns(UserWarning, match="saw no attention"):
            monitor.step()
    assert monitor.latest is None
