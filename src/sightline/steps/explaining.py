"""`explain`: from an input with weights, from q, k and v, or from a model, to every step of its attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sightline.biases import Bias
from sightline.errors import InputError, InputTypeError
from sightline.positions.base import whole
from sightline.steps.compute import WEIGHT_FREE, Attended
from sightline.steps.labels import read_labels
from sightline.steps.of_model import of_model
from sightline.steps.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sightline.backends.call import BiasLike, MaskLike


def explain(
    *given: Any,
    w_q: Tensor | None = None,
    w_k: Tensor | None = None,
    w_v: Tensor | None = None,
    w_o: Tensor | None = None,
    heads: int | None = None,
    memory: Tensor | None = None,
    positions: nn.Module | Bias | None = None,
    layer: int | str | None = None,
    head: int | None = None,
    tokenizer: Any = None,
    labels: str | Sequence[str] | None = None,
    key_labels: str | Sequence[str] | None = None,
    mask: MaskLike = None,
    bias: BiasLike = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    normalizer: str = "softmax",
) -> Steps:
    """Every step of an attention computation, named, as tables (S2.3, S2.4, S2.5).

    - `explain(q, k, v)`: `[time, dim]` or `[heads, time, dim]`.
    - `explain(x, w_q=…, w_k=…, w_v=…, w_o=…)`: an input `[time, width]` times its weights `[width, dim]`, or
      `[heads, width, dim]`, or `[width, heads * dim]` with `heads=`. `memory` is where keys and values come from, if
      not from x. `positions` are added to x, turn q and k, or become the bias, each scheme as it does.
    - `explain(x)`: the weight-free form, in which x is query, key and value (S4.1); its scores are not scaled.
    - `explain(model, text, layer=3, head=1)`: the real numbers of a model made of `sl.nn` parts; in place of a text,
      whatever the model is called with. `layer` is the number of the attention call or the path of its module.

    `labels` are the words, in a list or in one sentence. `mask` to `normalizer` are those of `sl.attention`:
    `normalizer="uniform"` with `mask=sl.causal()` is the average of the past (S0.1), `"relu"` the form of S3.3.

    >>> import sightline as sl
    >>> from sightline.steps import explain
    >>> x, w_q, w_k, w_v = torch.randn(3, 512), *torch.randn(3, 512, 64).div(512**0.5)
    >>> steps = explain(x, w_q=w_q, w_k=w_k, w_v=w_v, labels="Action gets results")
    >>> [column.symbol for column in steps.table("gets").columns]
    ['q_i', 'k_j', 'v_j', 'q_i.k_j', '/ 8', 'x_ij', 'x_ij * v_j', 'z_i']
    >>> steps["weight"].shape, steps["sum"].shape
    (torch.Size([3, 3]), torch.Size([3, 64]))
    """
    options = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks, "normalizer": normalizer}
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    if given and isinstance(given[0], nn.Module):
        own = {**weights, **options, "memory": memory, "heads": heads, "positions": positions}
        own["normalizer"] = None if normalizer == "softmax" else normalizer
        unused = [name for name, x in own.items() if x is not None]
        if unused:
            raise _unused("a model has its own weights and options", unused)
        return of_model(*given, layer=layer, head=head, tokenizer=tokenizer, labels=labels)
    if layer is not None or tokenizer is not None:
        raise _unused("only a model has layers and a tokenizer", ["layer" if layer is not None else "tokenizer"])
    if not given or not all(isinstance(x, Tensor) for x in given) or len(given) not in (1, 3):
        raise InputTypeError(
            "explain takes tensors or a model",
            expected="explain(q, k, v), explain(x, w_q=…, w_k=…, w_v=…), explain(x) or explain(model, text)",
            got=f"explain({', '.join(type(x).__name__ for x in given)})",
            hint="torch.as_tensor(x)",
        )
    before: dict[str, Tensor] = {}
    if len(given) == 3:
        before_qkv = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "memory": memory, "heads": heads}
        unused = [name for name, x in before_qkv.items() if x is not None]
        if unused:
            raise _unused("q, k and v are made already", unused)
        q, k, v = given
    else:
        if memory is not None and not isinstance(memory, Tensor):
            raise _not_a_tensor("memory", memory)
        q, k, v, before = _project(given[0], memory, w_q, w_k, w_v, heads, positions)
    symbols = WEIGHT_FREE if len(given) == 1 and w_q is None else None
    if symbols and scale is None:
        options["scale"] = 1.0
    if isinstance(positions, Bias):
        if bias is not None:
            raise _unused("these positions are a bias already", ["bias"])
        options["bias"] = positions
    elif len(given) == 3 and positions is not None:
        q, k, before = _turn(q, k, positions)
    with torch.no_grad():
        done = Attended(q, k, v, options, symbols=symbols)
    queries, keys = done.q.shape[1], done.k.shape[1]
    names = read_labels("labels", labels, queries)
    same = memory is None and queries == keys and key_labels is None
    return Steps(
        done,
        labels=names,
        key_labels=names if same else read_labels("key_labels", key_labels, keys),
        before=before,
        after={} if w_o is None else _after(done.output, w_o),
        head=head,
        flat=q.dim() == 2,
    )


def _project(
    x: Tensor,
    memory: Tensor | None,
    w_q: Tensor | None,
    w_k: Tensor | None,
    w_v: Tensor | None,
    heads: int | None,
    positions: nn.Module | Bias | None,
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """q, k and v, and what came before them by its name."""
    source = x if memory is None else memory
    for name, t in (("x", x), ("memory", source)):
        if t.dim() != 2 or not t.is_floating_point():
            raise InputError(
                f"{name} is one sequence of vectors",
                expected="floating [time, width]",
                got=f"{t.dtype} of shape {tuple(t.shape)}",
                hint=f"one of the batch, {name}[0]" if t.dim() > 2 else f"{name}.float()",
            )
    before = {"embeddings": x.detach()}
    if memory is not None:
        before["memory"] = memory.detach()
    acts_on = getattr(positions, "acts_on", None)
    if acts_on == "input":
        assert isinstance(positions, nn.Module)
        with torch.no_grad():
            before["positions"] = positions(torch.zeros_like(x))
            x = positions(x)
            source = x if memory is None else positions(memory)
        before["input"] = x.detach()
    given = [w for w in (w_q, w_k, w_v) if w is not None]
    if not given:
        q, k, v = x, source, source
    elif len(given) < 3:
        missing = [name for name, w in (("w_q", w_q), ("w_k", w_k), ("w_v", w_v)) if w is None]
        raise InputError(
            "the three weights belong together",
            expected="w_q, w_k and w_v, or none of them",
            got=f"no {' and no '.join(missing)}",
            hint=f"{missing[0]}=torch.eye(width) leaves the input as it is",
        )
    else:
        q, k, v = (_times(t, n, w, heads) for t, n, w in ((x, "w_q", w_q), (source, "w_k", w_k), (source, "w_v", w_v)))
        before |= {"w_q": w_q, "w_k": w_k, "w_v": w_v}  # type: ignore[dict-item]
    if acts_on == "query_key":
        q, k, unturned = _turn(q, k, positions)
        before |= unturned
    elif positions is not None and acts_on not in ("input", "score"):
        raise InputTypeError(
            "these are no positions",
            expected="one of sl.positions, or sl.alibi(heads)",
            got=type(positions).__name__,
            hint="positions=sl.positions.Sinusoidal(width)",
        )
    return q, k, v, before


def _turn(q: Tensor, k: Tensor, positions: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """q and k turned by their positions, and as they were before."""
    if getattr(positions, "acts_on", None) != "query_key":
        raise _unused("q, k and v are made already: only rotary positions act on them", ["positions"])
    with torch.no_grad():
        turned = [positions(t if t.dim() > 2 else t[None]) for t in (q, k)]
    turned = [new if old.dim() > 2 else new[0] for new, old in zip(turned, (q, k), strict=True)]
    return turned[0], turned[1], {"unturned_q": q.detach(), "unturned_k": k.detach()}


def _times(x: Tensor, name: str, w: Tensor | None, heads: int | None) -> Tensor:
    """x times one weight: `[time, dim]`, or `[heads, time, dim]`."""
    if not isinstance(w, Tensor):
        raise _not_a_tensor(name, w)
    width = x.shape[-1]
    fits = w.dim() in (2, 3) and w.shape[-2] == width and w.dtype == x.dtype
    if heads is not None and w.dim() == 2:
        fits = fits and w.shape[-1] % whole("heads", heads) == 0
    if not fits:
        raise InputError(
            f"{name} does not fit the input",
            expected=f"{x.dtype} [{width}, dim] or [heads, {width}, dim]"
            + ("" if heads is None else f", or [{width}, {heads} * dim]"),
            got=f"{w.dtype} {tuple(w.shape)}",
            hint=f"{name}.T, if it came from a torch.nn.Linear",
        )
    with torch.no_grad():
        out = x @ w
    return out.unflatten(-1, (heads, -1)).transpose(0, 1) if heads is not None and w.dim() == 2 else out


def _after(output: Tensor, w_o: Tensor) -> dict[str, Tensor]:
    """Z_0, Z_1, … side by side, and times one more matrix (S2.5)."""
    together = output.transpose(0, 1).flatten(1)  # [queries, heads * value_dim]
    if not isinstance(w_o, Tensor):
        raise _not_a_tensor("w_o", w_o)
    if w_o.dim() != 2 or len(w_o) != together.shape[1] or not w_o.is_floating_point():
        raise InputError(
            "w_o does not fit the heads",
            expected=f"[{together.shape[1]}, width]: heads * value_dim rows",
            got=f"{w_o.dtype} {tuple(w_o.shape)}",
            hint="w_o.T, if it came from a torch.nn.Linear",
        )
    w_o = w_o.detach()
    return {"concatenation": together, "w_o": w_o, "projection": together @ w_o.to(together.dtype)}


def _not_a_tensor(name: str, x: object) -> InputTypeError:
    return InputTypeError(
        f"{name} is a tensor", expected="torch.Tensor", got=type(x).__name__, hint=f"torch.as_tensor({name})"
    )


def _unused(why: str, names: list[str]) -> InputError:
    return InputError(
        why, expected=f"no {', '.join(names)}", got=", ".join(f"{n}=…" for n in names), hint=f"leave out {names[0]}"
    )
