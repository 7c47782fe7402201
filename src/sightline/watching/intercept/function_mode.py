"""The function mode: it sees every call of torch's attention functions, and of Sightline's own, in its thread."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch._higher_order_ops.flex_attention import flex_attention as flex_operator
from torch.nn import Parameter

from sightline import caches
from sightline.backends.api import attention
from sightline.errors import InputError
from sightline.nn.observe.listener import Listener
from sightline.watching.intercept import active, by_hand, fast_path, numberless, torch_calls, unseen
from sightline.watching.intercept.caller import in_compiled_function, running
from sightline.watching.intercept.flex import flex
from sightline.watching.intercept.heads import connect
from sightline.watching.intercept.joint import CATS, Joint
from sightline.watching.intercept.marks import Trace
from sightline.watching.intercept.unseen import FOLLOW, FOLLOWS_FIRST, RESTING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sightline.watching.intercept.looked import Attended, Edited
    from sightline.watching.intercept.marks import Soft, Weighing
    from sightline.watching.intercept.mask_tables import Tables
    from sightline.watching.watcher import Watcher

Handler = Callable[[Any, tuple, dict, "Audience"], Any]


class Audience:
    """A call's module, and the watches that hear of it: those that want its account, and those that only count."""

    def __init__(self, module: nn.Module, hearing: list[tuple[Watcher, str]]) -> None:
        self.module, self.hearing = module, hearing
        self.wanting = [(watcher, name) for watcher, name in hearing if watcher.wants(name)]
        self.edited = False
        self.before: Tensor | None = None  # what heads gave, where edits then replaced or scaled it
        self.editing: list[tuple[Any, str]] = [one for one in self.wanting if getattr(one[0], "edits", False)]

    @property
    def name(self) -> str:
        return self.hearing[0][1]

    @property
    def compact(self) -> bool:
        """Whether one of them chose Sightline's attention in place of what writes queries x keys."""
        return any(watcher.compact for watcher, _ in self.wanting)

    @property
    def lenient(self) -> bool:
        """Whether none of them would rather have an error than no account."""
        return all(getattr(watcher, "lenient", False) for watcher, _ in self.wanting)

    @property
    def deep(self) -> bool:
        """Whether one of them wants to know what the heads gave."""
        return any(getattr(watcher, "deep", False) for watcher, _ in self.wanting)

    @property
    def influence(self) -> bool:
        """Whether one of them waits for gradients."""
        return any(getattr(watcher, "influence", None) is not None for watcher, _ in self.wanting)

    @property
    def tables(self) -> Tables:
        return self.hearing[0][0].tables

    def note(self, first_query: int, end_key: int) -> None:
        """Tell those that do not want the account that there was a call."""
        for watcher, name in self.hearing:
            if (watcher, name) not in self.wanting:
                watcher.note(name, first_query, end_key)

    def miss(self, why: str, first_query: int, end_key: int) -> None:
        """A call that ran as it is, and of which there is no account."""
        for watcher, name in self.hearing:
            watcher.note(name, first_query, end_key)
        for watcher, name in self.wanting:
            watcher.seen._unseen[name] = why

    def is_step(self, keys: int) -> bool:
        """Whether one query may be a step of a generation; a class token that asks all of the others is none."""
        return all(getattr(watcher, "is_step", _always)(name, keys) for watcher, name in self.hearing)

    def goes_on(self, q: Tensor, k: Tensor, v: Tensor, lse: Tensor | None, scale: float | None) -> bool:
        """Take in a step of a generation that is as the one before it: then there is nothing to find out."""
        if lse is None or len(self.hearing) != 1 or not self.wanting:
            return False
        watcher, name = self.wanting[0]
        return watcher.goes_on(name, q, k, v, lse, scale)

    @property
    def watching(self) -> bool:
        """Whether somebody wants the account of it, and not only to change it."""
        return len(self.wanting) > len(self.editing)

    def edit(self, attended: Attended) -> Edited:
        """The call as all edits together have it."""
        # One that only listens does so behind all changes.
        editor, name = next((one for one in self.editing if getattr(one[0], "listens", False)), self.editing[0])
        self.edited = True
        out = attended.out
        if self.influence and torch.is_grad_enabled() and out is not None and not out.requires_grad:
            out = out.clone()
            attended = attended._replace(out=out)
            connect(out)
        edited: Edited = editor.edit(name, attended, self.editing)
        self.before = edited.before
        return edited

    def record(self, looked: Any) -> None:
        if self.editing and not self.edited:
            raise InputError(
                f"{self.name} cannot be edited",
                expected="torch's own attention functions, transformers', or sl.attention",
                got="a function that is seen, and whose output cannot be changed",
                hint="layers=… to leave it out, or F.scaled_dot_product_attention in its place",
            )
        self.note(looked.first_query, looked.first_key + looked.call.sizes.keys)
        for watcher, name in self.wanting:
            watcher.record(self.module, name, self.in_place(looked))

    def in_place(self, looked: Any) -> Any:
        """The same, with the place in the graph where the weights' own part ends."""
        if self.before is None or looked.heads is None:
            return looked
        return looked._replace(heads=looked.heads._replace(before=self.before))


class Again(Audience):
    """The same for a call that a reentrant checkpoint makes again: it was counted, and brings its gradient."""

    def note(self, first_query: int, end_key: int) -> None:
        for watcher, name in self.hearing:
            if not _recomputes(watcher) and (watcher, name) not in self.wanting:
                watcher.note(name, first_query, end_key)

    def miss(self, why: str, first_query: int, end_key: int) -> None:
        pass

    def goes_on(self, q: Tensor, k: Tensor, v: Tensor, lse: Tensor | None, scale: float | None) -> bool:
        return False

    def record(self, looked: Any) -> None:
        for watcher, name in self.wanting:
            if _recomputes(watcher):
                watcher.influence.again(name, self.in_place(looked))
            else:
                watcher.record(self.module, name, self.in_place(looked))


def audience(
    module: nn.Module | None = None, again: bool = False, func: Any = None, given: Any = None
) -> Audience | None:
    """Who hears of an attention call that is made now; None if nobody watches the module that makes it.

    Of a call without numbers, of which `given` is a tensor, watches hear no more than that there was one. While
    gradients are computed, layers may run again (checkpointing): they were seen before, so nobody hears of it, except
    with `again`, and except who edits: what runs again is edited again.
    """
    watches = active.watches()
    if not watches:
        return None
    once_more = torch._C._current_graph_task_id() != -1 and not again
    if once_more:
        watches = [watcher for watcher in watches if getattr(watcher, "edits", False) or _recomputes(watcher)]
    if not watches:
        return None
    module = module or active.known_module()
    if module is None:
        everything: dict[int, str] = {}
        for watcher in watches:
            everything.update(watcher.names)
        module = running(everything)
    if module is None:
        return None
    if func is torch._transformer_encoder_layer_fwd:
        module = fast_path.attends_by(module)
    hearing = [(watcher, name) for watcher in watches if (name := watcher.name_of(module)) is not None]
    if hearing and (why := numberless.why_not(given)) is not None:
        hearing = _told(hearing, why)
    if not hearing:
        return None
    return (
        Again(module, hearing)
        if once_more and any(_recomputes(one) for one, _ in hearing)
        else Audience(module, hearing)
    )


def _told(hearing: list[tuple[Watcher, str]], why: str) -> list[tuple[Watcher, str]]:
    """Tell watches of a call that cannot be looked at; those that edit it are left."""
    editing = [(watcher, name) for watcher, name in hearing if getattr(watcher, "edits", False)]
    for watcher, name in hearing:
        if (watcher, name) not in editing:
            unseen.drop(watcher, name, why)
    return editing


def _recomputes(watcher: Watcher) -> bool:
    influence = getattr(watcher, "influence", None)
    return influence is not None and influence.recomputes


class WatchMode(Listener):
    """Hands attention calls of watched models to their handlers, and lets everything else pass."""

    is_watch = True
    handlers: ClassVar[Mapping[Any, Handler]] = {
        F.scaled_dot_product_attention: torch_calls.sdpa,
        F.multi_head_attention_forward: torch_calls.multi_head,
        attention: torch_calls.own,
        flex_operator: flex,
        torch._transformer_encoder_layer_fwd: fast_path.layer,
        torch._native_multi_head_attention: fast_path.heads,
    }

    def __init__(self, buffers: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.trace = Trace(buffers)  # of attention that no handler sees
        self.trace.hear = _by_hand
        self.joint: Joint | None = None  # what text and image are put together by

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        # Nearly all calls end here: a look-up, and nothing to be done.
        care = _CARE.get(func)
        if care is None:
            care = _care(func)
        idle = not self.trace.marks and (care is MARKS or (care is FIRST and bool(args) and self._new(args[0])))
        if self.joint is not None and func in CATS:
            self.joint.cat(args, kwargs or {})
        if idle:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        handler = self.handlers.get(func)
        if handler is None:
            follow = FOLLOW.get(func)
            found = (follow or unseen.unknown)(self.trace, func, args, kwargs)
            if func in _COPIES and args:
                for watcher in active.watches():
                    watcher.tables.follow(args[0], found)
            elif args and _writes(func) and torch.is_inference_mode_enabled():
                # Elsewhere a tensor counts by itself how often it was changed.
                for watcher in active.watches():
                    watcher.tables.forget(args[0])
            return found
        who = active.known_audience() or audience(func=func, given=args[0] if args else None)
        if who is None:
            return func(*args, **kwargs)
        if active.known_module() is None:
            for watcher, _ in who.hearing:
                watcher.listening.always = True
        # On a GPU FlexAttention runs compiled, whoever compiled it.
        if active.UNCOMPILED.on and in_compiled_function() and not (handler is flex and args[0].is_cuda):
            for watcher, name in who.hearing:
                watcher.seen._unseen[name] = "attends in a compiled function, which ran uncompiled to be seen"
        return self.hear(handler, func, args, kwargs, who)

    def hear(self, handler: Handler, func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
        """An attention call that somebody wants to know of."""
        return handler(func, args, kwargs, who)

    def _new(self, x: Any) -> bool:
        """Whether something is neither a parameter nor a buffer."""
        return type(x) is not Parameter and id(x) not in self.trace.fixed


def _by_hand(soft: Soft, weights: Tensor | None, weighing: Weighing, softmax: nn.Module) -> Tensor:
    """Attention written by hand, whose weights go into a product now: its account, or the reason why there is none.

    Gives the result of the product, as edits have it. Of several modes that are on, the first one hears for all. The
    module comes last: a frame whose first argument is a module is taken for a method of it.
    """
    every, result = unseen.holders(unseen.BY_HAND, softmax), weighing.result
    if any(getattr(watcher, "product_by_hand", _nothing)() is result for watcher, _ in every):
        return result
    if (why := numberless.why_not(result)) is not None:
        every = _told(every, why)
    hearing = [(watcher, name) for watcher, name in every if hasattr(watcher, "module_of")]
    for watcher, name in every:
        if (watcher, name) not in hearing:
            unseen.drop(watcher, name, unseen.BY_HAND, by_hand=True)
    module = hearing[0][0].module_of(hearing[0][1]) if hearing else None
    if module is None:
        return result
    for watcher, _ in hearing:
        watcher.listening.always = True
    who = Audience(module, hearing)
    found: Any
    if who.editing:
        found, result = by_hand.edited(who, soft, weights, weighing)
    try:
        if not who.editing:
            scores = soft.scores
            found = by_hand.looked(who, soft, weights)
            if who.deep and scores is not None and not isinstance(found, str):
                found = found._replace(heads=by_hand.gives(who, found, weighing, scores))
        if isinstance(found, str):
            for watcher, name in hearing:
                unseen.drop(watcher, name, found, by_hand=True)
            return result
        who.wanting = [(watcher, name) for watcher, name in who.wanting if name not in watcher.seen._unseen]
        who.record(found)
    except Exception as error:
        if not who.lenient:
            raise
        who.miss(f"no account of it: {error}".splitlines()[0], -1, 0)
        return result
    for watcher, name in who.wanting:
        watcher.mark_by_hand(name)
    for watcher, _ in every:
        watcher.product_by_hand = weakref.ref(result)  # type: ignore[attr-defined]
    return result


def _nothing() -> None:
    return None


def _always(*_: Any) -> bool:
    return True


def _care(func: Any) -> str:
    """What has to be looked at in a call of a function, found out once for each."""
    if func in WatchMode.handlers or func in _COPIES or _writes(func):
        care = ALL
    else:
        follow = FOLLOW.get(func)
        care = MARKS if follow is None or func in RESTING else FIRST if follow is FOLLOWS_FIRST else ALL
    if len(_CARE) < _MOST:
        _CARE[func] = care
    return care


def _writes(func: Any) -> bool:
    """Whether a function changes its first argument, by its name."""
    name = getattr(func, "__name__", "")
    return name.endswith("_") and (not name.startswith("__") or name == "__setitem__" or name.startswith("__i"))


# Only that no tensor has a mark; that, and that the first argument is no parameter; everything.
MARKS, FIRST, ALL = "marks", "first", "all"
# Functions that are known at most: some are made anew for each call.
_MOST = 4096
_CARE: dict[Any, str] = caches.held("watching.functions", {}, _MOST)
_COPIES = {torch.Tensor.contiguous, torch.Tensor.clone}
