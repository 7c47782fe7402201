"""All heads of a language model: their measures, what they do for its loss, and the loss without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sightline.editing import edit
from sightline.editing.head_effects import Effects, sweep
from sightline.editing.progress import progress
from sightline.errors import InputError
from sightline.targets import loss
from sightline.watching import watch
from sightline.watching.read.measures import LOWERS, OF_MAPS, retrieval

# Tokens of a random sequence that is shown twice, and of a text.
_HALF, _LONGEST = 25, 256
# What is written of a needle, and where it is hidden.
_WRITTEN = 8
_REMOVED = (0, 1, 2, 4, 8, 16, 32, 64)
RANDOM = 3  # rankings by lot
# Tokens of all variants of a text that are run together: their logits are in memory at once.
_TOGETHER = 1024


@dataclass
class Census:
    """What the heads of a model are: `table[measure]` is `[layers, heads]`, `curves[ranking]` loss by heads removed.

    `influence` and `effect` say how much a head raises the loss, at first order and exactly: below 0 it lowers it.
    `each[measure]` has what was measured text by text, `[texts, layers, heads]`. What was not measured is NaN.
    """

    layers: list[str]
    table: dict[str, Tensor] = field(default_factory=dict)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    loss: float = float("nan")
    complete: bool = True
    each: dict[str, Tensor] = field(default_factory=dict)

    def ranked(self, measure: str) -> list[tuple[int, int]]:
        """(layer, head) pairs, the largest first; of influence and effect those first that lower the loss most.

        Those that were not measured are left out.
        """
        values = self.table[measure] * (-1 if measure in LOWERS else 1)
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
        whole = self.loss if self.loss == self.loss else None
        return {"loss": whole, "complete": self.complete, "heads": heads, "curves": self.curves}


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
    try:
        work.patterns()
        with progress("census", work.steps) as step:
            work.step = step
            for one in (work.retrieval, work.effects, work.curves):
                one()
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
        self.step: Callable[[], None] = lambda: None

    @property
    def steps(self) -> int:
        """How often `step` is called: about as often for the same work."""
        return 1 + len(self.texts) * len(self.found.layers) + len(self.batches())

    def told(self) -> Callable[[int, int], None]:
        """To be told how many heads of a text are done, and of how many: a step for each layer."""
        gone = 0

        def told(done: int, total: int) -> None:
            nonlocal gone
            while gone * total < done * len(self.found.layers):
                gone += 1
                self.step()

        return told

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
        repeated, in_texts = [(self.maps(twice), twice)], [(self.maps(one), one) for one in self.texts]
        for name, of in OF_MAPS.items():
            runs = repeated if name in ("induction", "duplicate") else in_texts
            self.keep(name, torch.stack([_table([of(m, ids) for m in maps]) for maps, ids in runs]))

    def keep(self, name: str, each: Tensor, weights: Tensor | None = None) -> None:
        """Keep what was measured text by text, and its mean."""
        self.found.each[name] = each
        if weights is None:
            self.found.table[name] = each.nanmean(0)
        else:
            self.found.table[name] = (each * weights.view(-1, 1, 1)).sum(0) / weights.sum()

    def retrieval(self) -> None:
        """A needle, hidden in a text, which the model is then made to write."""
        hay = torch.cat(self.texts)[:_LONGEST]
        needle = torch.randint(0, self.vocabulary, (_WRITTEN,), generator=self.draw)
        middle = len(hay) // 2
        prompt = torch.cat([hay[:middle], needle, hay[middle:], needle[:1]])
        written = torch.as_tensor(self.generate(prompt, _WRITTEN - 1), dtype=torch.long)
        ids = torch.cat([prompt, written])
        places = range(middle, middle + _WRITTEN), range(len(prompt), len(ids))
        self.keep("retrieval", _table([retrieval(maps, ids, *places) for maps in self.maps(ids)])[None])
        self.step()

    def _likeliest(self, prompt: Tensor, count: int) -> Tensor:
        ids = prompt
        with torch.no_grad():
            for _ in range(count):
                ids = torch.cat([ids, logits_of(self.run(ids))[0, -1:].argmax(-1).cpu()])
        return ids[len(prompt) :]

    def effects(self) -> None:
        """How much each head raises the loss, over all texts; if interrupted, what there is until then."""
        done: list[Effects] = []
        try:
            for one in self.texts:
                inputs = one[None].to(self.device)
                done.append(sweep(self.model, inputs, _loss(one), told=self.told()))
        except KeyboardInterrupt as interrupt:
            begun = getattr(interrupt, "effects", None)
            if begun is not None and not done:
                done.append(begun)
            raise
        finally:
            if done:
                tokens = torch.tensor([len(one) - 1.0 for one in self.texts[: len(done)]], dtype=torch.float64)
                self.keep("influence", torch.stack([found.influence[0] for found in done]), tokens)
                self.keep("effect", torch.stack([found.exact[0] for found in done]), tokens)
                base = torch.stack([found.baseline[0] for found in done])
                self.found.loss = float((base * tokens).sum() / tokens.sum())

    def batches(self) -> list[tuple[int, int]]:
        """From which variant to which they are run together: as many as one more text of this length allows."""
        count = (len(OF_MAPS) + 3 + RANDOM) * sum(n > 0 for n in _REMOVED)
        most = max(1, _TOGETHER // max(len(one) for one in self.texts))
        return [(start, min(start + most, count)) for start in range(0, count, most)]

    def curves(self) -> None:
        """The loss with more and more heads removed, in the order of each measure, and by lot."""
        rankings = {name: self._order(name) for name in self.found.table}
        heads = self.found.ranked("effect")
        for i in range(RANDOM):
            order = torch.randperm(len(heads), generator=self.draw).tolist()
            rankings[f"random {i + 1}"] = [heads[j] for j in order]
        variants = [(name, n) for name in rankings for n in _REMOVED if 0 < n < len(heads)]
        for start, stop in self.batches():
            some = variants[start:stop]
            for (name, n), y in zip(some, self.losses([rankings[name][:n] for name, n in some])):
                self.found.curves.setdefault(name, [(0, self.found.loss)]).append((n, y))
            self.step()

    def _order(self, name: str) -> list[tuple[int, int]]:
        """Heads as `ranked` has them, those of equal value by lot: many retrieve nothing, and these are no ranking."""
        pairs, values = self.found.ranked(name), self.found.table[name]
        drawn = [pairs[i] for i in torch.randperm(len(pairs), generator=self.draw).tolist()]
        return sorted(drawn, key=lambda pair: float(values[pair]) * (1 if name in LOWERS else -1))

    def losses(self, removed: list[list[tuple[int, int]]]) -> list[float]:
        """The mean loss of all tokens but the first of each text, without some heads: every variant in its own row."""
        total, count = torch.zeros(len(removed), dtype=torch.float64), 0
        with torch.no_grad(), edit(self.model) as edits:
            for i, heads in enumerate(removed):
                edits.ablate(heads=heads, examples=i)
            for one in self.texts if removed else ():
                logits = logits_of(self.model(one.to(self.device).expand(len(removed), -1)))
                for i in range(len(removed)):
                    total[i] += float(_loss(one)(logits[i : i + 1])) * (len(one) - 1)
                count += len(one) - 1
        return (total / max(count, 1)).tolist()


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
