"""One watch: what it is told of attention calls becomes the layers of a `Seen`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.lens.select import select
from sightline.watching.choose import HeadChoice, LayerChoice
from sightline.watching.intercept import active, compiled, numberless, scripted, unseen
from sightline.watching.intercept import transformers as hf
from sightline.watching.intercept.caller import every_module, inner
from sightline.watching.intercept.function_mode import WatchMode
from sightline.watching.intercept.joint import joint
from sightline.watching.intercept.libraries import LIBRARIES
from sightline.watching.intercept.listen import Listening
from sightline.watching.intercept.looked import Looked
from sightline.watching.intercept.mask_tables import Tables
from sightline.watching.intercept.searches import TOLD
from sightline.watching.passes import Passing
from sightline.watching.record.about import about
from sightline.watching.record.account import Wanted, account, cells_for
from sightline.watching.record.batches import Waiting, aside
from sightline.watching.record.deeper import Deeper
from sightline.watching.record.folder import Writer
from sightline.watching.record.follow import Following
from sightline.watching.record.gather import Gather
from sightline.watching.record.layer import Layer, Part
from sightline.watching.record.repeated import Repeating, Repeats
from sightline.watching.record.shares import Place
from sightline.watching.record.slices import Slicing
from sightline.watching.record.to_cpu import Shipper
from sightline.watching.seen import Seen
from sightline.watching.silence import say_if_nothing
from sightline.watching.tokens import Reader

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.masks import Mask
    from sightline.watching.record.decoding_steps import Block


class Watcher(Passing, Following, Repeating, Slicing):
    """Between entering and leaving the block: hooks, hears, and gives back what it took."""

    def __init__(
        self,
        model: nn.Module,
        names: dict[int, str],
        layers: LayerChoice,
        heads: HeadChoice,
        wanted: Wanted,
        keep: bool,
        folder: Path | None,
        reader: Reader,
        compact: bool,
        influence: bool = False,
        keep_output: bool = False,
        runs: int | None = 1,
        every: list[tuple[str, nn.Module]] | None = None,
    ) -> None:
        self.model, self.layers, self.heads, self.wanted = model, layers, heads, wanted
        self.keep, self.compact, self.reader, self.runs = keep, compact, reader, runs
        self.names = names
        self.deeper = Deeper(wanted, names, keep, influence, keep_output)
        self.deep, self.influence = self.deeper.on, self.deeper.influence
        self.encoder, self.decoder = hf.halves(inner(model))
        known = every is not None and inner(model) is model
        self.every = [module for _, module in (every if known and every else every_module(inner(model)))]
        self.seen = Seen(meta=about(model, self.every), reader=reader, influence=self.influence)
        self.thread = threading.get_ident()
        self.writer = None if folder is None else Writer(folder, self.seen, free=keep)
        self.ship, self.tables = Shipper(), Tables()
        self.moved: dict[int, tuple[Any, Any]] = {}  # masks and biases of this pass, and their copies on the CPU
        self.own: dict[int, tuple[Any, Any]] = {}  # masks of this pass, and copies that nobody writes into
        self.stack = ExitStack()
        self.begin_passes()
        self.order: dict[str, int] = {}
        self.ends: dict[str, tuple[int, int]] = {}  # of each call by name: the pass, and where its keys end
        self.counts: dict[str, int] = {}  # calls of each module in this pass
        # The form of a call of which only the kernel was asked, and what was found out of it, without its tensors.
        self.alike: tuple[tuple, Call] | None = None
        self.hookless: set[str] = set()  # modules that cannot say when a pass begins in them
        self.continues = self.warned = self.used = False
        self.begin_following()
        self.begin_slicing()
        self.repeats: tuple[Tensor, tuple[int, int], Repeats] | None = None  # of ids, from a query up to a key
        self.gather = Gather(self)
        if self.deeper.norms is not None and self.writer is not None:
            self.deeper.norms.then = self._written_first
        self.listening = Listening(WatchMode(), inner(model), self.every, names)

    def __enter__(self) -> Seen:
        if self.used:
            raise InputError(
                "a watch is for one block",
                expected="a new one for every block",
                got="the same once more",
                hint="with sl.watch(model) as seen: …",
            )
        self.used = True
        self.thread = threading.get_ident()
        if self.writer is not None:
            self.writer.begin()  # a folder that cannot be is said before anything is touched
        with ExitStack() as stack:
            stack.enter_context(active.UNCOMPILED)
            stack.enter_context(hf.INTERFACE)
            stack.enter_context(LIBRARIES)
            stack.enter_context(TOLD)
            stack.enter_context(active.BLIND)
            every = self.every
            regions = compiled.find(every if inner(self.model) is self.model else list(self.model.modules()))
            stack.enter_context(compiled.standing_in(regions))
            inside = {id(part) for region in regions for part in region.parts()}
            stack.callback(self._unhook)
            self.inner = self.hook(stack, [module for module in every if id(module) not in inside])
            stack.callback(self.hushed.clear)
            scripted.listen(stack, every, self._scripted)
            active.push(self)
            stack.callback(active.drop, self)
            self.listening.mode = WatchMode(x for one in every for x in one._buffers.values() if x is not None)
            self.listening.mode.joint = joint(every)
            stack.enter_context(self.listening.mode)
            stack.callback(self.listening.ends, self.seen)
            self.stack = stack.pop_all()
        return self.seen

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.listening.wakes(self)
        self._settle(rest=True)
        self.deeper.settle()
        self.gather.leave()
        self.put_in_order()
        self.held = {}
        self._let_go(self.layers)
        self.stack.close()
        self.ship.close()
        self.tables.clear()
        self.moved, self.own = {}, {}
        self.reader.arrive()
        self._note_grid(self.reader.image, self._put_together_so_far(), self.reader.ids)
        self.listening.learn(self.seen, kind is None)
        if self.writer is not None:
            self.writer.finish(complete=kind is None)
            if self.influence is not None:
                self.influence.then = partial(self.writer.finish, complete=kind is None)
        if kind is None:
            say_if_nothing(self)

    # What happens in the model.

    def _scripted(self, module: nn.Module) -> None:
        if threading.get_ident() == self.thread:
            unseen.miss(self, self.names[id(module)], scripted.SCRIPTED)

    def name_of(self, module: nn.Module) -> str | None:
        return self.names.get(id(module))

    def wants(self, name: str) -> bool:
        if name not in self.order:
            self.order[name] = len(self.order)
            self._let_go(self.layers.may)
        return self.layers.may(name, self.order[name], len(self.order))

    def _let_go(self, chosen: Callable[[str, int, int], bool]) -> None:
        """Drop the layers that were looked at because they could have been among the last."""
        if self.layers.back:
            names = list(self.order)
            for layer in self._followed():
                if not chosen(names[layer.index], layer.index, len(names)):
                    self._drop(layer.name)

    def note(self, name: str, first_query: int, end_key: int) -> str:
        """A call of a layer, watched or not: what it is called, and whether it goes on with what was there."""
        if not self.depth and name in self.hookless:
            self.listening.wakes(self)
            self._begins()
        self.counts[name] = self.counts.get(name, 0) + 1
        self.listening.names.add(name)
        full = name if self.counts[name] == 1 else f"{name}#{self.counts[name]}"
        before = self.ends.get(full)
        if self.lost is not None and first_query == 0:
            self._restart()
        elif self.lost is None and before is not None and before[0] != self.passes:
            self._joins(full, first_query, before[1])
        if self.lost is not None:
            self.reader.skip()
            return full
        self.ends[full] = (self.passes, end_key)
        self.reader.settle(self.continues)
        return full

    def note_next(self, name: str, keys: int, block: Block) -> bool:
        """Note the only call of a layer in this pass, a step that goes on where the block ends, if it does.

        What `note` would ask of every call is the same for all layers of such a pass.
        """
        before = self.ends.get(name)
        if before is None or before[0] == self.passes or before[1] != keys - 1 or self.counts.get(name):
            return False
        if self.lost or self.search or self.over or not self.depth or name in self.said:
            return False
        if not self.continues:  # the first layer of this pass
            self.continues = True
            self.reader.settle(True)
        ids = self.reader.ids if self.encoder is None else self._ids(name)
        fit = self.wanted.shares and ids is not None and ids.shape == (*block.call.sizes.batch, keys)
        if fit != block.with_ids:
            return False
        self.counts[name] = 1
        self.listening.names.add(name)
        self.ends[name] = (self.passes, keys)
        return True

    def takes(self, module: nn.Module, step: bool) -> str | None:
        """The name of a module, if the account of its call is all that is wanted, and is made of what its kernel says.

        Of a step of a generation that may be as the one before it nothing more is asked.
        """
        name = self.names.get(id(module))
        if name is None or self.deep or self.compact or torch.is_grad_enabled():
            return None
        if step:
            return name if name in self.gather.blocks else None
        return name if not module.training and numberless.why_not() is None and self.wants(name) else None

    def goes_on(self, name: str, q: Tensor, k: Tensor, v: Tensor, row: Tensor, scale: float | None) -> bool:
        """Take in a step of a generation that is as the one before it, if it is."""
        if not self.gather.goes_on(name, q, k, row, scale):
            return False
        if self.deep and isinstance(layer := self.seen._layers.get(name), Layer):
            self.deeper.step(layer.parts[-1], v, q.shape[1], k.shape[1])
        return True

    def record(self, module: nn.Module, name: str, looked: Looked) -> None:
        """The account of one call becomes a part of its layer."""
        if looked.piece is not None:
            return self.take_slice(module, name, looked)
        call, row, first_query, first_key = looked[:4]
        s = call.sizes
        full = self._piece_of(name, looked)
        if full is None:
            full, is_piece = self.note(name, first_query, first_key + s.keys), False
        else:
            first_query = first_key = self.windows.last[name].end_key
            looked, is_piece = looked._replace(first_query=first_query, first_key=first_key), True
        end_key = first_key + s.keys
        self.windows.put(name, full, self.passes, call, end_key)
        layer = self.seen._layers.get(full)
        if not self._is_followed(full, s.batch):
            return
        if layer is None:
            kind = "cross" if first_query < 0 else "self"
            layer = Layer(full, self.order[name], kind, type(module).__name__, self.heads(name, s.heads), self.wanted)
            self.seen._layers[full] = layer
            self._note_joint(full, s.queries, s.keys)
        assert isinstance(layer, Layer)
        with active.quiet(), aside():
            if not is_piece and self.gather.step(layer, call, row, first_query, first_key):
                if looked.heads is not None:
                    self.deeper.step(layer.parts[-1], looked.heads.v, s.heads, s.kv_heads)
                return
            if layer.heads is not None:
                call, row = select(call, row, heads=layer.heads)
            rows = layer.queries if layer.parts else 0
            if rows:
                self.order_ids(layer, looked.call.k if looked.key is None else looked.key, first_key)
            cell = cells_for(s.batch[0] * call.sizes.heads, rows + s.queries, end_key)
            place = Place(rows, first_key, first_query, cell, self._repeats(name, looked, end_key), real=looked.real)
            part = Part(call, rows, first_key, end_key, cell, None, self.passes)
            self._account(layer, part, looked, call, row, place)
            self.hold(full, layer, part, looked, call, row)
        if self.deep:
            self.deeper.take(layer, part, looked, call, row)
        if self.writer is not None and len(layer.parts) == 1 and not self.deeper.waits(layer):
            self.writer.add(layer)

    def _account(self, layer: Layer, part: Part, looked: Looked, call: Call, row: Tensor, place: Place) -> None:
        """The statistics of a call: at once, or together with others."""
        waits = self.gather.takes(call, call.device)
        if waits:
            call = call.replace(q=_own(call.q), k=_own(call.k), mask=self.own_mask(call))
        found = {}
        keep = self.keep and looked.key is None
        if keep:
            new = call.k if not layer.parts else call.k[..., -call.sizes.queries :, :]
            own = layer.kind == "cross" and layer.parts
            found["q"] = call.q if waits else _own(call.q)
            found["k"] = call.k[..., :0, :] if own else new if waits and new is call.k else _own(new)
        if call.sinks is not None:
            found["sinks"] = _own(call.sinks)
        if call.lost is not None:
            found["lost"] = _own(call.lost)
        mask = self._once(call.mask, lambda: _to_cpu(call.mask))
        bias = None
        if keep:
            bias = self._once(call.bias, lambda: _to_cpu(call.bias))
        part.call = call.replace(q=None, k=None, v=None, mask=mask, bias=bias, sinks=None, lost=None)
        if waits:
            whole = layer.heads is None
            if not whole:
                self.follow.step(layer.name, looked.call.k, part.first_key, layer.kind == "cross")
            layer.parts.append(part)
            self.gather.add(Waiting(layer, part, call, row, place, call.k if whole else None, found))
        else:
            keys = looked.call.k if looked.key is None else looked.key
            self.follow.step(layer.name, keys, part.first_key, layer.kind == "cross")
            part.arriving = self.ship.send(account(call, row, self.wanted, place) | found)
            layer.parts.append(part)

    def _written_first(self, layer: Layer) -> None:
        """What its keys carry is known now: a layer that waited for that is written."""
        if self.writer is not None and len(layer.parts) == 1 and layer.name not in self.writer.written:
            self.writer.add(layer)

    def own_mask(self, call: Call) -> Mask | None:
        """A copy of a mask where it was, made once in a pass: nobody writes into it."""
        mask = call.mask
        if mask is None or mask.is_positional:
            return mask
        if id(mask) not in self.own:
            self.own[id(mask)] = (mask, mask.to(call.device, copy=True))
        return self.own[id(mask)][1]

    def _once(self, thing: Any, make: Callable[[], Any]) -> Any:
        """A copy on the CPU of something that layers share, made once in a pass."""
        if id(thing) not in self.moved:
            self.moved[id(thing)] = (thing, make())
        return self.moved[id(thing)][1]


def _to_cpu(thing: Any) -> Any:
    return None if thing is None else thing.to("cpu", copy=True)


def _own(x: Tensor) -> Tensor:
    """A copy: the model may write into its own tensors, and a view would hold what it is a view of."""
    return x.detach().clone(memory_format=torch.contiguous_format)
