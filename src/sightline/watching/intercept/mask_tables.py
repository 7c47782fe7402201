"""Tensors that other people's code uses as masks, read once per tensor: which of them are causal, padding, or a bias.

torch's attention takes booleans (True = may attend) or numbers that are added to the scores. A table of 0 and -inf
(or the least number there is) is a mask; a table whose rows are all alike is padding; a lower triangle is causal. All
else stays as it came.

In a compiled graph nothing about a tensor says which table it is: the compiler writes one table anew for every layer,
and another one into the same memory, as the same tensor. There tables have numbers, given while the graph is traced.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.backends.empty_rows import find
from sightline.masks import Mask, causal, dense, padding

if TYPE_CHECKING:
    from sightline.watching.intercept.transformers_masks import Span


class Table(NamedTuple):
    """What a tensor means: a mask, or a bias, and which rows may see something (None: all)."""

    mask: Mask | None
    bias: Tensor | None
    sees: Tensor | None


class Kind(NamedTuple):
    """What a tensor is: everything, padding, causal, dense or bias; and whether some row sees nothing."""

    what: str
    blind: bool


class Rule(NamedTuple):
    """What a table was written from: a mask for the keys of a span; of booleans, which rows see something."""

    mask: Mask | None
    span: Span
    sees: Tensor | None


class Tables:
    """What is known of the latest tensors: layers share their masks, so each is looked at once. No tensor is held."""

    def __init__(self, most: int = 8) -> None:
        self._kept: list[tuple[weakref.ref[Tensor], int, tuple[int, ...], Table]] = []
        self._told: list[tuple[weakref.ref[Tensor], int, Rule]] = []
        self._graph: dict[tuple[int, Hashable], _Numbered] = {}
        self._most = most
        self.changing = False  # whether a table was copied or changed on its way to attention

    def tell(self, tensor: Tensor, mask: Mask | None, span: Span) -> None:
        """A table that was written from a rule."""
        sees = _sees(tensor[..., : span.keys]) if tensor.dtype == torch.bool else None
        rule = Rule(mask, span, sees)
        self._told = [(weakref.ref(tensor), _version(tensor), rule), *self._told][: self._most]

    def follow(self, tensor: object, copy: Tensor) -> None:
        """A copy of a table means what the table means."""
        for known, at, rule in self._told if copy is not tensor else []:
            if isinstance(tensor, Tensor) and known() is tensor and at == _version(tensor):
                self._told = [(weakref.ref(copy), _version(copy), rule), *self._told][: self._most]
                self.changing = True
                return

    def forget(self, tensor: object) -> None:
        """A tensor that was changed."""
        known = [one[0] for one in self._told] + [one[0] for one in self._kept]
        self.changing |= any(one() is tensor for one in known)
        self._told = [one for one in self._told if one[0]() is not tensor]
        self._kept = [one for one in self._kept if one[0]() is not tensor]

    def rule(self, tensor: object, q: Tensor, k: Tensor) -> Rule | None:
        """The rule of a table, if it is still the one that was told, and was made for such queries and keys."""
        for known, at, rule in self._told:
            if isinstance(tensor, Tensor) and known() is tensor and at == _version(tensor):
                sizes = (rule.span.batch, rule.span.queries, tensor.shape[-1])
                return rule if q.dim() == 4 and sizes == (q.shape[0], q.shape[-2], k.shape[-2]) else None
        return None

    def read(self, tensor: Tensor, shape: tuple[int, ...]) -> Table:
        """What a mask tensor means for a call of shape (batch, heads, queries, keys)."""
        version = _version(tensor)
        for known, at, of, table in self._kept:
            if known() is tensor and at == version and of == shape:
                return table
        table = read(tensor, shape)
        self._kept = [(weakref.ref(tensor), version, shape, table), *self._kept][: self._most]
        return table

    def read_numbered(
        self, number: int, tensor: Tensor, shape: tuple[int, ...], module: object, hides: bool = False
    ) -> Table:
        """The same of a table that a graph gives to a module, by the number that `numbered` gave it there.

        The second module gets a copy, which is also for all that follow: the graph writes over its own tables.
        """
        key = (abs(number), (shape, hides))
        known = self._graph.get(key)
        # Where a module comes again the graph does too, perhaps with another table, or the table is not known.
        if number <= 0 or known is None or id(module) in known.modules:
            known = _Numbered(kind_of(tensor, shape, hides), set())
            if number:
                self._graph[key] = known
        known.modules.add(id(module))
        if len(known.modules) == 1:
            return _meant(known.kind, tensor, shape)
        if known.table is None:
            known.table = _meant(known.kind, tensor.clone(), shape)
        return known.table

    def forget_numbered(self, number: int | None = None) -> None:
        """A graph that gives a table for the first time: what had its number was another run's. None: all of them."""
        for key in [key for key in self._graph if number is None or key[0] == number]:
            del self._graph[key]

    def clear(self) -> None:
        self._kept, self._told = [], []
        self.forget_numbered()


class _Numbered:
    """What is known of a table of a graph, and the modules that it was given to, by their identity."""

    def __init__(self, kind: Kind, modules: set[int]) -> None:
        self.kind, self.modules = kind, modules
        self.table: Table | None = None  # of a copy


def numbered() -> int:
    """Which of a graph's tables is traced: the variable `table` of `traced._tell`, which asks.

    Of the n-th of them -n where it is given for the first time, and n where it is given again; 0 where nobody can tell.
    """
    try:
        node, graph_output = _traced()
        made = _made(node)
        known: list[Hashable] = vars(graph_output).setdefault("_sightline_tables", [])
        if made not in known:
            known.append(made)
            return -len(known)
        return known.index(made) + 1
    except (AttributeError, ImportError, KeyError, LookupError, TypeError):  # or a compiler that has other objects
        return 0


def _traced() -> tuple[Any, Any]:
    """The node of the table that `traced._tell` is given in the graph that is traced, and that graph's output."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    root: Any = InstructionTranslator.current_tx()
    output, frame = root.output, getattr(root.output, "current_tx", None) or root
    tracer: Any = output.current_tracer
    while getattr(tracer, "parent", None) is not None:
        # A part that is compiled once for many has one number for many tables.
        if getattr(tracer.source_target, "__name__", "") != "tag_activation_checkpoint":
            raise LookupError
        tracer = tracer.parent
    if frame.f_code.co_name != "_tell":
        raise LookupError
    variable: Any = frame.symbolic_locals["table"]
    variable = variable.realize() if hasattr(variable, "realize") else variable
    node = variable.proxy.node
    if node.graph is not tracer.graph:
        raise LookupError
    return node, output


numbered._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _made(node: Any) -> Hashable:
    """How a tensor of a graph is made: by a node, or as a view of one; and how often it may have been written to."""
    if node.op == "call_function" and node.target is operator.getitem:
        base, index = node.args
        places = index if isinstance(index, tuple | list) else (index,)
        plain = all(place is None or place is ... or isinstance(place, int | slice) for place in places)
        if plain and isinstance(base.meta["example_value"], Tensor):
            parts = tuple((x.start, x.stop, x.step) if isinstance(x, slice) else (x,) for x in places)
            return _made(base), parts
    value = node.meta["example_value"]
    return node, value._version, sum(_may_write(one, value.dtype) for one in node.graph.nodes)


def _may_write(node: Any, dtype: torch.dtype) -> bool:
    """Whether a node writes into a tensor of this dtype: any of them may be a view of a table.

    A tensor of a graph does not count its changes in every torch. Where it does, those by others' operators count too.
    """
    if node.op not in ("call_function", "call_method"):
        return False
    name = (node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")).partition(".")[0]
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    to = node.kwargs.get("out", node.args[0] if in_place and node.args else None)
    value = getattr(to, "meta", {}).get("example_value")
    return to is not None and (not isinstance(value, Tensor) or value.dtype == dtype)


# As functions of `operator` and as methods of tensors.
_WRITTEN = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_IN_PLACE = {"setitem", "__setitem__", *(f"i{name}" for name in _WRITTEN), *(f"__i{name}__" for name in _WRITTEN)}


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed in place; inference tensors do not count."""
    return -1 if tensor.is_inference() else tensor._version


def read(tensor: Tensor, shape: tuple[int, ...]) -> Table:
    """What a mask tensor means for a call of shape (batch, heads, queries, keys)."""
    return _meant(kind_of(tensor, shape), tensor, shape)


@torch.no_grad()
def kind_of(tensor: Tensor, shape: tuple[int, ...], hides: bool = False) -> Kind:
    """What a mask tensor is. With `hides` the least number hides in a row of nothing else too."""
    if tensor.dtype != torch.bool:
        hidden = _hidden(tensor)
        asked = _Asked(
            tensor,
            numbers=lambda: (tensor.masked_fill(hidden, 0) != 0).any(),
            # The least number hides as -inf does, except in a row of nothing else: that one becomes uniform.
            uniform=lambda: (hidden.all(-1) & ~(tensor == -torch.inf).all(-1)).any(),
            blind=lambda: find(tensor).any(),
        )
        if asked["numbers"] or (not hides and asked["uniform"]):
            return Kind("bias", asked["blind"])
    visible = _visible(tensor)
    *_, queries, keys = shape
    rows, columns = visible.shape[-2:]
    first = visible[..., :1, :]  # [*batch, heads, 1, keys]
    questions = {
        "every": lambda: visible.all(),
        "blind": lambda: ~visible.any(-1).all(),
        "heads": lambda: (first == first[..., :1, :, :]).all(),
    }
    if queries > 1:
        questions["rows"] = lambda: (visible == first).all()
    if rows == queries == keys == columns:
        questions["triangle"] = lambda: (
            visible == torch.ones(rows, keys, dtype=torch.bool, device=visible.device).tril()
        ).all()
    asked = _Asked(visible, **questions)
    if asked["every"]:
        return Kind("everything", False)
    if (rows == 1 or (queries > 1 and asked["rows"])) and columns == keys and asked["heads"]:
        return Kind("padding", asked["blind"])
    if "triangle" in questions and asked["triangle"]:
        return Kind("causal", False)
    return Kind("dense", asked["blind"])


class _Asked:
    """Questions about a tensor: of one on a GPU all are asked at the first, so that it is waited for once."""

    def __init__(self, tensor: Tensor, **questions: Callable[[], Tensor]) -> None:
        self._questions, self._together = questions, not tensor.is_cpu
        self._known: dict[str, bool] = {}

    def __getitem__(self, name: str) -> bool:
        if name not in self._known and self._together:
            answers = torch.stack([ask() for ask in self._questions.values()]).tolist()
            self._known = dict(zip(self._questions, answers, strict=True))
        elif name not in self._known:
            self._known[name] = bool(self._questions[name]())
        return self._known[name]


@torch.no_grad()
def _meant(kind: Kind, tensor: Tensor, shape: tuple[int, ...]) -> Table:
    """What a tensor of a kind means."""
    tensor = tensor.detach()
    if kind.what == "bias":
        return Table(None, tensor, ~find(tensor) if kind.blind else None)
    if kind.what == "everything":
        return Table(None, None, None)
    if kind.what == "causal":
        return Table(causal(), None, None)
    visible = _visible(tensor)
    sees = visible.any(-1) if kind.blind else None
    if kind.what == "dense":
        return Table(dense(visible), None, sees)
    real = visible[..., 0, 0, :]
    return Table(padding(real if real.dim() == 2 else real.expand(*shape[:-3], shape[-1])), None, sees)


def _hidden(tensor: Tensor) -> Tensor:
    return tensor <= torch.finfo(tensor.dtype).min / 2


def _visible(tensor: Tensor) -> Tensor:
    """A mask as booleans, with four axes."""
    visible = tensor if tensor.dtype == torch.bool else ~_hidden(tensor)
    return visible[(None,) * (4 - visible.dim())] if visible.dim() < 4 else visible


def _sees(visible: Tensor) -> Tensor | None:
    """Which rows of a table see something, `[..., rows]`; None if all do."""
    some = visible.any(-1)
    return None if bool(some.all()) else some
