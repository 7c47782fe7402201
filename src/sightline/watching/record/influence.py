"""What mattered: the gradient of a target at the heads' outputs, taken in where it arrives.

Every watched call leaves its place in the graph here. `seen.backward(y)` asks autograd for the gradients of these
places alone; the model's own `.backward()` passes them, and a hook takes them in. Of each, what is asked for is
computed when it arrives: g.o for every row, in one product. v and g themselves are kept only with `keep_qk`. Nobody
waits for g.o to come from a GPU but who first reads it (`Part.along`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import CheckpointError

from sightline.errors import InputError, InputTypeError
from sightline.lens.unchanged import count
from sightline.watching.intercept import active
from sightline.watching.intercept.heads import connect, heads_first
from sightline.watching.record.batches import aside
from sightline.watching.record.readings import Asked
from sightline.watching.record.to_cpu import PINNED, Packed

if TYPE_CHECKING:
    from sightline.watching.intercept.looked import Looked
    from sightline.watching.record.layer import Arriving, Layer, Part

_AGAIN = "sl.watch(model, influence=True) around a run of the model, and backward after it"


class Tap:
    """One call of a layer: its heads' output, and the place of that in the graph."""

    def __init__(self, layer: Layer, part: Part, looked: Looked, asked: Asked, keep: bool) -> None:
        assert looked.heads is not None
        self.layer, self.part, self.asked, self.keep = layer, part, asked, keep
        self.sizes, self.row = looked.call.sizes, looked.row
        before = looked.heads.before
        self.four = looked.heads.four if before is None else heads_first
        self.out: Tensor | None = looked.heads.output(self.sizes) if before is None else before.detach()
        self.count = count(self.out)
        self.edge: Any = None

    def attach(self, out: Tensor, influence: Influence) -> None:
        """This is where its gradient will arrive."""
        self.edge = get_gradient_edge(out)
        out.register_hook(lambda grad: influence.arrives(self, grad))

    def carried(self, grad: Tensor | None, add: bool) -> Carried:
        """What a gradient of the output says, where it is; None: nothing of the target depends on it."""
        with active.quiet(), aside():
            if self.out is None or count(self.out) != self.count:
                raise InputError(
                    f"the output of the heads of {self.layer.name} was changed in place",
                    expected="g.o, of the output as it was",
                    got="a tensor that the model wrote into afterwards",
                    hint="a model that does not: x = x * gate in place of x *= gate",
                )
            if self.out.is_cuda:
                # They may be of another stream, the model's: their memory is not given away before it is read here.
                here = torch.cuda.current_stream(self.out.device)
                self.out.record_stream(here)
                if grad is not None:
                    grad.record_stream(here)
            out = _chosen(self.out, self.layer)
            g = torch.zeros_like(out) if grad is None else _chosen(self.four(grad.detach(), self.sizes), self.layer)
            along = _without_unread(_dot(g, out), g)
            if add and (before := self.part.along()) is not None:
                along = along + before.to(along.device)
            return Carried(g, along)

    def take(self, one: Carried, along: Tensor | Arriving, add: bool) -> None:
        """Have a gradient, and g.o, which is on the CPU or on its way there, as what is known of this call."""
        with active.quiet(), aside():
            known, extra, g = self.part.extra, dict[str, Any](along=along), one.g
            if self.keep or self.asked.signed:
                g = g + known["grad"].to(g.device) if add and "grad" in known else g.clone()
                extra["grad"] = g.cpu() if self.keep else g
            known |= extra
            if self.asked.signed:
                self.asked.read(self.part, g, one.along)
                if not self.keep:
                    del known["grad"]
            self.layer.changed()


class Carried(NamedTuple):
    """The gradient at a call's output, `[batch, heads, queries, value_dim]`, and g.o, with what is added to it."""

    g: Tensor
    along: Tensor


class Influence:
    """The places in the graph of one run, and what arrived there."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.taps: list[Tap] = []
        self.waiting: dict[
            str, list[Tap]
        ] = {}  # of calls in reentrant checkpoints, which run again for their gradients
        self.taking = False  # whether `backward` asks
        self.then: Callable[[], None] | None = None  # whom to tell, once the block is left
        self.here: set[int] = set()  # taps that the latest backward pass has reached
        self.untold: set[str] = set()  # layers of which the weights alone were seen

    @property
    def recomputes(self) -> bool:
        """Whether calls that are made while gradients are computed are of interest."""
        return bool(self.waiting)

    def add(self, layer: Layer, part: Part, looked: Looked, asked: Asked) -> None:
        """A watched call."""
        assert looked.heads is not None
        out = looked.heads.place
        connect(out)
        tap = Tap(layer, part, looked, asked, self.keep)
        self.taps.append(tap)
        if out.requires_grad:
            tap.attach(out, self)
        else:
            self.waiting.setdefault(layer.name.partition("#")[0], []).append(tap)

    def again(self, name: str, looked: Looked) -> None:
        """A call that a reentrant checkpoint makes again: its gradient is that of the call before."""
        if looked.heads is None or not looked.heads.place.requires_grad:
            return
        for tap in self.waiting.get(name, []):
            if tap.row.shape == looked.row.shape and torch.equal(tap.row, looked.row):
                looked.heads.place.register_hook(lambda grad, tap=tap: self.arrives(tap, grad))
                return

    def arrives(self, tap: Tap, grad: Tensor) -> None:
        """The model's own backward pass has come to a tap. One that comes there once more is another pass."""
        if self.taking:
            return
        if id(tap) in self.here:
            self.forget_gradients()
        self.here.add(id(tap))
        _take_all([tap], [grad], add=False)

    def forget_gradients(self) -> None:
        self.here = set()
        for tap in self.taps:
            tap.part.extra.pop("along", None)
            tap.part.extra.pop("grad", None)
            tap.layer.changed()

    def restart(self) -> None:
        """Another run: what was there is gone."""
        self.taps, self.waiting, self.here, self.untold = [], {}, set(), set()

    def backward(self, y: Any, add: bool) -> None:
        """Take in the gradients of y at every watched call."""
        taps = [tap for tap in self.taps if any(part is tap.part for part in tap.layer.parts)]
        _check(y, taps, self.untold)
        if any(tap.edge is None for tap in taps):
            raise InputError(
                "a reentrant checkpoint runs again for its gradients only in the model's own backward pass",
                expected="y.backward(), inside the block",
                got="seen.backward(y)",
                hint="y.backward(), or use_reentrant=False",
            )
        if add and any(tap.asked.signed and not tap.keep and "along" in tap.part.extra for tap in taps):
            raise InputError(
                "what stats asked of the influence cannot be added to",
                expected="keep_qk=True, to compute it anew from both gradients",
                got="add=True, and g and v are gone",
                hint="seen.backward(y + z), or keep_qk=True",
            )
        self.taking = True
        try:
            edges = [tap.edge for tap in taps]
            grads = torch.autograd.grad(y, edges, torch.ones_like(y), retain_graph=True, allow_unused=True)
        except CheckpointError as error:
            raise InputError(
                "a checkpoint of a frozen model does not run again as it ran: its heads' outputs have no gradient then",
                expected="parameters or inputs that require a gradient",
                got="a checkpoint in which nothing does",
                hint="x.requires_grad_(), model.enable_input_require_grads(), or no checkpoints",
            ) from error
        except RuntimeError as error:
            if "second time" not in str(error) and "freed" not in str(error):
                raise
            raise InputError(
                "the graph of y is gone",
                expected="a backward pass before it is freed",
                got="a graph that another backward pass has used up",
                hint="seen.backward(y) before y.backward(), or y.backward(retain_graph=True)",
            ) from error
        finally:
            self.taking = False
        if all(grad is None for grad in grads):
            raise InputError(
                "y does not depend on any attention that was seen here",
                expected="a number computed from what the model gave in this block",
                got="one whose graph passes by all watched layers",
                hint=_AGAIN,
            )
        _take_all(taps, grads, add, self.forget_gradients)
        if self.then is not None:
            self.then()


def _check(y: Any, taps: list[Tap], untold: set[str]) -> None:
    if not isinstance(y, Tensor) or not y.is_floating_point() or y.dim() > 1 or not y.numel():
        got = f"{y.dtype} {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise InputTypeError(
            "y is what influence is of",
            expected="a scalar, or one number per example",
            got=got,
            hint="sl.targets.logit(token)(model(ids))",
        )
    if not taps and untold:
        raise InputError(
            "no attention was seen whose influence could be told",
            expected="calls of torch's attention functions, transformers' or Sightline's, whose output is known",
            got=f"attention that {', '.join(sorted(untold)[:3])} writes out by hand, of which the weights were seen",
            hint="a model that calls F.scaled_dot_product_attention there",
        )
    if not taps:
        raise InputError(
            "no attention was seen whose influence could be told",
            expected="a run of the model in this block",
            got="none",
            hint=_AGAIN,
        )
    if not y.requires_grad:
        raise InputError(
            "y is detached: it has no gradient",
            expected="a number that is connected to what the model gave",
            got="one without a graph (.detach(), .item(), torch.no_grad())",
            hint="compute y from the model's output with gradients enabled",
        )


def _chosen(x: Tensor, layer: Layer) -> Tensor:
    if layer.heads is None:
        return x
    if x.is_cuda:  # which would wait for a list of them to arrive there
        return torch.cat([x.narrow(1, head, 1) for head in layer.heads], 1)
    return x[:, layer.heads]


def _take_all(
    taps: list[Tap], grads: Sequence[Tensor | None], add: bool, forget: Callable[[], None] = lambda: None
) -> None:
    """Have the gradients of some calls taken in. What was known goes only once all of them can be."""
    found = [tap.carried(grad, add) for tap, grad in zip(taps, grads)]
    alongs = _sent([one.along for one in found])
    if not add:
        forget()
    for tap, one, along in zip(taps, found, alongs):
        tap.take(one, along, add)


def _sent(found: list[Tensor]) -> list[Tensor | Arriving]:
    """g.o of every call on the CPU, or on its way there: those of one GPU in one copy, for which nobody waits."""
    results: list[Tensor | Arriving] = list(found)
    groups: dict[torch.device, list[int]] = {}
    for i, x in enumerate(found):
        groups.setdefault(x.device, []).append(i)
    with active.quiet(), aside():
        for device, group in groups.items():
            if device.type != "cuda" or sum(found[i].nbytes for i in group) > PINNED:
                for i in group:
                    results[i] = found[i].cpu()
                continue
            packed = Packed([{"along": found[i]} for i in group])
            packed.start()
            packed.bytes = packed.bytes.new_empty(0)  # who uses that memory next comes after the copy, in its stream
            for place, i in enumerate(group):
                results[i] = packed.of(place)
    return results


def _without_unread(along: Tensor, g: Tensor) -> Tensor:
    """What a target does not read may be anything, a row of padding, say: there g.o is 0."""
    if not along.is_cpu:  # which would have to be waited for to know whether there is such a row
        return along.masked_fill_(g.any(-1).logical_not_(), 0.0)
    return along if bool(along.isfinite().all()) else along.masked_fill((g == 0).all(-1), 0.0)


def _dot(g: Tensor, out: Tensor) -> Tensor:
    """g . o of every row, added up in float32 at least."""
    if g.dtype not in (torch.float32, torch.float64):
        g, out = g.float(), out.float()
    return torch.linalg.vecdot(g, out.to(g.dtype))
