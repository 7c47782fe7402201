"""Attention that no function was called for, noticed by its trace: a softmax between two matrix products.

The function mode hands over the few functions that scores and weights pass through. A product of two computed tensors
is marked, the mark follows it to a softmax, and the weights from there to the next product. A product with a parameter
is a projection, or a router's or a classifier's scores: it gets no mark. Neither does torch.nn.functional.linear, so a
model that calls attention functions has no marks, and pays one look-up in a dictionary for each call of torch.

Where the way of the scores can be followed (`ways.py`), the account is made of them (`by_hand.py`); else it is said
that the module attended unseen.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from sightline.errors import explain
from sightline.watching.intercept import active, numberless, scripted
from sightline.watching.intercept.caller import common, running
from sightline.watching.intercept.marks import SOFT, Mark, Soft, Trace, Weighing, tensors
from sightline.watching.intercept.ways import CELLWISE, OWNERS, PURE, RESHAPES, Product, Way, of_product, summed_over

if TYPE_CHECKING:
    from sightline.watching.watcher import Watcher

BY_HAND = "its attention is written by hand: a softmax between two matrix products"
SAMPLED = "its attention is written by hand: a softmax weighs sampled points"
AROUND = "its attention is written by hand: a softmax weighs what lies around each point"
# Stands for the index of a layer that is none of those that are counted.
_UNCOUNTED = 1 << 40


def miss(watcher: Watcher, name: str, reason: str) -> None:
    """A module attended and was not caught: a watch that chose it says so. The first reason counts."""
    chosen = getattr(watcher, "layers", None)  # who edits has none, and is told of all
    if chosen is None or chosen(name, watcher.order.get(name, _UNCOUNTED), len(watcher.order)):
        watcher.seen._unseen.setdefault(name, reason)


def drop(watcher: Watcher, name: str, reason: str, by_hand: bool = False) -> None:
    """What was seen of a layer, or by hand in it, is not to be believed: it is taken away, and unseen from now on."""
    miss(watcher, name, reason)
    for full, layer in list(watcher.seen._layers.items()):
        if full.split("#")[0] != name or (by_hand and not getattr(layer, "by_hand", False)):
            continue
        del watcher.seen._layers[full]
        if watcher.writer is not None:
            watcher.writer.drop(full)


def say(unseen: dict[str, str], stacklevel: int) -> None:
    """One warning that names all that was not seen."""
    if unseen:
        names = list(unseen)
        reasons = list(dict.fromkeys(unseen.values()))
        warnings.warn(
            explain(
                f"{len(unseen)} {'module' if len(unseen) == 1 else 'modules'} attended without being seen",
                expected="torch's or transformers' attention functions, which can be seen",
                got=f"{some(names)} ({'; '.join(reasons[:3])}{'; …' if len(reasons) > 3 else ''})",
                hint="seen.unseen says which and why; F.scaled_dot_product_attention and sl.attention can be seen",
            ),
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def some(names: list[str], most: int = 8) -> str:
    """A few names of a list.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


# What each function does to marks.


def _product(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    """Scores, if two computed tensors are multiplied; attention, if one of them is a softmax of such scores."""
    result = func(*args, **kwargs)
    operands = list(tensors((*args, *kwargs.values())))
    if func in _ADDING:
        operands = operands[1:]
    marks = [trace.get(x) for x in operands]
    kinds = [_kind(mark) for mark in marks]
    computed = [i for i, kind in enumerate(kinds) if kind != "parameter"]
    trace.forget(result)
    if len(computed) > 1:
        weights = [i for i, kind in enumerate(kinds) if kind == "weights"]
        first = marks[weights[0]] if weights else None
        if first is not None and len(weights) > 1:  # two hops, or a gate and itself: no values yet
            trace.put(result, Mark("weights", first.module))
        elif weights:
            result = _weighed(trace, func, args, operands, weights[0], result)
        elif "soft" in kinds and "around" in kinds:
            attended(AROUND)
        else:
            known = "buffer" not in kinds and numberless.why_not(result) is None
            way = of_product(func, args, operands, result) if known else None
            trace.put(result, Mark("features" if "buffer" in kinds else "product", way=way))
            trace.shape = result.shape
    elif computed and (mark := marks[computed[0]]) is not None:
        x = operands[computed[0]]
        if x.dim() > 3 and result.shape[-2:] == x.shape[-2:]:  # heads that are mixed by parameters
            trace.put(result, _changed(mark, x, result))
    return result


def _changed(mark: Mark, x: Tensor, result: Any) -> Mark:
    """The mark of what was made of a tensor: of its own shape it can be followed on, and weights are others."""
    if mark.way is None or not isinstance(result, Tensor) or result.shape != x.shape:
        return mark._replace(way=None)
    if mark.soft is not None:
        mark.soft.pure = False
    return mark


def _weighed(trace: Trace, func: Any, args: tuple, operands: list[Tensor], place: int, result: Tensor) -> Tensor:
    """Weights go into a product: an account, if their keys are what it sums over; and its result, or another."""
    weights = operands[place]
    mark = trace.get(weights)
    assert mark is not None
    way, soft = mark.way, mark.soft
    axes = None if way is None else way.axes()
    followed = axes is not None and axes[1] == summed_over(func, args, place, weights)
    if not followed or soft is None or mark.module is None or trace.hear is None:
        attended(numberless.why_not(result) or BY_HAND, mark.module)
        return result
    weighing = Weighing(weights, operands[1 - place], result)
    return trace.hear(soft, None if soft.pure else weights, weighing, mark.module)


def _mixed(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    """A linear map or a convolution: it may mix the heads of scores; all else are new features."""
    result = func(*args, **kwargs)
    mark = trace.get(_first(args, kwargs)) if trace.marks else None
    weight = args[1] if len(args) > 1 else kwargs.get("weight")
    if mark is not None and isinstance(weight, Tensor) and _first(args, kwargs).dim() > 3:
        square = weight.shape[0] == weight.shape[1] and weight.numel() == weight.shape[0] ** 2
        if square:
            trace.put(result, _changed(mark, _first(args, kwargs), result))
    return result


def _softmax(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    x = _first(args, kwargs)
    mark = trace.get(x) if trace.marks else None
    if mark is None and isinstance(x, Tensor) and x.shape == trace.shape and scripted.stands_between():
        mark = Mark("product")
    result = func(*args, **kwargs)
    if mark is None or mark.kind not in ("product", "features"):
        trace.put(result, Mark("soft"))
    elif (module := current()) is not None:
        soft = _soft(mark, func, x, args, kwargs)
        way = None if soft is None else Way(Product(None, None, result.shape, -2, -1))
        trace.put(result, Mark("weights", module, way, soft))
        if soft is not None:
            if len(trace.soft) == SOFT and (oldest := trace.soft[0]()) is not None:
                oldest.take()
            trace.soft.append(weakref.ref(soft))
    return result


def _soft(mark: Mark, func: Any, x: Tensor, args: tuple, kwargs: dict) -> Soft | None:
    """What a softmax is given, if it goes over the keys of scores whose way is known."""
    axes = None if mark.way is None or func not in _SOFTMAX else mark.way.axes()
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if axes is None or dim not in (-1, x.dim() - 1):
        return None
    rows, columns = (axis if x.shape[axis] > 1 else None for axis in axes)
    swapped = rows == -1 or columns == -2
    if swapped:
        rows, columns = columns, rows
    if rows not in (-2, None) or columns not in (-1, None) or x.dim() < 2:
        return None
    assert mark.way is not None
    return Soft(x, mark.way.product, swapped)


def _exponential(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    """A softmax that is written out; of a product with a buffer they are the random features of linear attention."""
    mark = trace.get(_first(args, kwargs)) if trace.marks else None
    result = func(*args, **kwargs)
    if mark is not None and mark.kind == "product" and (module := current()) is not None:
        trace.put(result, Mark("weights", module))
    return result


def _sample(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    result = func(*args, **kwargs)
    trace.put(result, Mark("around" if func is F.unfold else "sampled"))
    return result


def _same(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    """The same numbers in another shape or precision, some of them, or others of the same meaning."""
    x = _first(args, kwargs)
    if not trace.marks and type(x) is not Parameter and id(x) not in trace.fixed:
        return func(*args, **kwargs)
    mark = trace.get(x)
    result = func(*args, **kwargs)
    if mark is not None:
        if mark.soft is not None and func not in PURE and func not in RESHAPES:
            mark.soft.pure = False
        if result is not x:
            trace.put(
                result, mark if mark.way is None else mark._replace(way=mark.way.through(func, x, args, kwargs, result))
            )
    return result


def _cellwise(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    """Each number changed where it stands. Models do this to features all day, so without marks nobody looks."""
    return _same(trace, func, args, kwargs)


def unknown(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    """A function that is not known here: scores or weights that go into it may come out of it, nobody knows how.

    So they cannot be followed on; but if they are used as attention, that can be said.
    """
    result = func(*args, **kwargs)
    if not isinstance(result, Tensor | tuple | list):
        return result
    for x in tensors((*args, *kwargs.values())):
        mark = trace.get(x)
        if mark is None or mark.kind not in ("product", "weights"):
            continue
        for made in tensors((result,)):
            if made.is_floating_point() and trace.get(made) is None and _is_of(x, made):
                trace.put(made, mark._replace(way=None))
        break
    return result


def _is_of(x: Tensor, made: Tensor) -> bool:
    """Whether a tensor has a map's rows and columns, or its rows with some columns: the largest ones, sorted ones."""
    if min(x.dim(), made.dim()) < 2:
        return False
    return made.shape[-2:] == x.shape[-2:] or (made.shape[:-1] == x.shape[:-1] and made.shape[-1] > 1)


def _extreme(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    """`max` and `min`: of two tensors element by element, or of one along an axis."""
    other = args[1] if len(args) > 1 else kwargs.get("other")
    return (_joined if isinstance(other, Tensor) else unknown)(trace, func, args, kwargs)


def _joined(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    """Several tensors become one, element by element or side by side."""
    if not trace.marks:
        if func in _INTO:
            trace.forget(_first(args, kwargs))  # a buffer that is written to is a cache
        return func(*args, **kwargs)
    operands = list(tensors((*args, *kwargs.values())))
    marks = [trace.get(x) for x in operands]
    kinds = [_kind(mark) for mark in marks]
    result = func(*args, **kwargs)
    into = operands[0] if func in _INTO and operands else result
    if "sampled" in kinds and func in _TIMES and ("soft" in kinds or "weights" in kinds):
        attended(SAMPLED)
        trace.forget(into)
        return result
    if func in _INTO:
        trace.forget(into)
    for kind in ("weights", "product", "features", "sampled", "around", "soft"):
        if kind in kinds:
            same = [i for i, x in enumerate(operands) if kinds[i] == kind and x.shape == _shape(into)]
            i = next((i for i in same if _way(marks[i])), kinds.index(kind))
            mark = marks[i]
            assert mark is not None
            if func in _INTO and i == 0:
                # What is written into scores leaves their axes where they are; into weights, it makes them others.
                if mark.soft is not None:
                    mark.soft.pure = False
            else:
                mark = _changed(mark, operands[i], result if func in _BY_ELEMENT else None)
            if kind == "weights" and func in _BY_ELEMENT and into.numel() != operands[i].numel():
                trace.forget(into)  # experts that are weighed, one number each
            else:
                trace.put(into, mark)
            break
    return result


def _way(mark: Mark | None) -> Way | None:
    return None if mark is None else mark.way


def _shape(result: Any) -> torch.Size | None:
    return result.shape if isinstance(result, Tensor) else None


def _kind(mark: Mark | None) -> str | None:
    return None if mark is None else mark.kind


def current() -> nn.Module | None:
    """The watched module that is running; None while a watch makes its account, or gradients are computed."""
    watches = active.watches()
    if not watches or torch._C._current_graph_task_id() != -1:
        return None
    names: dict[int, str] = {}
    for watcher in watches:
        names.update(watcher.names)
    return running(names)


def holders(reason: str, softmax: nn.Module | None) -> list[tuple[Watcher, str]]:
    """The watches, and what each calls the innermost module that holds both a softmax and what follows it.

    The reason comes first: a frame whose first argument is a module is taken for a method of it.
    """
    module, found = current(), []
    if module is None:
        return []
    for watcher in active.watches():
        name = watcher.name_of(module)
        other = name if softmax is None else watcher.name_of(softmax)
        if name is not None and other is not None:
            found.append((watcher, common(name, other, watcher.names)))
    return found


def attended(reason: str, softmax: nn.Module | None = None) -> None:
    """Tell the watches of attention that cannot be followed; nothing that was seen of it by hand stays."""
    for watcher, name in holders(reason, softmax):
        drop(watcher, name, reason, by_hand=True)


def _first(args: tuple, kwargs: dict) -> Any:
    return args[0] if args else kwargs.get("input", kwargs.get("self"))


# The functions, by the names that torch has for them as functions and as methods.

_PRODUCTS = "matmul __matmul__ __rmatmul__ mm bmm mv inner einsum tensordot baddbmm baddbmm_ addmm addbmm cdist"
_SAME = """
    view view_as reshape reshape_as flatten unflatten ravel transpose permute swapaxes swapdims movedim moveaxis t
    adjoint squeeze unsqueeze expand expand_as broadcast_to contiguous clone detach to type type_as float half
    bfloat16 double cpu cuda __getitem__ narrow select index_select gather take_along_dim chunk split tensor_split
    unbind repeat tile repeat_interleave roll flip pad as_strided unfold diagonal dropout dropout_ dropout1d dropout2d
    alpha_dropout clamp clamp_ clip clip_ clamp_min clamp_min_ clamp_max clamp_max_ tanh tanh_ nan_to_num nan_to_num_
    masked_fill masked_fill_ tril triu neg relu pow __pow__ square sqrt abs log_softmax
"""
_MEET = """
    add add_ __radd__ sub sub_ subtract rsub __rsub__ mul mul_ multiply __rmul__ div div_ divide true_divide where
    maximum minimum fmax fmin logaddexp addcmul addcdiv lerp
"""
_EXTREME = "max min"
_JOINED = "cat concat concatenate stack hstack vstack masked_scatter scatter index_copy"
_WRITING = "__setitem__ copy_ scatter_ index_copy_ masked_scatter_"

Follow = Callable[[Trace, Any, tuple, dict], Any]


def _named(names: str) -> set[Any]:
    found = {getattr(owner, name) for owner in OWNERS for name in names.split() if hasattr(owner, name)}
    return {function for function in found if callable(function)}


_SOFTMAX = _named("softmax")
_ADDING = _named("baddbmm baddbmm_ addmm addbmm")
_TIMES = _named("mul mul_ multiply __rmul__")
_BY_ELEMENT = _named(f"{_MEET} {_EXTREME}")
_INTO = _named(_WRITING)
_VIEWS = {getattr(torch.Tensor, name).__get__ for name in ("T", "mT", "H", "mH")}
_GROUPS: list[tuple[set[Any], Follow]] = [
    (_named(_SAME) | _VIEWS, _same),
    (CELLWISE, _cellwise),
    (_named(f"{_MEET} {_JOINED} {_WRITING}"), _joined),
    (_named(_EXTREME), _extreme),
    (_named(_PRODUCTS), _product),
    (_named("softmax softmin gumbel_softmax"), _softmax),
    (_named("exp exp_ exp2"), _exponential),
    (_named("linear conv1d conv2d"), _mixed),
    ({F.grid_sample, F.unfold}, _sample),
]
FOLLOW: dict[Any, Follow] = {function: follow for functions, follow in _GROUPS for function in functions}
# Of these nothing follows while no tensor has a mark: the mode calls them at once, which a small model would notice.
_AT_REST = (_cellwise, _joined, _extreme, _mixed, _exponential)
RESTING = {function for function, follow in FOLLOW.items() if follow in _AT_REST} - _INTO
# And these look for a parameter or a buffer then.
FOLLOWS_FIRST = _same
