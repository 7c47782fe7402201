"""What a survey says of every head of one text: its measures, where spans are, its strongest links with their words.

What the measures mean is said in `watching/read/measures.py`, once for all who rank, draw or join heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.lens import Top
from sightline.lens.statistics import DISTANCE, ENTROPY
from sightline.models.text.language_model import LanguageModel
from sightline.surveying.texts import Text
from sightline.targets import loss
from sightline.watching import Seen, watch
from sightline.watching.read.measures import copies, named
from sightline.watching.read.portraits import MEASURES as PORTRAIT

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# The measures of a head, a column each.
MEASURES = (*PORTRAIT, *named("retrieval", "influence"))
# Of the strongest keys of a query at most three are a matter of course: the first token, the one before, itself.
_STRONGEST = Top(4)
# Characters of context on either side of a token.
_CONTEXT = 48


class Wanted(NamedTuple):
    """What is asked of every text."""

    links: int = 3
    generate: int = 0
    influence: bool = False


def check_able(model: Any, wanted: Wanted) -> None:
    """Refuse what a model cannot do, before the first text."""
    if wanted.generate and wanted.influence:
        raise InputError(
            "influence is of a text that is there",
            expected="generate, or influence",
            got="both",
            hint="survey the texts that were generated",
        )
    if (wanted.generate or wanted.influence) and not hasattr(model, "stream"):
        raise InputError(
            "this model predicts no tokens",
            expected="a language model, such as smollm2",
            got=type(model).__name__,
            hint="without generate and influence",
        )


def rows_of(model: Any, tokenizer: Any, text: Text, wanted: Wanted) -> list[dict[str, Any]]:
    """The rows of one text, one for each head; a text that cannot be run is one row with its error."""
    try:
        if text.problem is not None:
            raise InputError(text.problem)
        return list(_rows(model, tokenizer, text, wanted))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    # Tokenizers raise plain exceptions, and panics that are not even that.
    except BaseException as error:
        said = " ".join(str(error).split())[:500] or type(error).__name__
        return [error_row(text, said)]


def error_row(text: Text, said: str) -> dict[str, Any]:
    """A text that gave nothing, and why."""
    return {"key": text.key, "name": text.name, "error": said}


def _rows(model: Any, tokenizer: Any, text: Text, wanted: Wanted) -> Iterator[dict[str, Any]]:
    if any("\ud800" <= letter <= "\udfff" for letter in text.text):
        raise InputError("this text is not UTF-8")
    encoding = tokenizer.encode(text.text)
    ids, context = list(encoding.ids), getattr(model, "context", None)
    if not ids:
        raise InputError("this text has no tokens")
    if context is not None and len(ids) + wanted.generate > context:
        raise InputError(f"{len(ids):,} tokens, more than the {context:,} of the model: cut it (cut=…)")
    if wanted.influence and len(ids) < 2:
        raise InputError("a single token has no loss")
    seen = _run(model, text, torch.tensor([ids], device=next(model.parameters()).device), wanted)
    raised = seen.by_head()[0] if wanted.influence else None
    copied = _retrieval(seen, len(ids)) if wanted.generate else {}
    tokens = list(encoding.offsets)
    inside = _inside(text, tokens)
    portraits = {(one.layer, one.head): one for one in seen.portraits()}
    for order, layer in enumerate(seen.layers):
        sight, number = seen[layer], seen.number(layer)
        top = sight.top(_STRONGEST.n)
        links = _links(top.keys[0], top.weights[0], text, tokens, wanted.links)
        received = sight.received()[0] if inside else None
        for at, head in enumerate(seen.heads(layer)):
            portrait = portraits[layer, head]
            measures = {shown.name: getattr(portrait, shown.name, None) for shown in MEASURES}
            measures["retrieval"] = copied.get((layer, head))
            if raised is not None:
                measures["influence"] = float(raised[order, head])
            yield {
                "key": text.key,
                "name": text.name,
                "layer": layer,
                "number": number,
                "head": head,
                "tokens": len(ids),
                **measures,
                "spans": [] if received is None else _spans(received[at], inside, sight.shape[-2]),
                "links": links[at],
            }


def _run(model: Any, text: Text, given: Tensor, wanted: Wanted) -> Seen:
    """A text through the model, watched."""
    stats = (ENTROPY.name, DISTANCE.name, "received", "shares", _STRONGEST)
    with (
        torch.set_grad_enabled(wanted.influence),
        watch(model, stats=stats, influence=wanted.influence) as seen,
    ):
        if wanted.generate:
            for _ in model.stream(text.text, max_new_tokens=wanted.generate):
                pass
        elif wanted.influence:
            seen.backward(loss(given[:, 1:], at=1)(model(given)))
        elif isinstance(model, LanguageModel):
            model(given, last=1)  # the logits of all tokens are a fifth of a short text's time, and nobody reads them
        else:
            model(given)
    return seen


def _inside(text: Text, tokens: list[tuple[int, int]]) -> dict[str, list[int]]:
    """The tokens that touch each span."""
    return {
        name: [i for i, (first, last) in enumerate(tokens) if first < stop and last > start and last > first]
        for name, (start, stop) in (text.spans or {}).items()
    }


def _spans(received: Tensor, inside: dict[str, list[int]], queries: int) -> list[dict[str, Any]]:
    """How much of a head's attention went to each span: the mean over queries of what its tokens have together."""
    return [{"name": name, "share": float(received[tokens].sum()) / max(queries, 1)} for name, tokens in inside.items()]


def _links(
    keys: Int[Tensor, "heads queries n"],
    weights: Float[Tensor, "heads queries n"],
    text: Text,
    tokens: list[tuple[int, int]],
    n: int,
) -> list[list[dict[str, Any]]]:
    """The strongest links of each head that are no matter of course, one for each query, by their weights."""
    place = torch.arange(keys.shape[-2])[:, None]
    plain = (keys <= 0) | (keys == place) | (keys == place - 1) | (keys >= len(tokens)) | (place >= len(tokens))
    best, which = weights.masked_fill(plain, 0.0).max(-1)
    best, order = (t[:, :n] for t in best.sort(dim=-1, descending=True, stable=True))
    looked = keys.gather(-1, which[..., None])[..., 0].gather(-1, order)
    return [
        [
            {
                "query": query,
                "key": key,
                "weight": weight,
                "query_context": _context(text.text, tokens[query]),
                "key_context": _context(text.text, tokens[key]),
            }
            for query, key, weight in zip(*head, strict=True)
            if weight > 0
        ]
        for head in zip(order.tolist(), looked.tolist(), best.tolist(), strict=True)
    ]


def _context(text: str, place: tuple[int, int]) -> list[str]:
    """What stands before a token, the token, and what stands after it."""
    start, stop = place
    return [text[max(0, start - _CONTEXT) : start], text[start:stop], text[stop : stop + _CONTEXT]]


def _retrieval(seen: Seen, prompt: int) -> dict[tuple[str, int], float]:
    """Of the generated tokens, the share whose own copy earlier in the text was what the head looked at most."""
    ids = torch.tensor(seen.ids[0] if seen.ids else [])
    found: dict[tuple[str, int], float] = {}
    for layer in seen.layers:
        sight = seen[layer]
        keys = sight.top(_STRONGEST.n).keys[0, :, :, 0]
        shares = copies(keys, ids, prompt)
        if shares is None:
            continue
        for number, share in zip(seen.heads(layer), shares.tolist(), strict=True):
            found[layer, number] = share
    return found
