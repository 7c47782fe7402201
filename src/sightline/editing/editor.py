"""One `sl.edit` block: it hears of attention as a watch does, and gives the model another output."""

from __future__ import annotations

import threading
import warnings
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sightline import caches
from sightline.editing.apply import apply, real_queries
from sightline.editing.edit_mode import EditMode
from sightline.editing.edits import Edit, Edits
from sightline.editing.place import Place
from sightline.editing.plan import acts_in, check_apart
from sightline.editing.refusals import Refusing, check_by_hand, in_checkpoint
from sightline.errors import InputError, explain
from sightline.watching.intercept import active, compiled, scripted, unseen
from sightline.watching.intercept import transformers as hf
from sightline.watching.intercept.caller import inner, inside
from sightline.watching.intercept.fast_path import is_plain_layer
from sightline.watching.intercept.looked import Attended, Edited
from sightline.watching.intercept.mask_tables import Tables
from sightline.watching.intercept.torch_calls import is_cross
from sightline.watching.tokens import find_ids, is_one

if TYPE_CHECKING:
    from sightline.watching.intercept.looked import Looked

# How many layers a model has, as a pass of it showed: for those that are counted from the end.
_counts: WeakKeyDictionary[nn.Module, int] = caches.held("editing.layers", WeakKeyDictionary())


class Editor:
    """Between entering and leaving the block: among the watches of its thread, with the right to change."""

    edits = True  # what the handlers ask
    listens = False  # to what the edits of all blocks have made of a call
    compact = lenient = False
    writer = None

    def __init__(self, model: nn.Module, names: dict[int, str], edits: Edits) -> None:
        self.model, self.names, self.list = model, names, edits
        self.modules = list(names.values())
        self.tables = Tables()
        self.listening = SimpleNamespace(always=True)
        self.seen = SimpleNamespace(_unseen=Refusing(self), _layers={})
        self.order: dict[str, int] = {}
        self.counts: dict[str, int] = {}  # calls of each layer in this pass
        self.ends: dict[str, tuple[int, int]] = {}  # of each call: where the prompt ended, and its keys
        self.reached: dict[str, int] = {}  # how far a layer's queries have come
        self.at: int | None = None  # where the queries of this pass begin, from its self-attention
        self.real: Tensor | None = None  # which of them are not padding
        self.means: dict[str, Tensor] = {}
        self.acted: set[int] = set()  # edits that touched something
        self.recomputing = self.recomputed = 0  # calls inside a checkpoint, and those that ran again
        self.ran: list[list[int]] = []  # the edits of calls in checkpoints that have not run again
        self.held: list[Edit] = []
        self.depth = self.thread = 0
        parts = inner(model).modules()
        self.crosses = [names[id(part)] for part in parts if id(part) in names and is_cross(names[id(part)], part)]
        self.counted: int | None = None  # how many layers there were when one was counted from the end
        self.one = False  # whether this pass was given one position
        self.batch: int | None = None  # and how many members, where that is sure
        self.stack = ExitStack()
        self.used = False

    def __enter__(self) -> Edits:
        if self.used:
            raise InputError(
                "an edit is for one block",
                expected="a new one for every block",
                got="the same once more",
                hint="with sl.edit(model, edits) as edits: …",
            )
        self.used, self.thread = True, threading.get_ident()
        for edit in self.list:
            self.check(edit)
        with ExitStack() as stack:
            stack.enter_context(active.UNCOMPILED)
            stack.enter_context(hf.INTERFACE)
            stack.enter_context(active.BLIND)
            # What a checkpoint runs again has to run in this thread, to be edited again.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            base = inner(self.model)
            every = list(base.modules())
            regions = compiled.find(every if base is self.model else list(self.model.modules()))
            stack.enter_context(compiled.standing_in(regions))
            inside = {id(part) for region in regions for part in region.parts()}
            self.hook(stack, [module for module in every if id(module) not in inside])
            scripted.listen(stack, every, self._scripted)
            active.push(self)  # type: ignore[arg-type]
            stack.callback(active.drop, self)  # type: ignore[arg-type]
            stack.enter_context(EditMode(self.model.buffers()))
            self.list._check = self.check
            stack.callback(setattr, self.list, "_check", None)
            self.stack = stack.pop_all()
        return self.list

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.stack.close()
        self.tables.clear()
        self.means.clear()
        if kind is None:
            self._say_what_was_idle()

    def _say_what_was_idle(self) -> None:
        idle = [edit for edit in self.list if id(edit) not in self.acted]
        if idle and self.order:
            few = "; ".join(map(repr, idle[:3])) + (" …" if len(idle) > 3 else "")
            warnings.warn(
                explain(
                    "an edit has changed nothing",
                    expected=f"layers among the {len(self.order)} that ran: {', '.join(list(self.order)[:6])}",
                    got=few,
                    hint="layers are counted in the order in which they run",
                ),
                UserWarning,
                stacklevel=3,
            )
        if self.recomputing > self.recomputed:
            warnings.warn(
                explain(
                    "edited layers are checkpointed, and were not run again inside the block",
                    expected="backward() inside the block, where what runs again is edited again",
                    got=f"{self.recomputing} edited calls in checkpoints, {self.recomputed} of them run again",
                    hint="call backward() before the block is left",
                ),
                UserWarning,
                stacklevel=3,
            )

    def check(self, edit: Edit) -> None:
        """Refuse an edit that speaks of modules that are not there."""
        edit.where.check_names(self.modules)

    # What happens in the model.

    def hook(self, stack: ExitStack, modules: list[nn.Module]) -> None:
        """Hear of the modules that a pass may begin in, as a watch does."""
        root = inner(self.model)
        plain = {id(part) for module in modules if is_plain_layer(module) for part in module.modules()}
        for module in modules:
            if id(module) in plain or scripted.is_scripted(module):
                continue
            if module is root or module._modules:
                stack.callback(module.register_forward_pre_hook(self.enters, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(self.leaves, always_call=True).remove)

    def enters(self, _: nn.Module, args: tuple, kwargs: dict | None = None) -> None:
        if threading.get_ident() != self.thread or torch._C._current_graph_task_id() != -1 or kwargs is None:
            return  # without keywords it is taken away while another thread is about to call it
        self.depth += 1
        if self.depth == 1:
            self.counts, self.at, self.real = {}, None, None
            ids = find_ids(args, kwargs)
            self.one, self.batch = is_one(args, kwargs, ids), _members(args, kwargs, ids)

    def leaves(self, module: nn.Module, *_: object) -> None:
        if threading.get_ident() == self.thread and torch._C._current_graph_task_id() == -1:
            self.depth = max(self.depth - 1, 0)
            if not self.depth and self.order:
                # A part that runs by itself, an encoder say, does not show them all.
                whole = module is inner(self.model)
                _counts[self.model] = len(self.order) if whole else max(_counts.get(self.model, 0), len(self.order))

    def _scripted(self, module: nn.Module) -> None:
        if threading.get_ident() == self.thread:
            unseen.miss(self, self.names[id(module)], scripted.SCRIPTED)  # type: ignore[arg-type]

    def name_of(self, module: nn.Module) -> str | None:
        return self.names.get(id(module))

    def wants(self, name: str) -> bool:
        if name not in self.order:
            self.order[name] = len(self.order)
        return self._asks_padding() or any(
            edit.where.may_change(name, self.modules, self.order[name]) for edit in self.list
        )

    def _asks_padding(self) -> bool:
        """Whether a mean is over queries of which only other layers know which are padding: self-attention's masks."""
        return any(
            edit.options.get("by") == "mean" and any(edit.where.may_change(name, self.modules) for name in self.crosses)
            for edit in self.list
            if edit.kind == "ablate" and isinstance(edit.options["by"], str) and self.crosses
        )

    def changes(self, module: object) -> bool:
        """Whether a module, or something in it, may be edited."""
        if not isinstance(module, nn.Module) or id(module) not in self.names or not len(self.list):
            return False
        names = [self.names[id(part)] for part in module.modules() if id(part) in self.names]
        return any(edit.where.may_change(name, self.modules) for edit in self.list for name in names)

    def takes_apart(self, module: nn.Module, code: Any) -> None:
        """A compiled module is to run uncompiled."""
        name = self.names[id(module)]
        if compiled.is_fullgraph(code):
            raise InputError(
                f"{name} is compiled with fullgraph=True and cannot be edited",
                expected="compiled code that may run in parts",
                got="fullgraph=True",
                hint="compile it without fullgraph, or leave it out: layers=…",
            )
        if name not in self.list.uncompiled:
            self.list.uncompiled.append(name)

    def edit(self, name: str, attended: Attended, editing: list[tuple[Editor, str]]) -> Edited:
        """A call as the edits of all blocks have it, each with its own names and numbers of layers."""
        acts = []
        for editor, called in editing:
            mine = acts_in(editor.list, attended.call, editor._place(called, attended))
            editor.acted |= {id(act.edit) for act in mine}
            acts += mine
        check_apart(acts)
        if attended.by_hand and acts:
            check_by_hand(name, acts, attended.by_hand)
        edits = [act.edit for act in acts]
        if not acts:
            return Edited(attended.given, attended.weights)
        again = torch._C._current_graph_task_id() != -1
        if in_checkpoint():
            self._check_again(name, [edit for editor, _ in editing for edit in editor.list], again)
            self.recomputed += again
            self.recomputing += not again
            if any(isinstance(layer, str) and "#" in layer for edit in edits for layer in edit.where.said or ()):
                raise InputError(
                    f"{name} is checkpointed, and its calls cannot be told apart when they run again",
                    expected="an edit of all its calls",
                    got="; ".join(map(repr, edits)),
                    hint=f'layers="{name}"',
                )
        return apply(acts, attended, self.real)

    def _check_again(self, name: str, now: list[Edit], again: bool) -> None:
        """Refuse to run a checkpoint again with other edits than it ran with: its gradients would be of neither."""
        if not again:
            if self.recomputing == self.recomputed:
                self.ran = []  # all that ran before has run again
            self.ran.append([id(edit) for edit in now])
            self.held += now  # so that no other edit has their identity
        elif any(was != [id(edit) for edit in now] for was in self.ran) or not self.ran:
            raise InputError(
                f"{name} is checkpointed, and runs again with other edits than it ran with",
                expected="the same edits until backward() has been called",
                got="; ".join(map(repr, now)),
                hint="call backward() before edits are added or cleared",
            )

    def _place(self, name: str, attended: Attended) -> Place:
        """Where a call stands among all columns."""
        s, again = attended.call.sizes, torch._C._current_graph_task_id() != -1
        if not again:
            self.counts[name] = self.counts.get(name, 0) + 1
        number = self.counts.get(name, 1)
        full = f"{name}#{number}"
        cross = attended.first_query < 0
        first, first_key = attended.first_query, attended.first_key
        if cross:
            first = self.at if self.at is not None else 0
        end = first_key + s.keys
        if cross or first == 0 or full not in self.ends:
            query_end = first + s.queries
            if cross and full in self.ends and first:
                query_end = self.ends[full][0]
            if cross or first == 0 or not again:
                self.ends[full] = (query_end if cross else end, end)
        elif not again and first != self.reached.get(full, first):
            self._refuse_if_placed(name, first, self.reached[full])
        elif not again:
            self._refuse_if_counted(name, first, s.queries)
        if not again:
            self.reached[full] = first + s.queries
        query_end, key_end = self.ends[full]
        place = Place(
            name,
            self.order.setdefault(name, len(self.order)),
            number,
            self._layers(),
            self.modules,
            s.batch[0],
            s.heads,
            s.queries,
            s.keys,
            first,
            first_key,
            query_end,
            key_end,
            cross,
            self.batch,
            self.means,
        )
        if not cross:
            self.at, self.real = first, real_queries(attended, place)
        elif self.real is not None and self.real.shape != (s.batch[0], s.queries):
            self.real = None
        return place

    def _refuse_if_placed(self, name: str, first: int, expected: int) -> None:
        """A cache that lets tokens go: its columns are no longer those of the text."""
        if any(edit.where.queries is not None or edit.options.get("keys") is not None for edit in self.list):
            raise InputError(
                f"the cache of {name} no longer holds every token at its place",
                expected=f"the next query at column {expected}",
                got=f"one at column {first}",
                hint="edits without queries= and keys=, or a cache that keeps all tokens",
            )

    def _refuse_if_counted(self, name: str, first: int, queries: int) -> None:
        """A prompt that goes on: where it ends, and what its mean is, was not known when it began."""
        counted = [edit for edit in self.list if edit.from_end and edit.where.may_change(name, self.modules)]
        if not counted:
            return
        # A guess of several tokens is a step too; and the last piece of a prompt may be of one.
        goes_on = queries > 1 and not inside("_assisted_decoding", "transformers")
        if goes_on or inside("_prefill", "transformers"):
            raise InputError(
                f"the prompt of {name} comes in pieces, and where it ends is not known while it begins",
                expected="columns that count from the front, and a mean that is given",
                got=f"{counted[0]!r}, and more of the prompt at column {first}",
                hint="queries=11 in place of queries=-1, by=seen.mean_output(); or the prompt in one piece",
            )

    def _layers(self) -> int | None:
        """How many layers there are; refused if it turns out that there are others than were counted before."""
        found = _counts.get(self.model)
        if not any(isinstance(layer, int) and layer < 0 for edit in self.list for layer in edit.where.said or ()):
            return found
        if self.counted is not None and found != self.counted:
            raise InputError(
                "layers are counted from the end, and there are others than there were",
                expected=f"{self.counted} layers, as at the first call in this block",
                got=found,
                hint="an index from the front, or a name",
            )
        self.counted = found
        return found

    # What else is asked of a watch.

    def layers(self, name: str, index: int, count: int) -> bool:
        """Whether somebody wants to know that a layer attends by hand: who edits it."""
        return any(edit.where.may_change(name, self.modules) for edit in self.list)

    def goes_on(self, *_: object) -> bool:
        return False

    def is_step(self, name: str, keys: int) -> bool:
        """Whether one query may be a step of a generation; one that asks all of the others is none."""
        return self.one or self.reached.get(f"{name}#{self.counts.get(name, 0) + 1}") == keys - 1

    def note(self, name: str, first_query: int, end_key: int) -> None:
        """A call that is not edited: its queries stand where those of the others do, and end with its keys."""
        if first_query < 0:
            return
        self.at = first_query
        if torch._C._current_graph_task_id() == -1:
            self.counts[name] = self.counts.get(name, 0) + 1
            self.reached[f"{name}#{self.counts[name]}"] = end_key

    def record(self, module: nn.Module, name: str, looked: Looked) -> None:
        """Who edits keeps no account."""

    def mark_by_hand(self, name: str) -> None:
        """Nor is there anything to take back."""

    def module_of(self, name: str) -> nn.Module | None:
        """The module of this path."""
        return next((part for part in inner(self.model).modules() if self.names.get(id(part)) == name), None)


def _members(args: tuple, kwargs: dict, ids: Tensor | None) -> int | None:
    """How many texts or images a model is given; None if it is not sure which axis they are."""
    images = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 4]
    return ids.shape[0] if ids is not None else images[0].shape[0] if images else None
