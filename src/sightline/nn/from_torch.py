"""Taking over modules of torch.nn: their weights, their settings, and their masks, which mean the opposite.

Nothing here knows our modules: `read_…` gives the options and the weights of the module to be made.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.errors import InputError, InputTypeError
from sightline.masks import Mask, causal, dense, padding

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

M = TypeVar("M", bound=nn.Module)


class Taken(NamedTuple):
    """What a module is made of: its sizes, options and weights; and the dropouts inside, by the part's name."""

    sizes: tuple[int, int]  # width, heads
    options: dict[str, Any]
    weights: dict[str, nn.Parameter]
    dropouts: dict[str, float]
    training: bool


def build(cls: type[M], taken: Taken, **more: Any) -> M:
    """A module of a class with options and weights as they were read."""
    with torch.device("meta"):  # no weights are drawn only to be thrown away
        new = cls(*taken.sizes, **taken.options, **more)
    frozen = [name for name, weight in taken.weights.items() if not weight.requires_grad]
    new.load_state_dict(taken.weights, assign=True)
    for name in frozen:
        new.get_parameter(name).requires_grad_(False)
    for name, dropout in taken.dropouts.items():
        owner, _, attribute = name.rpartition(".")
        setattr(new.get_submodule(owner), attribute, dropout)
    return new.train(taken.training)


def read_attention(module: nn.MultiheadAttention) -> Taken:
    """torch.nn.MultiheadAttention as options and weights of MultiHeadAttention."""
    _expect(module, nn.MultiheadAttention)
    for name, there in (("add_bias_kv", module.bias_k is not None), ("add_zero_attn", module.add_zero_attn)):
        if there:
            raise InputError(
                f"{name} has no counterpart",
                expected=f"a torch.nn.MultiheadAttention with {name}=False",
                got=f"{name}=True",
                hint="sinks=True is what newer models use for a place to look at nothing",
            )
    weights: dict[str, nn.Parameter] = {}
    names = ("query", "key", "value")
    if module.in_proj_weight is not None:
        for name, part in zip(names, _parts(module.in_proj_weight), strict=True):
            weights[f"{name}.weight"] = part
    else:
        for name, whole in zip(names, (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight), strict=True):
            weights[f"{name}.weight"] = _copy(whole)
    if module.in_proj_bias is not None:
        for name, part in zip(names, _parts(module.in_proj_bias), strict=True):
            weights[f"{name}.bias"] = part
    weights |= _state("output", module.out_proj)
    width = module.embed_dim
    options: dict[str, Any] = {"bias": module.in_proj_bias is not None}
    if (module.kdim, module.vdim) != (width, width):
        options["memory_width"] = (module.kdim, module.vdim)
    return Taken((width, module.num_heads), options, weights, {"dropout": module.dropout}, module.training)


def read_encoder_layer(module: nn.TransformerEncoderLayer) -> Taken:
    """torch.nn.TransformerEncoderLayer as options and weights of EncoderLayer."""
    _expect(module, nn.TransformerEncoderLayer)
    return _read_layer(module, "attention_norm", "feed_forward_norm")


def read_decoder_layer(module: nn.TransformerDecoderLayer) -> Taken:
    """torch.nn.TransformerDecoderLayer as options and weights of DecoderLayer."""
    _expect(module, nn.TransformerDecoderLayer)
    taken = _read_layer(module, "attention_norm", "cross_attention_norm", "feed_forward_norm")
    crossed = read_attention(module.multihead_attn)
    taken.options["cross"] = True
    taken.options["memory_width"] = crossed.options.get("memory_width")
    taken.weights.update({f"cross_attention.{name}": weight for name, weight in crossed.weights.items()})
    taken.dropouts["cross_attention.dropout"] = crossed.dropouts["dropout"]
    return taken


def read_stack(module: nn.Module, kind: type[nn.Module]) -> tuple[list[Any], nn.Module | None]:
    """The layers of a torch.nn.TransformerEncoder or TransformerDecoder, and a copy of its last norm."""
    _expect(module, kind)
    return list(module.layers), copy.deepcopy(module.norm)  # type: ignore[arg-type, return-value]


def _read_layer(module: Any, *norms: str) -> Taken:
    attention = read_attention(module.self_attn)
    weights = {f"attention.{name}": weight for name, weight in attention.weights.items()}
    weights |= _state("feed_forward.up", module.linear1) | _state("feed_forward.down", module.linear2)
    for number, name in enumerate(norms, start=1):
        norm = getattr(module, f"norm{number}")
        if not isinstance(norm, nn.LayerNorm):
            raise InputError(
                "this norm has no counterpart", expected="LayerNorm", got=type(norm).__name__, hint="norm='rms'"
            )
        weights |= _state(name, norm)
    options = {
        "hidden": module.linear1.out_features,
        "activation": _activation(module.activation),
        "norm_first": module.norm_first,
        "eps": module.norm1.eps,
        "bias": module.linear1.bias is not None,
    }
    dropouts = {
        "attention.dropout": attention.dropouts["dropout"],
        "feed_forward.dropout.p": module.dropout.p,
        "dropout.p": module.dropout1.p,
    }
    return Taken(attention.sizes, options, weights, dropouts, module.training)


def _activation(function: object) -> str:
    if function is F.relu or isinstance(function, nn.ReLU):
        return "relu"
    if function is F.gelu or (isinstance(function, nn.GELU) and function.approximate == "none"):
        return "gelu"
    if isinstance(function, nn.GELU):
        return "gelu_tanh"
    if function is F.silu or isinstance(function, nn.SiLU):
        return "silu"
    raise InputError(
        "this activation has no counterpart", expected="relu, gelu or silu", got=function, hint="activation='gelu'"
    )


def _state(name: str, module: nn.Module) -> dict[str, nn.Parameter]:
    return {f"{name}.{key}": _copy(parameter) for key, parameter in module.named_parameters()}


def _copy(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)


def _parts(whole: Tensor) -> list[nn.Parameter]:
    """The weights of three projections, side by side in memory as they were."""
    return [nn.Parameter(part, requires_grad=whole.requires_grad) for part in whole.detach().clone().chunk(3)]


def _expect(module: object, kind: type) -> None:
    if not isinstance(module, kind):
        raise InputTypeError(
            "this cannot be taken over",
            expected=f"torch.nn.{kind.__name__}",
            got=type(module).__name__,
            hint="from_torch is there for the modules of torch.nn with the same meaning",
        )


def masks_from_torch(
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    heads: int | None = None,
) -> tuple[Mask | None, Tensor | None]:
    """The masks of torch.nn as (mask, bias) of ours. There True means blocked; here True means may attend.

    Of a float mask -inf becomes part of the mask, and the rest the bias, or None if it is all 0.

    Args:
        attn_mask: `[queries, keys]`, or `[batch * heads, queries, keys]`, boolean (True = blocked) or float (added).
        key_padding_mask: `[batch, keys]` or `[keys]`, boolean (True = padding) or float (added).
        is_causal: says that attn_mask is the causal mask, as there; then attn_mask itself is not looked at.
        heads: how many, needed for an attn_mask of three axes.

    >>> import torch
    >>> masks_from_torch(torch.nn.Transformer.generate_square_subsequent_mask(2))[0].to_dense(2, 2).int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    >>> mask, bias = masks_from_torch(key_padding_mask=torch.tensor([[False, False, True]]))
    >>> mask.to_dense(1, 3).int().flatten().tolist(), bias
    ([1, 1, 0], None)
    """
    mask: Mask | None = None
    bias: Tensor | None = None
    if is_causal:
        mask = causal(align="start")
    elif attn_mask is not None:
        blocked, bias = _blocked("attn_mask", attn_mask, (2, 3), "[queries, keys] or [batch * heads, queries, keys]")
        mask = None if blocked is None else dense(~_by_head(blocked, heads))
        bias = None if bias is None else _by_head(bias, heads)
    if key_padding_mask is not None:
        blocked, added = _blocked("key_padding_mask", key_padding_mask, (1, 2), "[batch, keys] or [keys]")
        if blocked is not None:
            real = padding(~blocked)
            mask = real if mask is None else mask & real
        if added is not None:
            added = added[..., None, None, :]  # [*batch, 1, 1, keys]
            bias = added if bias is None else bias + added
    return mask, bias


def _blocked(
    name: str, given: Tensor, ranks: tuple[int, int], layout: str
) -> tuple[Bool[Tensor, "*any"] | None, Float[Tensor, "*any"] | None]:
    """Which cells are blocked, and what is added to the others; None for nothing."""
    boolean = isinstance(given, Tensor) and given.dtype == torch.bool
    if not boolean and not (isinstance(given, Tensor) and given.is_floating_point()):
        raise InputTypeError(
            f"{name} must be boolean or float",
            expected="torch.bool, True = blocked, or a float that is added",
            got=given.dtype if isinstance(given, Tensor) else type(given).__name__,
            hint=f"{name}.bool()",
        )
    if given.dim() not in ranks:
        raise InputError(
            f"{name} has the wrong rank", expected=layout, got=tuple(given.shape), hint="as torch.nn takes it"
        )
    if boolean:
        return given, None
    blocked = given == -torch.inf
    rest = given.masked_fill(blocked, 0.0)
    return (blocked if bool(blocked.any()) else None), (rest if bool(rest.any()) else None)


def _by_head(table: Tensor, heads: int | None) -> Tensor:
    """[batch * heads, queries, keys] as [batch, heads, queries, keys]."""
    if table.dim() == 2:
        return table
    if heads is None or table.shape[0] % heads:
        raise InputError(
            "attn_mask of three axes has one table for each head of each sequence",
            expected="heads, and [batch * heads, queries, keys]",
            got=f"heads={heads}, {tuple(table.shape)}",
            hint="masks_from_torch(attn_mask, heads=mha.heads)",
        )
    return table.unflatten(0, (-1, heads))
