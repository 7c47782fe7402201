"""transformers' models: their attention functions and masks are looked up through two tables, which are asked here.

While a watch is on, a look-up by a thread that watches gives a function that tells the watch. Configurations, models
and the tables themselves stay as they are; other threads get what they always got. After the last watch the look-up is
transformers' own again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sightline import caches
from sightline.backends.call import Call
from sightline.errors import InputError
from sightline.masks import Band, Mask, causal, padding
from sightline.watching.intercept import active, traced, verify
from sightline.watching.intercept.changed import change, tell
from sightline.watching.intercept.flex import read_block_mask
from sightline.watching.intercept.function_mode import Audience, audience
from sightline.watching.intercept.heads import Heads, check, time_first
from sightline.watching.intercept.looked import Looked
from sightline.watching.intercept.lse_capture import catching, caught
from sightline.watching.intercept.mask_functions import masking
from sightline.watching.intercept.mask_tables import read
from sightline.watching.intercept.torch_calls import aligned, compact, is_cross, look, position
from sightline.watching.intercept.transformers_masks import LazyMask

if TYPE_CHECKING:
    from sightline.backends.call import BiasLike
    from sightline.watching.watcher import Watcher


class Interface(active.Shared):
    """The look-up of attention functions and mask functions, while somebody watches."""

    def install(self, stack: ExitStack) -> None:
        modeling, masking = (sys.modules.get(f"transformers.{name}") for name in ("modeling_utils", "masking_utils"))
        if modeling is None or masking is None:
            return  # no model of transformers without these
        functions, masks = modeling.AttentionInterface, masking.AttentionMaskInterface
        lazy = frozenset(getattr(masking, name, None) for name in ("sdpa_mask", "eager_mask")) - {None}
        find, get = getattr(functions, "get_interface", None), functions.__getitem__
        find_watched, get_watched, get_mask_watched = _standing_in(find, get, masks.__getitem__, lazy)
        for owner, attribute, function in (
            (functions, "get_interface", find_watched),
            (functions, "__getitem__", get_watched),
            (masks, "__getitem__", get_mask_watched),
        ):
            if hasattr(owner, attribute):
                _put(stack, owner, attribute, function)


@caches.memo("watching.standing_in", 8)
def _standing_in(find: Any, get: Any, get_mask: Any, lazy: frozenset) -> tuple[Callable, Callable, Callable]:
    """What stands in for the look-ups: the same functions every time, so that what was compiled with them stays."""

    def find_watched(self: Any, name: str, default: Callable) -> Callable:
        found: Callable = find(self, name, default)
        return found if type(found) is Attending else _attending(found, name)  # it asks `__getitem__` itself

    @functools.wraps(get)
    def get_watched(self: Any, name: str) -> Callable:
        return _attending(get(self, name), name)

    @functools.wraps(get_mask)
    def get_mask_watched(self: Any, name: str) -> Callable:
        return masking(get_mask(self, name), lazy)

    return find_watched, get_watched, get_mask_watched


INTERFACE = Interface()


def _put(stack: ExitStack, owner: type, attribute: str, function: Callable) -> None:
    own = attribute in vars(owner)
    before = vars(owner).get(attribute)
    if attribute == "__getitem__":
        _look_up_always(getattr(owner, attribute))
        _look_up_always(function)
    setattr(owner, attribute, function)
    stack.callback(setattr, owner, attribute, before) if own else stack.callback(delattr, owner, attribute)


def _look_up_always(function: Any) -> None:
    """Have Python find this function in its class at every call.

    Python 3.13 remembers a class's `__getitem__` for all that call it, without a reference, and forgets it when the
    class changes; but only the first thousand times. Then it would go on with the one before, in a watch or after it,
    even freed. A function that was assigned its code, be it the same, is not remembered, and is otherwise as it was.
    """
    if sys.version_info[:2] == (3, 13) and isinstance(function, FunctionType):
        function.__code__ = function.__code__


def halves(model: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
    """The encoder and the decoder of a transformers model that has both; `generate` runs the encoder by itself."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return None, None
    found = [getattr(model, name, None) for name in ("get_encoder", "get_decoder")]
    both = [get() if callable(get) else None for get in found]
    encoder, decoder = (half if isinstance(half, nn.Module) and half is not model else None for half in both)
    return encoder, decoder


class Attending:
    """An attention function of transformers, and what a watch makes of its calls."""

    def __init__(self, function: Callable, name: str) -> None:
        self.function, self.name = function, name
        self._is_sdpa = getattr(function, "__name__", "") == "sdpa_attention_forward" and verify.is_known(function)
        self._catching = catching(function) if self._is_sdpa and isinstance(function, FunctionType) else None

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        plain = kwargs.keys().isdisjoint(_MORE) or all(kwargs.get(name) is None for name in _MORE)
        if attention_mask is None and not args and self._catching is not None and plain:
            watcher = active.sleeper()
            if watcher is not None and (name := watcher.takes(module, query.shape[-2] == 1)) is not None:
                return self._unmasked(watcher, name, module, (query, key, value), kwargs)
        who = audience(module, given=query)
        lazy = attention_mask if isinstance(attention_mask, LazyMask) else None
        if who is None:
            if lazy is not None and (before := audience(module, again=True)) is not None and self._compact(before):
                # What checkpointing runs again for its gradients is what it ran before.
                scale, dropout = kwargs.get("scaling"), kwargs.get("dropout", 0.0)
                again = compact(None, query, key, value, lazy, scale, dropout, **_options(kwargs))
                return again.transpose(1, 2).contiguous(), None
            mask = attention_mask if lazy is None else lazy.written()
            return self.function(module, query, key, value, mask, *args, **kwargs)
        if not who.wanting:
            keys, first = key.shape[-2], None
            known = who.tables.rule(attention_mask, query, key) if lazy is None else lazy
            if known is not None:
                keys, first = known.span.first_key + known.span.keys, known.span.first_query
            who.note(position(who, query.shape[-2], keys, None, first), keys)
            with active.quiet(compiled=self._is_flex):
                mask = attention_mask if lazy is None else lazy.written()
                return self.function(module, query, key, value, mask, *args, **kwargs)
        options = _options(kwargs)
        if self._compact(who) and (lazy is not None or (self.name == "eager" and attention_mask is None)):
            out = compact(who, query, key, value, lazy, kwargs.get("scaling"), kwargs.get("dropout", 0.0), **options)
            return out.transpose(1, 2).contiguous(), None
        if self._is_sdpa:
            # It ends in F.scaled_dot_product_attention, which is seen there, on its own kernel.
            mask = attention_mask if lazy is None else lazy.written()
            own = getattr(self.function, "__module__", "").startswith("transformers.")
            rule = who.tables.rule(attention_mask, query, key) if lazy is None else lazy
            with active.named(module, key if own else None, None if rule is None else rule.span, who), active.awake():
                return self.function(module, query, key, value, mask, *args, **kwargs)
        return self._beside(who, module, query, key, value, attention_mask, args, kwargs, options)

    def _unmasked(
        self, watcher: Watcher, name: str, module: nn.Module, given: tuple[Tensor, Tensor, Tensor], kwargs: dict
    ) -> Any:
        """A call without a mask in a pass that need not be heard: its kernel says all that there is to be known."""
        query, key, value = given
        assert self._catching is not None
        caught.found = None  # what a call that ended in an error has left
        result = active.unheard(self._catching, module, query, key, value, None, **kwargs)
        found, caught.found = caught.found, None
        if found is None:
            why = "was given to a function of transformers that called none of torch's"
            Audience(module, [(watcher, name)]).miss(why, -1, key.shape[-2])
            return result
        lse, keys, flag = found
        scale, queries = kwargs.get("scaling"), query.shape[-2]
        if lse is not None and queries == 1 and watcher.gather.goes_on(name, query, key, lse, scale):
            return result
        if keys < key.shape[-2]:
            key = key[..., :keys, :]  # of a static cache, what is behind these queries is not there yet
        form = (query.shape, key.shape, query.dtype, key.dtype, query.device, key.device, scale, flag)
        if lse is not None and watcher.alike is not None and watcher.alike[0] == form and _may_be_alike(query, key):
            # As of another layer: nothing has to be found out, but whether its keys are its own.
            first = -1 if is_cross(name, module) else aligned(queries, keys, flag)
            c = watcher.alike[1]
            call = Call(query, key, key, c.sizes, c.mask, None, c.scale, None, None, c.normalizer, 0.0)
            watcher.record(module, name, Looked(call, lse, first, 0))
            return result
        who = Audience(module, [(watcher, name)])
        mask = causal("end" if queries == keys else "start") if flag else None
        looked = look(query, key, key, mask, None, scale, position(who, queries, keys, flag, None), 0, lse)
        if _may_be_alike(query, key) and (scale is None or scale > 0):
            watcher.alike = form, looked.call.replace(q=None, k=None, v=None)
        who.record(looked)
        return result

    def _beside(
        self,
        who: Audience,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        args: tuple,
        kwargs: dict,
        options: dict,
    ) -> Any:
        """The model's own function, and the account of what it must have done."""
        lazy = attention_mask if isinstance(attention_mask, LazyMask) else None
        known = who.tables.rule(attention_mask, query, key) if lazy is None else lazy
        check(who, kwargs.get("dropout", 0.0))
        with active.quiet(compiled=self._is_flex):
            given = attention_mask if lazy is None else lazy.written()
            result = self.function(module, query, key, value, given, *args, **kwargs)
        try:
            return self._account(who, module, query, key, value, given, known, args, kwargs, options, result)
        except Exception as error:  # what only counts does not end a training
            if not who.lenient:
                raise
            who.miss(f"no account of it: {error}".splitlines()[0], -1, key.shape[-2])
        return result

    def _account(
        self,
        who: Audience,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        given: Any,
        known: Any,
        args: tuple,
        kwargs: dict,
        options: dict,
        result: Any,
    ) -> Any:
        """Tell the watches of a call; what it gave, as edits have it."""
        k, v = key, value
        bias = options.pop("bias", None)
        mask: Mask | None
        if known is not None:
            mask, span = known.mask, known.span
            k, v = k[..., : span.keys, :], v[..., : span.keys, :]
            bias = None if bias is None else bias[..., : span.keys]
            first, first_key = position(who, span.queries, span.keys, None, span.first_query), span.first_key
        else:
            mask, more, is_causal = self._read(module, query, key, given, kwargs)
            bias = more if bias is None else bias if more is None else bias + more
            first, first_key = position(who, query.shape[-2], key.shape[-2], is_causal, None), 0
        out = result[0] if isinstance(result, tuple) else result
        heads = Heads(out, v, time_first) if who.deep else None
        looked = look(query, k, v, mask, bias, kwargs.get("scaling"), first, first_key, heads=heads, **options)
        why, trusted = None, verify.is_known(self.function)
        if who.editing:
            run = partial(self.function, module, query, key, value, given, *args, **kwargs)
            return _edited(who, looked, (query, k, v, mask, bias, kwargs, options), run, result, trusted)
        if (not trusted or self.name == "eager") and verify.is_due(who, trusted):
            again = partial(self.function, module, query, key, value, given, *args, **kwargs)
            why = verify.doubt(looked, v, again, result, kwargs.get("dropout", 0.0), trusted)
        verify.record(who, looked, why)
        return result

    def _compact(self, who: Audience) -> bool:
        """Whether Sightline's attention takes the place of this function, by the user's choice."""
        return who.compact and (self._is_sdpa or self.name == "eager")

    @property
    def _is_flex(self) -> bool:
        return "flex" in getattr(self.function, "__name__", "")

    def _read(
        self, module: nn.Module, query: Tensor, key: Tensor, given: Any, kwargs: dict
    ) -> tuple[Mask | None, BiasLike, bool | None]:
        """The mask, a bias, and whether it is causal, of a function that is not torch's SDPA, as its kind means it."""
        batch, heads, queries, _ = query.shape
        keys = key.shape[-2]
        if isinstance(given, Tensor) and given.dim() == 4:
            table = read(given[..., :keys], (batch, heads, queries, keys))
            return table.mask, table.bias, None
        if given is not None and hasattr(given, "mask_mod"):
            return read_block_mask(given.as_tuple(), batch, heads, query.device), None, None
        if self.name == "eager" or self._is_flex:
            return None, None, False
        # The flash kernels: causal by the module's word, aligned at the end, with padding as [batch, keys].
        said = kwargs.get("is_causal")
        is_causal = bool(getattr(module, "is_causal", True) if said is None else said)
        window = kwargs.get("sliding_window")
        mask: Mask | None = None
        if is_causal:
            mask = causal() if window is None or window > keys else Band(int(window) - 1, 0)
        if isinstance(given, Tensor) and given.dim() == 2:
            marks = padding(given[:, -keys:].bool())
            mask = marks if mask is None else mask & marks
        return mask, None, is_causal


def _edited(who: Audience, looked: Looked, given: tuple, run: Callable, result: Any, known: bool) -> Any:
    """The result of a function, [batch, queries, heads, dim] and perhaps its weights, as edits have it."""
    query, k, v, mask, bias, kwargs, options = given
    dropout, first, first_key = kwargs.get("dropout", 0.0), looked.first_query, looked.first_key
    why = verify.doubt(looked, v, run, result, dropout, known)
    if why is not None:
        raise InputError(
            f"{who.name} cannot be edited",
            expected="softmax(q k) v, as its arguments say",
            got=why,
            hint="leave it out: layers=…",
        )
    out, weights = result if isinstance(result, tuple) else (result, None)
    shape = (*query.shape[:1], query.shape[2], query.shape[1], v.shape[-1])
    heads = out.reshape(shape).transpose(1, 2)
    whole = isinstance(weights, Tensor) and weights.shape[-1] == k.shape[-2]
    more = options | {"dropout": dropout, "weights": weights if whole else None, "row": looked.row}
    edited = change(who, query, k, v, heads, mask, bias, kwargs.get("scaling"), first, first_key, **more)
    out = edited.out.transpose(1, 2).reshape(out.shape)
    told = Heads(out, v, time_first) if who.deep else None
    if not tell(who, edited, first, first_key, told):
        who.record(looked._replace(heads=told))
    if not isinstance(result, tuple):
        return out
    return (out, weights if edited.weights is None else edited.weights, *result[2:])


def _may_be_alike(q: Tensor, k: Tensor) -> bool:
    """Whether a call can be known by the form of its tensors alone; where one query stands more than that tells."""
    return not (q.requires_grad or k.requires_grad or q.dim() != 4 or q.shape[2] == 1) and not (
        torch.is_autocast_enabled(q.device.type)
    )


# What transformers' attention functions may be given beyond q, k, v and a mask that changes the call.
_MORE = ("softcap", "s_aux", "position_bias", "cache")


def _options(kwargs: dict) -> dict[str, Any]:
    """What transformers' attention functions take beyond the usual, in Sightline's words."""
    found = {"softcap": kwargs.get("softcap"), "sinks": kwargs.get("s_aux"), "bias": kwargs.get("position_bias")}
    return {name: value for name, value in found.items() if value is not None}


def _attending(function: Callable, name: str) -> Callable:
    """The function as it is, or one that tells the watches of this thread."""
    if torch.compiler.is_compiling():
        return traced.attending(function, name)
    if not active.watches() or isinstance(function, Attending):
        return function
    try:
        return _heard(function, name)
    except TypeError:  # of something that cannot be a key of a table
        return Attending(function, name)


_heard = caches.memo("watching.attending", 64)(Attending)
