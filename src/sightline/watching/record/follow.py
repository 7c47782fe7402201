"""Whether the steps of a generation belong together: they do while the cached keys are those that were seen.

Beam search moves sequences to other rows between steps, assisted decoding takes tokens back: `searching.py`. Nothing of
the model is asked: each key that was seen is remembered by one number, and compared when it comes again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sightline.errors import explain
from sightline.watching.intercept.caller import inside, names_inside
from sightline.watching.intercept.searches import ASSISTED, SEARCHES
from sightline.watching.record.image import find_grid, image_size
from sightline.watching.record.layer import Layer
from sightline.watching.record.runs import put_away
from sightline.watching.record.searching import CROPPED, OVER, Searching
from sightline.watching.record.slices import SLICED
from sightline.watching.record.windows import Windows

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from sightline.watching.intercept.listen import Listening
    from sightline.watching.intercept.looked import Looked
    from sightline.watching.record.deeper import Deeper
    from sightline.watching.record.folder import Writer
    from sightline.watching.record.gather import Gather
    from sightline.watching.seen import Seen
    from sightline.watching.tokens import Reader

APART = "its steps do not join"
DRAFTS = "the model drafts tokens for itself"


def search() -> str | None:
    """The search of transformers that is under way, if it does more than add tokens."""
    found = names_inside(SEARCHES.keys(), "transformers")
    return next((what for name, what in SEARCHES.items() if name in found), None) if found else None


@torch.no_grad()
def marks(k: Float[Tensor, "batch heads keys dim"]) -> Int[Tensor, "batch keys"]:
    """One number for each key, of all its bits: the same key has the same, whatever stands around it.

    >>> k = torch.randn(2, 3, 5, 8)
    >>> torch.equal(marks(k)[:, :4], marks(k[:, :, :4].clone()))
    True
    >>> torch.equal(marks(k), marks(k.flip(0)))
    False
    """
    size = k.element_size()
    # Several numbers are added up as one where they fill 8 bytes: their sums lie side by side.
    together = 8 // size if k.shape[-1] * size % 8 == 0 else 1
    if k.stride(-1) != 1 or any(step % together for step in (*k.stride()[:-1], k.storage_offset())):
        k = k.contiguous()
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size * together]
    return k.view(whole).sum((1, 3), dtype=torch.int64)


class Follow:
    """The marks of each layer's keys, and whether some have changed in this pass."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, Tensor]] = {}  # of each layer: its first key, and the marks from there on
        self.before: dict[str, tuple[int, Tensor]] = {}  # the same before this pass
        self.changed: list[Tensor] = []

    @staticmethod
    def marks(k: Tensor) -> Tensor:
        return marks(k)

    @staticmethod
    def pair(old: tuple[int, Tensor], new: tuple[int, Tensor]) -> tuple[Tensor, Tensor]:
        """The marks of the keys that both have, and of those that came after."""
        start = max(old[0], new[0])  # a window has let the first keys go
        return old[1][:, start - old[0] :], new[1][:, start - new[0] :]

    def step(self, name: str, k: Tensor, first_key: int, cross: bool) -> None:
        """Take in the keys of a call; what was there before is compared, and the answer is left for `moved`."""
        self.take(name, marks(k), first_key, cross)

    def take(self, name: str, new: Int[Tensor, "batch keys"], first_key: int, cross: bool) -> None:
        """Take in the marks of a call's keys."""
        changed = self.changes(name, new, first_key, cross)
        if changed is not None:
            self.changed.append(changed)
            self.before.setdefault(name, self.known[name])
        self.known[name] = first_key, new

    def changes(self, name: str, new: Int[Tensor, "batch keys"], first_key: int, cross: bool = False) -> Tensor | None:
        """Whether keys are not what they were; None if nothing is known of them."""
        if name not in self.known:
            return None
        old, again = self.pair(self.known[name], (first_key, new))
        if again.shape[1] < old.shape[1] or again.shape[0] != old.shape[0] or (cross and again.shape != old.shape):
            return torch.ones((), dtype=torch.bool, device=new.device)
        return (again[:, : old.shape[1]] != old).any()

    def moved(self) -> bool:
        """Whether keys changed since this was asked last; on a GPU it waits for the pass."""
        changed, self.changed = self.changed, []
        return bool(torch.stack([x.cpu() for x in changed]).any()) if changed else False

    def restart(self) -> None:
        self.known, self.before, self.changed = {}, {}, []


class Following(Searching):
    """The part of a watch that says whether its run is still one, and what is left if not."""

    model: nn.Module
    names: dict[int, str]
    passes: int
    continues: bool
    seen: Seen
    reader: Reader
    ends: dict[str, tuple[int, int]]
    counts: dict[str, int]
    writer: Writer | None
    gather: Gather
    listening: Listening
    end_slices: Callable[[], list[str]]
    warned: bool
    runs: int | None
    deeper: Deeper

    def begin_following(self) -> None:
        self.follow, self.search, self.windows = Follow(), search(), Windows()
        self.lost: str | None = None  # why the run is not followed any more
        self.said: set[str] = set()
        self.read: Tensor | None = None  # the ids when this pass began
        self.read_memory: Tensor | None = None  # and those of the encoder
        self.tokens: dict[int, int] = {}  # how many they were, for each pass
        # The image before this pass, and the lengths of what was put together with it.
        self.pictured: tuple[tuple[int, int, int] | None, list[tuple[int, ...]]] = None, []
        self.begin_search()

    def _restart(self) -> None:
        """A new input: its sights take the place of those before."""
        grown = self.reader.grows()
        if self.runs != 1 and not grown and not self.search:
            self.gather.flush()
            self.put_in_order()
            self._note_grid(*self.pictured, self.read)
            put_away(self.seen, self.runs, self.read, self.read_memory, self.writer)
        elif self.seen.layers and not self.warned and not grown and not self.search:
            self.warned = True
            warnings.warn(
                explain(
                    "a second run began inside one sl.watch block",
                    expected="one forward pass or one generation in a block",
                    got="another input: its sights take the place of the first one's",
                    hint='one block for each run, or sl.watch(model, runs="all")',
                ),
                UserWarning,
                stacklevel=2,
            )
        self.gather.forget()
        self.deeper.restart()
        self.seen._layers.clear()
        self._follow_anew()
        self.seen.meta["runs"] += 1
        self.ends.clear()
        self.reader.restart()

    def _follow_pass(self) -> None:
        self.search, self.read, self.read_memory = search(), self.reader.ids, self.reader.memory
        if self.search == ASSISTED and self._followed() and inside("get_candidates", "transformers"):
            self._lose(max(layer.parts[-1].turn for layer in self._followed()), DRAFTS)
        self.tokens[self.passes] = 0 if self.read is None else self.read.shape[-1]
        if self.listening.mode.joint is not None:
            self.listening.mode.joint.found.clear()

    def _follow_anew(self) -> None:
        """A new run: what was said of the one before is of no interest."""
        for name in ("joint", "grid", "patches"):
            self.seen.meta.pop(name, None)
        for name in self.said:
            self.seen._unseen.pop(name, None)
        self.said.clear()
        self.lost = None
        self.follow.restart()
        self.begin_search()

    def _is_followed(self, full: str, batch: tuple[int, ...]) -> bool:
        layer = self.seen._layers.get(full)
        if self.lost is None and isinstance(layer, Layer) and layer.parts[-1].call.sizes.batch != batch:
            self.resized = True
        if self.lost is not None:
            self._say_unseen(full, self.lost)
        return full not in self.said

    def is_step(self, name: str, keys: int) -> bool:
        """Whether one query over so many keys may be a step of a generation, and not one that asks all of them."""
        calls = self.counts.get(name, 0) + 1
        turn, end = self.ends.get(name if calls == 1 else f"{name}#{calls}", (self.passes, 0))
        return self.reader.one or (turn != self.passes and end == keys - 1)

    def _piece_of(self, name: str, looked: Looked) -> str | None:
        """The layer that a call is the next window of, in this pass; None if it is a call by itself."""
        before = self.windows.goes_on(name, self.passes, looked.call, looked.first_query)
        if before is None or before.full not in self.seen._layers:
            return None
        self.ends[before.full] = (self.passes, before.end_key + looked.call.sizes.keys)
        return before.full

    def follow_image(self, args: tuple, kwargs: dict) -> None:
        """A pass begins: if it has an image, what was put together before is of another one."""
        joint = self.listening.mode.joint
        self.pictured = self.reader.image, self._put_together_so_far()
        if joint is not None and image_size(args, kwargs) is not None:
            joint.lengths.clear()

    def _put_together_so_far(self) -> list[tuple[int, ...]]:
        joint = self.listening.mode.joint
        return [] if joint is None else list(joint.lengths)

    def _note_grid(
        self, image: tuple[int, int, int] | None, lengths: list[tuple[int, ...]], read: Tensor | None
    ) -> None:
        """A run is over: the patches of an image that the model was given, if its tokens are these."""
        layers = sorted(self._followed(), key=lambda layer: layer.kind != "self")
        if not layers:
            return
        ids = None if read is None else read.tolist()
        # Beside a text that is no tokens, the image begins where it is known to.
        start, stop = self.seen.meta.get("joint", {}).get(layers[0].name, {}).get("image", (0, layers[0].keys))
        grid, starts = find_grid(self.model, image, stop - start, ids, lengths)
        if grid is not None:
            self.seen.meta["grid"] = list(grid._replace(first=start + grid.first))
            if starts is not None:
                self.seen.meta["patches"] = starts

    def _note_joint(self, full: str, queries: int, keys: int) -> None:
        """A new layer: where text and image lie in it, if it attends to both."""
        joint = self.listening.mode.joint
        parts = None if joint is None else joint.parts(queries, keys)
        if parts is not None:
            self.seen.meta["joint"] = self.seen.meta.get("joint", {}) | {full: parts}

    def module_of(self, name: str) -> nn.Module | None:
        """The module of this path."""
        return next((module for module in self.model.modules() if self.names.get(id(module)) == name), None)

    def mark_by_hand(self, name: str) -> None:
        """What was seen of a module is attention that no function was called for."""
        for layer in self._followed():
            layer.by_hand |= layer.name.split("#")[0] == name

    def _joins(self, full: str, first_query: int, end_key: int) -> None:
        """Whether a call goes on where the passes before ended, takes something back, or is of another run."""
        if 0 < first_query == end_key:
            if self.over:
                self._lose(self.passes, OVER)
            self.continues = self.lost is None
        elif self.continues:
            if first_query > 0:
                self._say_unseen(full, APART)
        elif self.search == ASSISTED and 0 < first_query < end_key and self.crop(end_key - first_query):
            self.continues = True
        elif first_query > 0 and self.search:
            self._lose(self._turn_beyond(first_query), CROPPED if first_query < end_key else APART)
        elif 0 < first_query < end_key and self._has_parts_before(turn := self._turn_beyond(first_query)):
            self._lose(turn, CROPPED)
        else:
            self._restart()

    def _followed(self) -> list[Layer]:
        return [layer for layer in self.seen._layers.values() if isinstance(layer, Layer)]

    def _turn_beyond(self, key: int) -> int:
        """The first pass that reached beyond a key: it is in doubt if the run goes on from there."""
        parts = [part for layer in self._followed() if layer.kind == "self" for part in layer.parts]
        return min([self.passes, *(part.turn for part in parts if part.end_key > key)])

    def _has_parts_before(self, turn: int) -> bool:
        return any(layer.parts[0].turn < turn for layer in self._followed())

    def _start_of(self, turn: int) -> int:
        """The pass from which on all that was accounted for together with this one goes: a sum is not taken apart."""
        parts = [part for layer in self._followed() for part in layer.parts]
        while (first := min((part.turn for part in parts if part.turn < turn <= part.last), default=turn)) < turn:
            turn = first
        return turn

    def _settle(self, rest: bool = False) -> None:
        """A pass is over: were the keys in its caches those that had been seen? With `rest` no other begins yet."""
        self.gather.end_pass(rest)
        for name in self.end_slices():
            self.seen._unseen.setdefault(name, SLICED)
        self.settle_rows()

    def _lose(self, turn: int, why: str) -> None:
        """Stop following the run: what was seen before this pass still holds and stays, the rest goes."""
        self.lost = why
        turn = self._start_of(turn)
        self.reader.back(self.read, self.tokens.get(turn, 0))
        for layer in self._followed():
            if layer.parts[-1].last >= turn:
                if not layer.back(turn):
                    self._drop(layer.name)
                self._say_unseen(layer.name, why)

    def _drop(self, name: str) -> None:
        del self.seen._layers[name]
        if self.writer is not None:
            self.writer.drop(name)

    def _say_unseen(self, name: str, why: str) -> None:
        layer = self.seen._layers.get(name)
        left = f"only its first {layer.queries} queries" if isinstance(layer, Layer) else "nothing"
        self.said.add(name)
        self.seen._unseen.setdefault(name, f"{f'{self.search}: ' if self.search else ''}{why}; {left} can be seen")
