"""Where a pass of the model begins and ends: hooks on its modules, of which the outermost one that is called counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sightline.watching.intercept import numberless, scripted
from sightline.watching.intercept.caller import inner
from sightline.watching.intercept.fast_path import is_plain_layer
from sightline.watching.intercept.heads import check_gradients

if TYPE_CHECKING:
    from sightline.watching.intercept.listen import Listening
    from sightline.watching.intercept.mask_tables import Tables
    from sightline.watching.record.deeper import Deeper
    from sightline.watching.record.folder import Writer
    from sightline.watching.record.repeated import Repeats
    from sightline.watching.seen import Seen
    from sightline.watching.tokens import Reader
    from sightline.watching.watcher import Watcher


class Passing:
    """The part of a watch that knows when a pass begins, and when it is over."""

    model: nn.Module
    names: dict[int, str]
    deeper: Deeper
    influence: Any
    encoder: nn.Module | None
    decoder: nn.Module | None
    seen: Seen
    reader: Reader
    tables: Tables
    listening: Listening
    thread: int
    hookless: set[str]  # modules that cannot say when a pass begins in them
    counts: dict[str, int]
    continues: bool
    repeats: tuple[Tensor, tuple[int, int], Repeats] | None
    moved: dict[int, tuple[Any, Any]]
    own: dict[int, tuple[Any, Any]]
    writer: Writer | None
    follow_image: Callable[[tuple, dict], None]
    _follow_pass: Callable[[], None]
    _settle: Callable[..., None]

    def begin_passes(self) -> None:
        self.passes = self.depth = self.again = 0
        self.outermost: nn.Module | None = None  # the module that a pass began in
        self.behind: RemovableHandle | None = None  # and the hook that says when it is done
        self.inner: list[tuple[nn.Module, int]] = []  # modules that another pass may begin in, and their hooks
        self.hushed: list[tuple[nn.Module, int]] = []  # those of them whose hooks are taken off while a pass is on

    def hook(self, stack: ExitStack, modules: list[nn.Module]) -> list[tuple[nn.Module, int]]:
        """Hear of the modules that a pass may begin in: the model, and those of these that hold others.

        Torch's own encoder layers are left out, with all that is in them: a hook would turn their fast path off. So is
        what torch.jit made, which takes none.
        """
        root = inner(self.model)
        plain = {id(part) for module in modules if is_plain_layer(module) for part in module.modules()}
        self.hookless |= {self.names[part] for part in plain}
        open_to_hooks = [one for one in modules if id(one) not in plain and not scripted.is_scripted(one)]
        if self.deeper.norms is not None:
            self.deeper.norms.hook(stack, open_to_hooks)
        hooks: list[tuple[nn.Module, int]] = []
        stack.callback(_take_off, hooks)
        for module in open_to_hooks:
            if module is root or module._modules:
                hooks.append((module, _put_on(module, self._before, hooks[0][1] if hooks else None)))
                if self.influence is not None:  # what runs again for its gradients is left by every module
                    stack.callback(module.register_forward_hook(self.leaves, always_call=True).remove)
        return hooks

    def _hush(self) -> None:
        """A pass is on: no other begins in it, so the modules inside need not tell that they begin.

        A module without hooks is called without a detour. One that has others' hooks keeps ours in its place.
        """
        told = (self.outermost, self.encoder, self.decoder)
        for module, key in self.inner:
            hooks = module._forward_pre_hooks
            if len(hooks) == 1 and module not in told and hooks.pop(key, None) is not None:
                self.hushed.append((module, key))

    def _unhush(self) -> None:
        for module, key in self.hushed:
            module._forward_pre_hooks[key] = self._before
        self.hushed.clear()

    def _before(self, module: nn.Module, args: tuple, kwargs: dict | None = None) -> None:
        """A module begins. Only the outermost one says when it is done: a hook behind each would take twice as long.

        That hook is there before anything is asked of the pass, so that one that is refused is over, too. A hook that
        is taken away while another thread is about to call it is called without keywords.
        """
        if kwargs is None or self._passes_by(module):
            return
        if not self.depth and self.influence is None and threading.get_ident() == self.thread:
            self.behind = module.register_forward_hook(self.leaves, always_call=True)
            self.outermost = module
            self._hush()
        self.enters(module, args, kwargs)

    def _passes_by(self, module: nn.Module) -> bool:
        """Whether a module that begins inside a pass is none of which anything is asked: most of them are."""
        if not self.depth or self.influence is not None or threading.get_ident() != self.thread:
            return False
        if module is self.outermost or module is self.encoder or module is self.decoder:
            return False
        return numberless.why_not() is None

    def enters(self, module: nn.Module, args: tuple, kwargs: dict) -> bool:
        """A module begins; whether its end is to be told by `leaves`."""
        if threading.get_ident() != self.thread:
            return False
        if self.influence is not None and self._runs_again():
            return True
        outermost = not self.depth
        if outermost:
            self.outermost = module
        told = module is self.outermost or self.influence is not None
        self.depth += told
        if outermost:
            self._begins()
        if numberless.why_not() is not None:
            self.listening.wakes(cast("Watcher", self))
            self.reader.skip()
            return told
        with torch._C.DisableTorchFunction():  # what is asked here is of no interest to any mode
            if outermost:
                self.follow_image(args, kwargs)
            if module is self.encoder:
                self.reader.encodes(args, kwargs)
            elif module is self.decoder or (outermost and self.decoder is None):
                self.reader.begins(args, kwargs)
        if outermost and self.tables.changing:
            self.listening.wakes(cast("Watcher", self))
        elif outermost:
            self.listening.begins(cast("Watcher", self), module, args, kwargs)
        return told

    def _runs_again(self) -> bool:
        """Whether a reentrant checkpoint runs a module again for its gradients: modes are off then, and this one is on.

        Otherwise it must be a run that has gradients, or will have.
        """
        if self.influence is not None and self.influence.recomputes and torch._C._current_graph_task_id() != -1:
            if not self.again:
                self.listening.mode.__enter__()
            self.again += 1
            return True
        if not self.depth:
            check_gradients()
        return False

    def leaves(self, *_: object) -> None:
        if threading.get_ident() == self.thread and self.again:
            self.again -= 1
            if not self.again:
                self.listening.mode.__exit__(None, None, None)
        elif threading.get_ident() == self.thread:
            self.depth = max(self.depth - 1, 0)
            if not self.depth:
                self._unhook()
                self._unhush()
                self.listening.ends(self.seen, step=self.reader.one and not self.hookless)
                self._settle(rest=True)
                self.deeper.settle()

    def _unhook(self) -> None:
        if self.behind is not None:
            self.behind.remove()
        self.behind = self.outermost = None

    def _begins(self) -> None:
        """A pass begins: somebody outside the model calls it, or a part of it."""
        self.listening.ends_if_on(self.seen)
        self._settle()
        self.passes += 1
        self._follow_pass()
        self.counts = {}
        self.continues = False
        self.repeats = None
        self.moved, self.own = {}, {}
        if self.writer is not None:
            self.writer.maybe_write()


def _put_on(module: nn.Module, hook: Callable, key: int | None) -> int:
    """Put a hook before a module, under the number that it has at another module, and say which.

    Torch gives a number that no other hook has to the first one; for all of them that would take four times as long.
    """
    if key is None:
        return module.register_forward_pre_hook(hook, with_kwargs=True).id
    module._forward_pre_hooks[key] = hook
    module._forward_pre_hooks_with_kwargs[key] = True
    return key


def _take_off(hooks: list[tuple[nn.Module, int]]) -> None:
    for module, key in hooks:
        module._forward_pre_hooks.pop(key, None)
        module._forward_pre_hooks_with_kwargs.pop(key, None)
