"""Named parts of the text, and what each layer has between them: by slices, positions, or characters of the text."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.lens.between import ALL, Spans
from sightline.lens.readings import SIGNED
from sightline.shapes import as_whole

if TYPE_CHECKING:
    from sightline.watching.seen import Seen

_SHOWN = 60


class LayerSpans(dict[str, Spans]):
    """The spans of every layer, by its path. In a notebook: a table of all layers, heads together.

    >>> import torch
    >>> from sightline.watching import watch
    >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    >>> x = torch.randn(1, 5, 16)
    >>> with watch(layer) as seen:
    ...     _ = layer(x, x, x)
    >>> found = seen.spans({"begin": slice(0, 3)})
    >>> found.together().shape  # layers, queries, keys
    torch.Size([1, 1, 2])
    """

    of = "weights"

    def together(self) -> Tensor:
        """`[layers, queries, keys]`: heads and examples together, their sum for influence and pull, else their mean."""
        tables = [spans.table.flatten(0, -3) for spans in self.values()]
        return torch.stack([table.sum(0) if self.of in SIGNED else table.mean(0) for table in tables])

    def _repr_html_(self) -> str:
        first = next(iter(self.values()))
        head = "".join(f"<th>{escape(name)}</th>" for name in ("layer", *self._queries(first), *first.keys))
        lines = []
        for (name, spans), table in zip(self.items(), self.together().tolist()):
            for query, row in zip(spans.queries, table):
                cells = "".join(f"<td>{x:.3f}</td>" for x in row)
                named = f"<td>{escape(query)}</td>" if self._queries(first) else ""
                lines.append(f"<tr><td>{escape(name)}</td>{named}{cells}</tr>")
        how = "summed over heads" if self.of in SIGNED else "mean over heads"
        return f"<div><p>{self.of}, {how}</p><table><tr>{head}</tr>{''.join(lines)}</table></div>"

    @staticmethod
    def _queries(first: Spans) -> tuple[str, ...]:
        return () if first.queries == (ALL,) else ("query",)


def spans(seen: Seen, keys: Any, queries: Any, of: str, reduce: str | None) -> LayerSpans:
    """What each layer has between named parts."""
    found = LayerSpans()
    found.of = of
    if keys is None:
        return _of_joint(seen, found, queries, reduce)
    for name in seen.layers:
        sight = seen[name]
        batch, _, rows, columns = sight.shape
        cross = seen.kind(name) == "cross"
        for_keys = _read("keys", keys, seen, columns, batch, cross)
        for_queries = None if queries is None else _read("queries", queries, seen, rows, batch, False)
        found[name] = sight.spans(for_keys, for_queries, of, reduce)
    if not found:
        seen[0]  # says why there is none
    return found


def _of_joint(seen: Seen, found: LayerSpans, queries: Any, reduce: str | None) -> LayerSpans:
    """The same between text and image, of the layers that attend to both."""
    for name, parts in seen.joint.items():
        if name in seen:
            found[name] = seen[name].spans(parts, parts if queries is None else queries, found.of, reduce)
    if not found:
        raise InputError(
            "no layer is known to attend to text and image at once",
            expected="keys, or a model with joint attention, as SD3's and Flux's",
            got=f"{len(seen)} layers without",
            hint='seen.spans({"text": slice(0, 77), "image": slice(77, None)})',
        )
    return found


def _read(what: str, given: Any, seen: Seen, length: int, batch: int, memory: bool) -> Any:
    """Spans as the lens knows them: those of characters become booleans, one for each token of each example."""
    if not isinstance(given, Mapping) or not any(map(_is_text, given.values())):
        return given
    texts = {name: span for name, span in given.items() if _is_text(span)}
    rows = []
    for member in range(batch):
        text, places = _text(seen, member, length, memory)
        rows.append(_inside(what, texts, text, places))
    inside = torch.stack(rows, 1)  # [spans, batch, tokens]
    marked = dict(zip(texts, inside))
    return {name: marked.get(name, span) for name, span in given.items()}


def _is_text(span: Any) -> bool:
    return isinstance(span, str) or (isinstance(span, tuple) and len(span) == 2)


def _inside(what: str, texts: dict[str, Any], text: str, places: list[tuple[int, int]]) -> Tensor:
    """Which tokens are in which span: a token on an edge is where most of it is."""
    ranges = [_characters(name, span, text) for name, span in texts.items()]
    for i, (name, (start, stop)) in enumerate(zip(texts, ranges)):
        for other, (begin, end) in list(zip(texts, ranges))[:i]:
            if max(start, begin) < min(stop, end):
                raise InputError(
                    f"two spans of {what} overlap",
                    expected="every character in one span at most",
                    got=f"{other!r} ({begin} to {end}) and {name!r} ({start} to {stop})",
                    hint="two calls, one for each",
                )
    shared = torch.tensor([[max(min(stop, b) - max(start, a), 0) for a, b in places] for start, stop in ranges])
    shared = shared.reshape(len(ranges), len(places))
    found = torch.zeros(shared.shape, dtype=torch.bool)
    most = shared.max(0)
    found[most.indices, torch.arange(len(places))] = most.values > 0
    for name, inside in zip(texts, found):
        if not bool(inside.any()):
            raise InputError(
                f"no token is in {name!r}",
                expected="a part of the text with a token in it",
                got=f"{texts[name]!r} of {len(text)} characters",
                hint="a longer part",
            )
    return found


def _characters(name: str, span: Any, text: str) -> tuple[int, int]:
    if isinstance(span, str):
        count = text.count(span) if span else 0
        if count != 1:
            raise InputError(
                f"the text of {name!r} occurs {count} times" if span else f"the text of {name!r} is empty",
                expected="a part of the text that occurs once",
                got=f"{span!r} in {text[:_SHOWN]!r}{'…' if len(text) > _SHOWN else ''}",
                hint="(start, end) in characters, or a longer part",
            )
        start = text.index(span)
        return start, start + len(span)
    ends = [as_whole(n) for n in span]
    if None in ends or not 0 <= ends[0] < ends[1] <= len(text):  # type: ignore[operator]
        raise InputError(
            f"{name!r} is not a part of the text",
            expected=f"(start, end) in characters, from 0 to {len(text)}",
            got=repr(span),
            hint="(0, 40), or the text itself",
        )
    return ends[0], ends[1]  # type: ignore[return-value]


def _text(seen: Seen, member: int, length: int, memory: bool) -> tuple[str, list[tuple[int, int]]]:
    """The text of an example, and where each of its tokens stands in it."""
    said, given = seen.meta.get("text"), seen.meta.get("spans")
    if isinstance(said, str) and given is not None and len(given) == length and not memory and member == 0:
        return said, [(int(a), int(b)) for a, b in given]
    both = (seen.memory_tokens, seen.tokens) if memory else (seen.tokens, seen.memory_tokens)
    for tokens in both:
        if tokens is not None and member < len(tokens) and len(tokens[member]) == length:
            return _joined(tokens[member])
    raise InputError(
        "characters of the text are not known here",
        expected=f"a text for each of the {length} tokens",
        got="no tokens" if seen.tokens is None else f"{len(seen.tokens[0])} tokens",
        hint="sl.watch(model, tokenizer=tokenizer), seen.tokens = [[…]], or slices of positions",
    )


def _joined(tokens: list[str]) -> tuple[str, list[tuple[int, int]]]:
    """The text that tokens make, and where each stands.

    Pieces that are marked as inner parts of words (##ing) tell that others are words apart.

    >>> _joined(["I", " see"]), _joined(["see", "##ing", "is"])
    (('I see', [(0, 1), (1, 5)]), ('seeing is', [(0, 3), (3, 6), (7, 9)]))
    """
    words = any(token.startswith("##") and len(token) > 2 for token in tokens)
    text, places = "", []
    for token in tokens:
        inner = words and token.startswith("##") and len(token) > 2
        if words and text and not inner:
            text += " "
        start = len(text)
        text += token[2:] if inner else token
        places.append((start, len(text)))
    return text, places
