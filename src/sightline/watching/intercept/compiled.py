"""Models that torch.compile has wrapped, whole or in part: their compiled code runs, and the account is made beside.

Nobody sees into a compiled graph. What goes into it is known, though: after the compiled code has run, the same module
runs once more on the same inputs, uncompiled and without gradients, and the watches look at that. Where a second run
could do harm or would be another one (a cache that grows, random numbers, hooks), there is none, and the module is
named in `seen.unseen`.

Who waits for gradients (`influence=True`) needs them in that second run: it has a graph of its own, without parameters
and inputs, and what arrives at the output of the compiled code goes into both. So the model's own gradients are those
of its compiled code, to the bit, and the heads have theirs.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from sightline.watching.intercept import active
from sightline.watching.intercept.caller import inner
from sightline.watching.intercept.heads import check_gradients, compiled_gives

if TYPE_CHECKING:
    from sightline.watching.watcher import Watcher

_lock = threading.Lock()
_HARMLESS = (Tensor, bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, slice, type(None))
_ATTENDS = re.compile(r"attention|attn|softmax", re.IGNORECASE)


class Region:
    """Stands in for the compiled code of one module while it is watched."""

    def __init__(self, owner: nn.Module, attribute: str) -> None:
        self.owner, self.attribute, self.module = owner, attribute, inner(owner)
        self.own = attribute in vars(owner)  # else it is the class's
        self.compiled: Callable[..., Any] = getattr(owner, attribute)
        self.count = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        watchers = [watcher for watcher in active.watches() if watcher.name_of(self.module) is not None]
        editors: list[Any] = [one for one in watchers if getattr(one, "edits", False)]
        if any(editor.changes(self.module) for editor in editors):
            return self._edited(watchers, editors, args, kwargs)
        watchers = [watcher for watcher in watchers if watcher not in editors]
        # While gradients are computed, layers may run again (checkpointing): they were seen before.
        if not watchers or torch._C._current_graph_task_id() != -1:
            with active.quiet(compiled=True):
                return self.compiled(*args, **kwargs)
        influences: list[Any] = [
            one for watcher in watchers if (one := getattr(watcher, "influence", None)) is not None
        ]
        if influences:
            check_gradients()
        before = _Before(self.parts(), args, kwargs)
        with active.quiet(compiled=True):
            out = self.compiled(*args, **kwargs)
        reason = before.why_not_again()
        if reason is None and influences:
            heard = [tap for one in influences for tap in one.taps]
            with _without_gradients(self.module):
                cut = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, (args, kwargs))
                again, reason = self._again(watchers, cut[0], cut[1], out, gradients=True)
            if not all(any(tap is other for other in heard) for one in influences for tap in one.taps):
                out = _bridged(out, again, self.module)
        elif reason is None:
            _, reason = self._again(watchers, args, kwargs, out)
        elif not any(map(_may_attend, self.module.modules())):
            return out
        if reason is not None:
            for watcher in watchers:
                watcher.seen._unseen[watcher.names[id(self.module)]] = reason
        return out

    def _edited(self, watchers: list[Watcher], editors: list[Any], args: tuple, kwargs: dict) -> Any:
        """The module itself, uncompiled: nobody reaches into a graph. Who watches sees that one run."""
        for editor in editors:
            editor.takes_apart(self.module, self.compiled)
        with ExitStack() as stack:
            self._hooked(stack, watchers, args, kwargs)
            return self.compiled(*args, **kwargs)

    def _hooked(self, stack: ExitStack, watchers: list[Watcher], args: tuple, kwargs: dict) -> None:
        for watcher in watchers:
            watcher.hook(stack, self.parts())
            # Hooks are not called by a forward method alone.
            alone = self.owner is self.module and self.attribute == "forward"
            if alone and watcher.enters(self.module, args, kwargs) is not False:
                stack.callback(watcher.leaves)

    def _again(
        self, watchers: list[Watcher], args: tuple, kwargs: dict, out: Any, gradients: bool = False
    ) -> tuple[Any, str | None]:
        """What the second run gives, which the watches see; and what is wrong with it."""
        with ExitStack() as stack:
            stack.enter_context(_beside(args, kwargs, gradients))
            self._hooked(stack, watchers, args, kwargs)
            again = self.compiled(*args, **kwargs)  # uncompiled, as all compiled code while somebody watches
            for mine, theirs in zip(tree_leaves(again), tree_leaves(out)):
                if isinstance(theirs, Tensor) and theirs.is_floating_point() and theirs.numel():
                    size = theirs.detach().abs().nan_to_num().max()
                    if mine.shape != theirs.shape or bool((mine - theirs).abs().max() > 0.05 * size):
                        said = "compiled; its layers are those of a second, uncompiled run, whose output was another"
                        return again, said
        return again, None

    def parts(self) -> list[nn.Module]:
        """The modules that run inside the compiled code."""
        return list(self.module.modules())


class _Before:
    """How things stood before a compiled call: whether it can be repeated is known afterwards."""

    def __init__(self, parts: list[nn.Module], args: tuple, kwargs: dict) -> None:
        self.parts, self.given = parts, (args, kwargs)
        self.random = _random(args, kwargs)
        self.versions, self.held = self._versions(), self._held()

    def why_not_again(self) -> str | None:
        odd = _odd(self.given)
        if odd is not None:
            return f"compiled, and given a {odd}, which a second run for the account might change"
        if any(part._forward_hooks or part._forward_pre_hooks for part in self.parts):
            return "compiled, with hooks, which a second run for the account would call again"
        if any(not torch.equal(a, b) for a, b in zip(self.random, _random(*self.given))):
            return "compiled, with random numbers, which a second run for the account would draw anew"
        if self.versions != self._versions() or self.held != self._held():
            return "compiled, and changed its tensors or attributes, which a second run for the account would do again"
        return None

    def _versions(self) -> list[int]:
        tensors = [x for x in tree_leaves(self.given) if isinstance(x, Tensor)]
        held = [x for part in self.parts for x in (*part._parameters.values(), *part._buffers.values())]
        return [0 if x is None or x.is_inference() else x._version for x in (*tensors, *held)]

    def _held(self) -> list[tuple[str, int, int]]:
        return [
            (name, id(value), len(value) if isinstance(value, list | dict | set) else 0)
            for part in self.parts
            for holder in (vars(part), part._buffers)
            for name, value in holder.items()
        ]


def is_fullgraph(code: Any) -> bool:
    """Whether torch.compile was asked for one graph, without a break."""
    cells = [cell.cell_contents for cell in getattr(code, "__closure__", None) or ()]
    return any(getattr(thing, "fullgraph", False) is True for thing in (code, *cells))


def find(modules: list[nn.Module]) -> list[Region]:
    """The outermost of a model's modules that torch.compile has wrapped."""
    found: list[Region] = []
    inside: set[int] = set()
    if active.UNCOMPILED.before == "force_eager":
        return found  # whoever opened the block wants nothing compiled
    for module in modules:
        if id(module) in inside:
            continue
        if "_orig_mod" in module._modules:
            attribute = "forward"
        elif vars(module).get("_compiled_call_impl") is not None:
            attribute = "_compiled_call_impl"
        elif hasattr(module.forward, "_torchdynamo_orig_callable"):
            attribute = "forward"
        else:
            continue
        standing = getattr(module, attribute)
        found.append(standing if isinstance(standing, Region) else Region(module, attribute))
        inside.update(map(id, module.modules()))
    return found


@contextmanager
def standing_in(regions: list[Region]) -> Iterator[None]:
    """The compiled code of these modules tells the watches; afterwards it is as it was."""
    with _lock:
        for region in regions:
            region.count += 1
            vars(region.owner)[region.attribute] = region
    try:
        yield
    finally:
        with _lock:
            for region in regions:
                region.count -= 1
                if not region.count and region.own:
                    vars(region.owner)[region.attribute] = region.compiled
                elif not region.count:
                    del vars(region.owner)[region.attribute]


class _Bridge(torch.autograd.Function):
    """What compiled code gave, whose gradient goes to a second run as well."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, again: Tensor) -> Tensor:
        return out.clone()  # what the model goes on with it may write into

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


def _bridged(out: Any, again: Any, module: nn.Module) -> Any:
    """What compiled code gave, with every number of it connected to the same number of the second run."""
    (outs, how), (agains, other) = tree_flatten(out), tree_flatten(again)
    if how == other:
        pairs = [
            isinstance(a, Tensor)
            and isinstance(b, Tensor)
            and b.requires_grad
            and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
            for a, b in zip(outs, agains)
        ]
        if any(pairs):
            return tree_unflatten([_Bridge.apply(a, b) if p else a for a, b, p in zip(outs, agains, pairs)], how)
    raise compiled_gives(type(module).__name__, type(out).__name__)


@contextmanager
def _without_gradients(module: nn.Module) -> Iterator[None]:
    """Parameters have no place in a graph that is made in here."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@contextmanager
def _beside(args: tuple, kwargs: dict, gradients: bool) -> Iterator[None]:
    """What runs in here leaves no gradient, no random number drawn, and no weight cast for later."""
    devices = {x.device.index for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.is_cuda}
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.random.fork_rng(devices=list(devices)), torch.set_grad_enabled(gradients):
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)


def _random(args: tuple, kwargs: dict) -> list[Tensor]:
    """The states of all generators that the call may draw from."""
    devices = {x.device for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.is_cuda}
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in sorted(devices, key=str))]


def _odd(x: Any) -> str | None:
    """The kind of something that is neither a number nor a tensor nor a plain collection of such."""
    if isinstance(x, _HARMLESS):
        return None
    if type(x) in (list, tuple):
        return next((odd for part in x if (odd := _odd(part)) is not None), None)
    if type(x) is dict:
        return _odd(list(x.values()))
    return type(x).__name__


def _may_attend(module: nn.Module) -> bool:
    """Whether a module looks as if it attends: by its name, or the names that its forward uses."""
    code = getattr(type(module).forward, "__code__", None)
    return any(_ATTENDS.search(name) for name in (type(module).__name__, *(code.co_names if code else ())))
