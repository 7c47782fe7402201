"""What every config.json must keep to, whatever the family: sizes that the tensors bear out, numbers that are numbers.

A family checks the keys it needs and compares every parameter's shape with the header. Before that, this file refuses
what no honest config says, so that nobody computes with a million heads or an epsilon that is not a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sightline.models.checkpoints.base import refused

# Sizes that stand in the shape of some tensor. A tensor may be larger than one of them (q, k and v in one), never
# smaller, so none of them can exceed the longest axis there is.
AXES = (
    "hidden_size",
    "n_embd",
    "intermediate_size",
    "n_inner",
    "vocab_size",
    "type_vocab_size",
    "head_dim",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "num_channels",
    "patch_size",
)
LAYERS = ("num_hidden_layers", "n_layer")
LENGTHS = ("max_position_embeddings", "n_positions", "image_size")
EPSILONS = ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps")
LONGEST = 1 << 30


def check_config(config: Mapping[str, Any], source: str, shapes: Iterable[tuple[int, ...]]) -> None:
    """Refuse a config that contradicts itself or the tensors beside it.

    >>> check_config({"model_type": "bert", "num_attention_heads": 1_000_000}, "here", [(384, 384)])
    Traceback (most recent call last):
    ...
    sightline.models.checkpoints.base.CheckpointError: the config of here does not fit its tensors
      expected: num_attention_heads of at most 384, the longest axis of any tensor
      got: num_attention_heads=1000000
      try: fetch config.json and the weights again, from the same place
    """
    shapes = list(shapes)
    longest = max((size for shape in shapes for size in shape), default=0)
    if not isinstance(config.get("model_type"), str):
        raise refused(
            f"the config of {source} does not say which family it is",
            expected='model_type, such as "bert" or "llama"',
            got=f"model_type={_short(config.get('model_type'))}",
            hint="take config.json from where the model is published",
        )
    if config.get("quantization_config") is not None:
        raise refused(
            f"{source} is quantised in a way that Sightline does not read",
            expected="weights as float32, bfloat16 or float16, or a GGUF file",
            got=f"quantization_config={_short(config['quantization_config'])}",
            hint="load the checkpoint it was made from, or a GGUF file of it",
        )
    kinds = config.get("architectures")
    if kinds is not None and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise refused(
            f"the config of {source} has architectures that cannot be",
            expected="architectures as a list of names",
            got=f"architectures={_short(kinds)}",
            hint="take config.json from where the model is published",
        )
    for key in (*AXES, *LAYERS, *LENGTHS):
        _check_size(config, key, source)
    for key, most, why in [
        *((key, longest, "the longest axis of any tensor") for key in AXES),
        *((key, len(shapes), "the number of tensors") for key in LAYERS),
    ]:
        if _number(config, key) > most:
            raise refused(
                f"the config of {source} does not fit its tensors",
                expected=f"{key} of at most {most}, {why}",
                got=f"{key}={_short(config[key])}",
                hint="fetch config.json and the weights again, from the same place",
            )
    _check_heads(config, source, longest)
    _check_floats(config, source)


def _check_size(config: Mapping[str, Any], key: str, source: str) -> None:
    size: Any = config.get(key)
    pair = isinstance(size, list) and len(size) == 2 and key in ("image_size", "patch_size")
    for n in size if pair else [size]:
        if n is not None and (type(n) is not int or not 1 <= n <= LONGEST):
            raise refused(
                f"the config of {source} has a size that cannot be",
                expected=f"{key} as a whole number from 1 to {LONGEST}",
                got=f"{key}={_short(size)}",
                hint="take config.json from where the model is published",
            )


def _check_heads(config: Mapping[str, Any], source: str, longest: int) -> None:
    heads = _number(config, "num_attention_heads") or _number(config, "n_head")
    kv_heads = _number(config, "num_key_value_heads") or heads
    width, dim = _number(config, "hidden_size") or _number(config, "n_embd"), _number(config, "head_dim")
    wrong = None
    if heads and heads % kv_heads:
        wrong = f"{heads} heads over {kv_heads} key heads"
    elif heads and width and not dim and width % heads:
        wrong = f"{heads} heads over a width of {width}"
    elif heads * dim > longest:
        wrong = f"{heads} heads of {dim}, while the longest axis of any tensor is {longest}"
    if wrong:
        raise refused(
            f"the config of {source} has heads that do not come out even",
            expected="whole heads that divide the width, and as many or a multiple of the key heads",
            got=wrong,
            hint="take config.json from where the model is published",
        )


def _check_floats(config: Mapping[str, Any], source: str) -> None:
    """No number anywhere may be NaN or infinite; an epsilon is small and above 0, a rotary base above 0."""
    waiting: list[tuple[str, Any]] = list(config.items())
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{key}.{inner}", kept) for inner, kept in value.items()]
        elif isinstance(value, list):
            waiting += [(key, kept) for kept in value]
        elif isinstance(value, float) and not math.isfinite(value):
            raise _bad_number(source, key, "a finite number", value)
    for key in EPSILONS:
        _check_between(config, key, source, 1.0)
    _check_between(config, "rope_theta", source, math.inf)


def _check_between(config: Mapping[str, Any], key: str, source: str, top: float) -> None:
    value = config.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < top):
        raise _bad_number(source, key, f"a number above 0{'' if top == math.inf else f' and below {top:g}'}", value)


def _bad_number(source: str, key: str, expected: str, value: object) -> Exception:
    return refused(
        f"the config of {source} has a number that cannot be",
        expected=f"{key} as {expected}",
        got=f"{key}={_short(value)}",
        hint="take config.json from where the model is published",
    )


def _number(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return max(value) if isinstance(value, list) else value or 0


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
