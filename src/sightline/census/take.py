"""All heads of a language model: their measures, what they do for its loss, and the loss without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sightline.census.measures import MEASURES, retrieval
from sightline.editing import edit, effects
from sightline.editing.progress import progress
from sightline.errors import InputError
from sightline.targets import loss
from sightline.watching import watch

# Tokens of a random sequence that is shown twice, and of a text.
_HALF, _LONGEST = 25, 256
# What is written of a needle, and where it is hidden.
_WRITTEN = 8
_REMOVED = (0, 1, 2, 4, 8, 16, 32, 64)
RANDOM = 3  # rankings by lot


@dataclass
class Census:
    """What the heads of a model are: `table[measure]` is `[layers, heads]`, `curves[ranking]` loss by heads removed.

    `influence` and `effect` say how much the loss rises without a head: at first order, and exactly.
    """

    layers: list[str]
    table: dict[str, Tensor] = field(default_factory=dict)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    loss: float = float("nan")
    complete: bool = True

    def ranked(self, measure: str) -> list[tuple[int, int]]:
        """(layer, head) pairs, the largest first; those that were not measured are left out."""
        values = self.table[measure]
        order = values.nan_to_num(-torch.inf).flatten().argsort(descending=True, stable=True).tolist()
        pairs = [divmod(i, values.shape[1]) for i in order]
        return [pair for pair in pairs if not bool(values[pair].isnan())]

    def as_json(self) -> dict[str, Any]:
        """Plain numbers: what was not measured is null."""
        heads = []
        width = next(iter(self.table.values())).shape[1] if self.table else 0
        for layer, name in enumerate(self.layers):
            for head in range(width):
                numbers = {key: float(values[layer, head]) for key, values in self.table.items()}
                record = {key: value if value == value else None for key, value in numbers.items()}
                if any(value is not None for value in record.values()):
                    heads.append({"layer": layer, "name": name, "head": head} | record)
        return {"loss": self.loss, "complete": self.complete, "heads": heads, "curves": self.curves}


def census(model: nn.Module, ids: Sequence[Any], *, vocabulary: int, generate: Any = None, seed: int = 0) -> Census:
    """Measure every head of a causal language model.

    Args:
        model: called with ids `[batch, tokens]`, it gives logits, or an output that has them.
        ids: the ids of some texts, each a list.
        vocabulary: how many tokens there are; of these a random sequence is made that is shown twice.
        generate: `generate(prompt ids, count) -> new ids`, for retrieval: what the model writes after a text in which
            a needle is hidden; the likeliest token each time, by running the model, if not given.
        seed: of the random sequence and rankings.

    An interrupt (Ctrl-C) ends it early: what was measured is returned, with `complete = False`.
    """
    texts = [torch.as_tensor(one, dtype=torch.long)[:_LONGEST] for one in ids]
    texts = [one for one in texts if len(one) > 1]
    if not texts:
        raise InputError(
            "there is no text to measure heads on", expected="two tokens or more", got="none", hint="--texts FILE"
        )
    found = Census([])
    work = _Work(model, texts, vocabulary, generate, seed, found)
    steps = (work.patterns, work.retrieval, work.effects, work.curves)
    try:
        with progress("census", len(steps)) as step:
            for one in steps:
                one()
                step()
    except KeyboardInterrupt:
        found.complete = False
    return found


class _Work:
    """One census."""

    def __init__(
        self, model: nn.Module, texts: list[Tensor], vocabulary: int, generate: Any, seed: int, found: Census
    ) -> None:
        self.model, self.texts, self.vocabulary, self.found = model, texts, vocabulary, found
        self.draw = torch.Generator().manual_seed(seed)
        self.generate = generate or self._likeliest
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def run(self, ids: Tensor) -> Any:
        return self.model(ids[None].to(self.device))

    def maps(self, ids: Tensor) -> list[Tensor]:
        """The map of every layer, `[heads, queries, keys]`."""
        with torch.no_grad(), watch(self.model, keep_qk=True, stats=()) as seen:
            self.run(ids)
        names = [name for name in seen.layers if seen.kind(name) == "self"]
        self.found.layers = self.found.layers or names
        whole = slice(0, len(ids))
        return [seen[name].tile(whole, whole)[0] for name in names]

    def patterns(self) -> None:
        """What heads look at: in the texts, and for repeats in a random sequence that is shown twice."""
        once = torch.randint(0, self.vocabulary, (_HALF,), generator=self.draw)
        twice = torch.cat([once, once])
        repeated = self.maps(twice)
        in_texts = [(self.maps(one), one) for one in self.texts]
        for measure in MEASURES:
            if measure.name in ("induction", "duplicate"):
                rows = [measure.of(maps, twice) for maps in repeated]
            else:
                each = [torch.stack([measure.of(m, one) for m in maps]) for maps, one in in_texts]
                rows = list(torch.stack(each).nanmean(0))
            self.found.table[measure.name] = _table(rows)

    def retrieval(self) -> None:
        """A needle, hidden in a text, which the model is then made to write."""
        hay = torch.cat(self.texts)[:_LONGEST]
        needle = torch.randint(0, self.vocabulary, (_WRITTEN,), generator=self.draw)
        middle = len(hay) // 2
        prompt = torch.cat([hay[:middle], needle, hay[middle:], needle[:1]])
        written = torch.as_tensor(self.generate(prompt, _WRITTEN - 1), dtype=torch.long)
        ids = torch.cat([prompt, written])
        places = range(middle, middle + _WRITTEN), range(len(prompt), len(ids))
        self.found.table["retrieval"] = _table([retrieval(maps, ids, *places) for maps in self.maps(ids)])

    def _likeliest(self, prompt: Tensor, count: int) -> Tensor:
        ids = prompt
        with torch.no_grad():
            for _ in range(count):
                ids = torch.cat([ids, logits_of(self.run(ids))[0, -1:].argmax(-1).cpu()])
        return ids[len(prompt) :]

    def effects(self) -> None:
        """How much the loss rises without each head, over the texts."""
        exact, first = [], []
        for one in self.texts:
            found = effects(self.model, one[None].to(self.device), _loss(one))
            exact.append(-found.exact[0])
            first.append(-found.influence[0])
        self.found.table["influence"] = torch.stack(first).mean(0)
        self.found.table["effect"] = torch.stack(exact).mean(0)

    def curves(self) -> None:
        """The loss with more and more heads removed, in the order of each measure, and by lot."""
        rankings = {name: self.found.ranked(name) for name in self.found.table}
        heads = self.found.ranked("effect")
        for i in range(RANDOM):
            order = torch.randperm(len(heads), generator=self.draw).tolist()
            rankings[f"random {i + 1}"] = [heads[j] for j in order]
        counts = [n for n in _REMOVED if n < len(heads)]
        self.found.loss = self.mean_loss([])
        for name, ranking in rankings.items():
            points = [(n, self.mean_loss(ranking[:n]) if n else self.found.loss) for n in counts]
            self.found.curves[name] = points

    def mean_loss(self, removed: list[tuple[int, int]]) -> float:
        """The mean loss of all tokens but the first of each text."""
        total = count = 0.0
        with torch.no_grad(), edit(self.model) as edits:
            if removed:
                edits.ablate(heads=removed)
            for one in self.texts:
                total += float(_loss(one)(self.run(one))) * (len(one) - 1)
                count += len(one) - 1
        return total / count


def logits_of(output: Any) -> Tensor:
    """The logits of an output: itself, or what it calls so."""
    found: Tensor = output if isinstance(output, Tensor) else output.logits
    return found


def _loss(ids: Tensor) -> Any:
    return loss(ids[1:], at=1)


def _table(rows: list[Tensor]) -> Tensor:
    """Layers of different numbers of heads as one table, NaN where there is none."""
    width = max(len(row) for row in rows)
    found = torch.full((len(rows), width), torch.nan, dtype=torch.float64)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row.double().cpu()
    return found
