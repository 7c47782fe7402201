"""`sl.effects`: what each head did for a target, by replacing it; and what its gradient says of the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sightline.editing.api import edit
from sightline.editing.edits import Edits
from sightline.editing.effects_html import effects_html, effects_text
from sightline.editing.probe import Probe
from sightline.editing.progress import progress
from sightline.editing.short_cut import Blocks, LastLinear, repeated
from sightline.editing.where import Where
from sightline.errors import InputError, InputTypeError
from sightline.targets import Target
from sightline.watching.intercept.caller import names_of
from sightline.watching.seen import Seen

if TYPE_CHECKING:
    from jaxtyping import Float

# Tokens of all variants that are run together: more of them gain nothing.
_TOGETHER = 4096
# By how much two runs of the same may differ; in half precision by a few of its roundings, as kernels differ by these.
_SAME, _ROUNDINGS = 1e-4, 4


@dataclass
class Effects:
    """What heads did for a target: `layers` names the rows of `exact` and `influence`, whose columns are heads.

    `exact[*batch, layer, head]` is the target less the target with that head replaced: positive where the head raised
    it. `influence` is the first-order figure of the same replacement. NaN: not asked for, or no such head.

    >>> found = Effects(["attn"], torch.tensor(2.0), torch.tensor([[0.5, -1.5]]), torch.tensor([[0.4, -1.0]]))
    >>> found.top(1)
    [(0, 1)]
    """

    layers: list[str]
    baseline: Float[Tensor, "*batch"]
    exact: Float[Tensor, "*batch layers heads"]
    influence: Float[Tensor, "*batch layers heads"]

    def top(self, n: int = 10) -> list[tuple[int, int]]:
        """The (layer, head) pairs with the strongest effects, over the batch by their mean: for any edit's `heads=`."""
        table = self.exact.reshape(-1, *self.exact.shape[-2:]).mean(0)
        found = table.abs().nan_to_num(-1.0).flatten().argsort(descending=True, stable=True)[:n].tolist()
        pairs = [divmod(i, table.shape[1]) for i in found]
        return [pair for pair in pairs if not math.isnan(float(table[pair]))]

    def __repr__(self) -> str:
        heads = int(self.exact.isfinite().sum())
        return f"Effects({len(self.layers)} layers, {heads} heads, baseline {_round(self.baseline)})"

    def __str__(self) -> str:
        return effects_text(self)

    def _repr_html_(self) -> str:
        return effects_html(self)


def effects(
    model: nn.Module,
    inputs: Any,
    target: Callable[[Any], Tensor],
    *,
    heads: Any = None,
    by: Any = "zero",
) -> Effects:
    """Replace each head of a model and see how a target changes.

    Args:
        model: any module that `sl.edit` reaches.
        inputs: what it is called with: a tensor, a tuple or a dict, each with the batch as its first axis; or a
            function `run() -> output`, which is called once for each head.
        target: a number of the output, or one for each example: `sl.targets.logit(token)`, or any function.
        heads: which heads: numbers, or (layer, head) pairs. All if not given.
        by: what takes the place of a head's output, as in `edits.ablate`; or a `Seen` watched with
            `keep_output=True`: every head gets what it gave in that run (a patching sweep).

    The heads of a layer run as one batch, and blocks below it are not computed again where that gives the same. The
    model runs twice unedited first; two runs that differ are refused. Inside an `sl.edit` block every run has its
    edits. If it is interrupted by Ctrl-C, the KeyboardInterrupt has what was done so far as its `effects`; nothing else
    is left behind.

    >>> import sightline as sl
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    >>> found = effects(model, torch.randn(1, 5, 16), lambda out: out[:, -1].sum(-1) * 0 + out[:, -1, 0])
    >>> found.exact.shape, found.layers[0], len(found.top(3))
    (torch.Size([1, 2, 2]), 'layers.0.self_attn', 3)
    """
    return sweep(model, inputs, target, heads=heads, by=by)


def sweep(
    model: nn.Module,
    inputs: Any,
    target: Callable[[Any], Tensor],
    *,
    heads: Any = None,
    by: Any = "zero",
    told: Callable[[int, int], None] | None = None,
) -> Effects:
    """`effects`, which tells `told` how many heads are done, and of how many; what that raises ends it.

    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    >>> steps = []
    >>> _ = sweep(model, torch.randn(1, 5, 16), lambda out: out[:, 0, 0], told=lambda *step: steps.append(step))
    >>> steps
    [(0, 4), (2, 4), (4, 4)]
    """
    work = _Work(model, inputs, target)
    work.run_unedited()
    wanted = work.chosen(heads)
    shape = (*work.baseline.shape, len(work.layers), max(work.counts.values()))
    exact = torch.full(shape, torch.nan, dtype=torch.float64)
    found = Effects(work.layers, work.baseline.cpu(), exact, torch.full_like(exact, torch.nan))
    work.first_order(found.influence, wanted, by)
    done, total = 0, sum(map(len, wanted))
    tell = told or (lambda *_: None)
    tell(0, total)
    try:
        with progress("effects", len(wanted) if told is None else 0) as step:
            for layer, numbers in enumerate(wanted):
                for some in work.batches(numbers):
                    exact[..., layer, some] = work.changed(layer, some, by).cpu()
                    done += len(some)
                    tell(done, total)
                step()
    except KeyboardInterrupt as interrupt:
        interrupt.effects = found  # type: ignore[attr-defined]
        raise
    return found


class _Work:
    """One call of `effects`: how the model is run, and what it gave unedited."""

    def __init__(self, model: nn.Module, inputs: Any, target: Callable[[Any], Tensor]) -> None:
        if not isinstance(model, nn.Module) or not callable(target):
            raise InputTypeError(
                "effects are of a module, on a target",
                expected="a torch.nn.Module, and a function of its output",
                got=f"{type(model).__name__} and {type(target).__name__}",
                hint="sl.effects(model, ids, sl.targets.logit(token))",
            )
        self.model, self.target = model, target
        self.again = callable(inputs) and not isinstance(inputs, Tensor)
        self.inputs = inputs
        self.batch = 0 if self.again else _batch(inputs)
        self.probe: Probe | None = None

    def run(self, times: int = 1) -> Any:
        """The output of the model, of all inputs so many times over."""
        if self.again:
            return self.inputs()
        given = repeated(self.inputs, self.batch, times)
        if isinstance(given, dict):
            return self.model(**given)
        return self.model(*given) if isinstance(given, tuple) else self.model(given)

    def measure(self, output: Any) -> Tensor:
        found = self.target(output)
        if not isinstance(found, Tensor) or found.dim() > 1 or not found.is_floating_point():
            raise InputTypeError(
                "a target is a number, or one for each example",
                expected="a floating tensor of no axis or one",
                got=f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__,
                hint="sl.targets.logit(token)",
            )
        return found

    def run_unedited(self) -> None:
        """Twice: with gradients, and without them, remembering what blocks give. Both must give the same."""
        self.probe = Probe(self.model)
        with torch.enable_grad(), self.probe:
            self.graded = self.measure(self.run())
        self.layers, self.counts = list(self.probe.heads), dict(self.probe.heads)
        if not self.layers:
            raise InputError(
                "no attention was seen",
                expected="a model whose attention sl.watch sees",
                got=type(self.model).__name__,
                hint="sl.watch(model) says what is not seen",
            )
        self.blocks = Blocks(self.model, names_of(self.model), [] if self.again else self.layers)
        self.head = LastLinear(not self.again and isinstance(self.target, Target) and self.target.reads_last)
        with torch.no_grad(), edit(self.model), self.blocks.recording(), self.head.recording(self.model):
            output = self.run()
            self.head.find(output)
            baseline = self.measure(output)
        if not self._close(self.graded.detach(), baseline):
            raise InputError(
                "two unedited runs differ",
                expected="a model that gives the same twice",
                got=f"{_round(self.graded)} and {_round(baseline)}",
                hint="model.eval(), or a seed set in run()",
            )
        self.baseline = baseline.double()

    def _close(self, one: Tensor, other: Tensor) -> bool:
        one, other = one.double(), other.double()
        near = max(_SAME, _ROUNDINGS * torch.finfo(self.graded.dtype).eps)
        return one.shape == other.shape and bool(((one - other).abs() <= near * other.abs().clamp_min(1.0)).all())

    def chosen(self, heads: Any) -> list[list[int]]:
        """The heads of each layer that are asked for."""
        assert self.probe is not None
        where = Where.of(heads=heads)
        where.check_names(self.probe.modules)
        beyond = [
            layer
            for layer in where.said or ()
            if isinstance(layer, int) and not -len(self.layers) <= layer < len(self.layers)
        ]
        if beyond:
            raise InputError(
                "there is no such layer", expected=f"0 to {len(self.layers) - 1}", got=beyond, hint="heads=[(0, 3)]"
            )
        return [where.chosen(place) or [] for place in self.probe.places(len(self.layers))]

    def batches(self, numbers: list[int]) -> Iterable[list[int]]:
        """Heads of a layer that run together: all of them, if they are short enough."""
        tokens = 1
        if not self.again:
            first = next(x for x in tree_leaves(self.inputs) if isinstance(x, Tensor))
            tokens = max(1, math.prod(first.shape[:2]))
        count = 1 if self.again else max(1, min(len(numbers), _TOGETHER // tokens))
        return [numbers[start : start + count] for start in range(0, len(numbers), count)]

    def edits(self, layer: int, some: list[int], by: Any) -> Edits:
        """Each of some heads replaced in its own copy of the batch; the first copy is unedited."""
        edits = Edits()
        for i, head in enumerate(some, start=1):
            where: dict[str, Any] = {"heads": [(self.layers[layer], head)]}
            if not self.again:
                where["examples"] = slice(i * self.batch, (i + 1) * self.batch)
            if isinstance(by, Seen):
                edits.patch(by, **where)
            else:
                edits.ablate(by, **where)
        return edits

    def changed(self, layer: int, some: list[int], by: Any) -> Tensor:
        """`[*batch, some heads]`: the target less what it is with each head replaced."""
        times = 1 if self.again else len(some) + 1
        edits = self.edits(layer, some, by)
        while True:
            with torch.no_grad(), ExitStack() as stack:
                skips = stack.enter_context(self.blocks.below(self.layers[layer], self.batch, times))
                narrow = stack.enter_context(self.head.alone())
                stack.enter_context(edit(self.model, edits))
                output = self.run(times)
            if self.again:
                return (self.baseline - self.measure(output).double())[..., None]
            found = [self.measure(_part(output, i, times, self.batch)).double() for i in range(times)]
            if self._close(found[0], self.baseline):
                return torch.stack([found[0] - one for one in found[1:]], -1)
            if not skips and not narrow:
                raise InputError(
                    "examples of one batch change each other",
                    expected="the unedited copy of the batch to give what it gave alone",
                    got=f"{_round(found[0])} instead of {_round(self.baseline)}",
                    hint="inputs as a function run() -> output: one run for each head",
                )
            self.blocks.forget()
            self.head.layer = None

    def first_order(self, table: Tensor, wanted: list[list[int]], by: Any) -> None:
        """The sum of g . (output - replacement) for each head, from the gradients of the first run."""
        assert self.probe is not None
        if not self.graded.requires_grad:
            return
        for layer, found in enumerate(self.probe.first_order(self.graded, by)):
            if found is None:
                continue
            numbers = wanted[layer]
            summed = found if self.baseline.dim() else found.sum(0)
            table[..., layer, numbers] = summed[..., numbers].to(table)


def _batch(inputs: Any) -> int:
    if not isinstance(inputs, Tensor | tuple | dict):
        raise InputTypeError(
            "this is nothing that a model can be called with",
            expected="a tensor, a tuple, a dict, or a function run() -> output",
            got=type(inputs).__name__,
            hint="sl.effects(model, {**tokenizer(text, return_tensors='pt')}, target)",
        )
    tensors = [x for x in tree_leaves(inputs) if isinstance(x, Tensor)]
    odd = [x for x in tree_leaves(inputs) if not isinstance(x, Tensor | bool | int | float | str | type(None))]
    if not tensors or tensors[0].dim() < 2 or odd:
        raise InputError(
            "the inputs cannot be repeated",
            expected="tensors with the batch as their first axis",
            got=f"a {type(odd[0]).__name__}"
            if odd
            else f"a tensor of shape {tuple(tensors[0].shape)}"
            if tensors
            else "no tensor",
            hint="ids[None] for one text; or a function run() -> output",
        )
    return int(tensors[0].shape[0])


def _part(output: Any, i: int, times: int, batch: int) -> Any:
    """The output of one copy of the batch."""

    def cut(x: Any) -> Any:
        if isinstance(x, Tensor) and x.dim() and x.shape[0] == times * batch:
            return x[i * batch : (i + 1) * batch]
        return x

    return tree_map(cut, output)


def _round(x: Tensor) -> Any:
    found = x.detach().double()
    return round(float(found), 4) if not found.dim() else [round(v, 4) for v in found.flatten().tolist()[:4]]
