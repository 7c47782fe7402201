"""Words with several meanings come out different in different contexts: four words in two trained models (S3.5)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sightline.lessons.page import Page
from sightline.models.loading import load
from sightline.plots.canvas import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Homonyms: one word, two vectors"
SOURCES = ("S3.5",)
# Of each word two meanings, six sentences each. The context stands in front: a decoder sees nothing else.
SENTENCES = {
    "bank": {
        "money": (
            "She took her money and went to the bank.",
            "He needed a loan, so he asked the bank.",
            "They opened an account at the bank.",
            "The thief robbed the bank.",
            "I paid the cheque into the bank.",
            "The manager works for a large bank.",
        ),
        "river": (
            "They rowed down the river and rested on the bank.",
            "The water rose and flooded the grassy bank.",
            "We sat fishing on the muddy bank.",
            "The boat drifted to the other bank.",
            "Reeds grew along the bank.",
            "He swam across and climbed the steep bank.",
        ),
    },
    "bat": {
        "animal": (
            "The cave was dark, and out of it flew a bat.",
            "The owl hunted the bat.",
            "At dusk we saw a small brown bat.",
            "A vampire can turn into a bat.",
            "Hanging upside down slept a bat.",
            "In the attic lived a furry bat.",
        ),
        "club": (
            "He hit the ball with a bat.",
            "The player swung the bat.",
            "She bought a glove and a wooden bat.",
            "The pitcher threw and he raised the bat.",
            "The coach gave every boy a new bat.",
            "He broke the window with a baseball bat.",
        ),
    },
    "spring": {
        "season": (
            "The snow melted and it was spring.",
            "Flowers bloom in the spring.",
            "After a long winter came spring.",
            "Birds return every spring.",
            "Easter is in the spring.",
            "We plant the garden in spring.",
        ),
        "coil": (
            "The mattress had a broken spring.",
            "The clock needs a new spring.",
            "He stretched the metal spring.",
            "The toy jumped because of its spring.",
            "The mechanic replaced the rusty spring.",
            "The lock is held by a steel spring.",
        ),
    },
    "match": {
        "fire": (
            "He lit the candle with a match.",
            "The fire was started with a match.",
            "She struck a match.",
            "Be careful when you burn a match.",
            "In the dark he found a match.",
            "The smoker asked for a match.",
        ),
        "sport": (
            "Our team won the match.",
            "They played a tennis match.",
            "The crowd watched the football match.",
            "The referee stopped the match.",
            "He scored twice in the match.",
            "The champion lost the match.",
        ),
    },
}
# `like` says how, or what somebody is fond of. The last of each is the riddle.
LIKE = {
    "how": (
        "She moves like a cat.",
        "He runs like a horse.",
        "The boy swims like a fish.",
        "It shines like a star.",
        "They fought like lions.",
        "Time flies like an arrow.",
    ),
    "fond of": (
        "Most children like a good story.",
        "My parents like the sea.",
        "Cats like a warm place.",
        "Young people like loud music.",
        "Teachers like a quiet class.",
        "Fruit flies like a banana.",
    ),
}
ABOUT = {
    "minilm": "An encoder: every word sees the whole sentence.",
    "smollm2": "A decoder: a word sees only what stands in front of it.",
}
HALVES = 462  # ways to put twelve sentences into two halves
SAME, OTHER = "#d95f02", "#5b6b8c"  # orange: the same meaning


@dataclass(frozen=True)
class Spread:
    """Cosines between sentences of the same meaning, and between those of different ones."""

    same: Tensor
    other: Tensor
    own: int  # sentences that are on average nearer to those of their own meaning
    count: int

    @property
    def overlap(self) -> float:
        """How often two of different meanings are more alike than two of the same: 0 is apart, 0.5 no difference.

        >>> Spread(torch.tensor([0.9, 0.8]), torch.tensor([0.5, 0.85]), 3, 4).overlap
        0.25
        """
        lead = self.other[:, None] - self.same
        return float((1 + lead.sign()).mean()) / 2


def lesson(page: Page) -> None:
    models = {name: load(name)[0] for name in ABOUT}  # a model that is not installed is said before all else
    page.text(
        """The embedding of a word is the same wherever it stands. `bank` can be a house for money or the side of a
        river, and only its context tells. Attention brings the context in, so after some layers the same word should
        have different vectors. Is that so, and how much? We take four such words, each in twelve sentences:"""
    )
    page.table(
        ["word", "meaning", "for example", "sentences"],
        [
            [word, meaning, sentences[0], len(sentences)]
            for word, meanings in SENTENCES.items()
            for meaning, sentences in meanings.items()
        ],
    )
    page.text(
        """How alike two vectors are is the cosine of the angle between them: 1 is the same direction. Two sentences
        never give the same vector, whatever the word means in them, so one number says nothing: we compare **all**
        pairs of the same meaning with **all** pairs of different meanings. Overlap is how often a pair of different
        meanings is more alike than a pair of the same: 0 means two clouds that are apart, 0.5 no difference. And
        each sentence is asked whether it is, on average, nearer to the others of its own meaning: by chance 6 of 12.
        Twelve sentences fall into two halves in 462 ways, and only one of them is by meaning: the last column counts
        how many of the 462 overlap as little. If meaning did nothing, any number up to 462 would come up as often."""
    )
    for name, model in models.items():
        one_model(page, name, model)
    page.heading("What this shows, and what not")
    page.text(conclusion(page.results))


def one_model(page: Page, name: str, model: nn.Module) -> None:
    page.heading(name)
    page.text(ABOUT[name])
    found: dict[str, list[Spread]] = {}
    for word, meanings in SENTENCES.items():
        vectors = states(model, [text for texts in meanings.values() for text in texts], word)
        page.keep(f"{name} {word}", vectors)  # [sentences, layers + 1, width]
        found[word] = [spread(vectors[:, at]) for at in range(vectors.shape[1])]
    layers = len(found["bank"]) - 1
    shown = (0, layers // 2, layers)
    halves = {(word, at): halves_as_good(page.results[f"{name} {word}"][:, at]) for word in found for at in shown}
    page.keep(f"{name} spreads", found)
    page.keep(f"{name} halves", halves)
    page.table(
        ["word", "after layer", "same meaning", "different", "overlap", "nearer to its own", "halves as good"],
        [
            [word, at, _mean(one.same), _mean(one.other), one.overlap, _own(one), halves[word, at]]
            for word, spreads in found.items()
            for at in shown
            for one in [spreads[at]]
        ],
        digits=2,
        caption="Mean cosine of pairs, and its spread (standard deviation). Layer 0 is before the first layer.",
    )
    page.picture(
        lambda: draw(found, shown, name),
        f"{name}: every pair of sentences is a dot. Orange: the same meaning; grey-blue: different ones.",
        width=60,
    )
    syntax(page, name, model)


def syntax(page: Page, name: str, model: nn.Module) -> None:
    """The same for a word whose part of speech is open."""
    vectors = states(model, [text for texts in LIKE.values() for text in texts], "like")
    clear = [i for i in range(12) if i not in (5, 11)]
    how, fond = [i for i in clear if i < 6], [i for i in clear if i > 6]
    rows, told = [], []
    for at in (vectors.shape[1] // 2, vectors.shape[1] - 1):
        known, to = spread(vectors[clear, at]), alike(vectors[:, at], vectors[:, at])

        def lead(i: int, to: Tensor = to) -> float:
            """How much nearer one is to the clear ones of the verb, itself left out."""
            verb, comparison = ([j for j in group if j != i] for group in (fond, how))
            return float(to[i, verb].mean() - to[i, comparison].mean())

        leads = [sum(map(lead, group)) / 5 for group in (how, fond)] + [lead(5), lead(11)]
        rows.append([at, f"{known.own} of {known.count}", known.overlap, *leads])
        told.append(f"After layer {at} {_riddles(*leads)}.")
        page.keep(f"{name} like {at}", (known, leads))
    page.text(
        """Sentences can be open too. In `Time flies like an arrow` the word `like` says how; in
        `Fruit flies like a banana` it is a verb, and looks like the other. Ten clear sentences, five of each, say
        where the two meanings lie; then we ask which of them the two riddles are nearer to."""
    )
    page.table(
        [
            "after layer",
            "clear ones nearer to their own",
            "overlap",
            "clear: how",
            "clear: fond of",
            "Time …",
            "Fruit …",
        ],
        rows,
        digits=3,
        caption="The last four: how much nearer to the verb, above 0, or the comparison, below 0; means of the clear.",
    )
    page.text(" ".join(told) + " These are two sentences: they say what is so, and not what is usual.")


def _riddles(how: float, fond: float, time: float, fruit: float) -> str:
    """Where the riddles lie: with a meaning if they lean there at least a quarter as far as its clear sentences."""
    if not how < 0 < fond:
        return "both kinds of clear ones lean the same way, and nothing can be said of the riddles"
    first, second = (
        "with the comparison" if lead < how / 4 else "with the verb" if lead > fond / 4 else "between the two"
        for lead in (time, fruit)
    )
    return f"both riddles lie {first}" if first == second else f"`Time` lies {first}, and `Fruit` {second}"


def conclusion(results: dict[str, Any]) -> str:
    told = []
    for name in ABOUT:
        spreads: dict[str, list[Spread]] = results[f"{name} spreads"]
        last = len(spreads["bank"]) - 1
        middle = last // 2
        at_middle, at_end = (sum(one[at].overlap for one in spreads.values()) / len(spreads) for at in (middle, last))
        own = sum(one[middle].own for one in spreads.values())
        count = sum(one[middle].count for one in spreads.values())
        told.append(
            f"In {name} {own} of {count} sentences are nearer to their own meaning after layer {middle};"
            f" the overlap is {at_middle:.2f} on average there, and {at_end:.2f} after the last layer."
        )
    return (
        " ".join(told)
        + _moved(results)
        + " But it has not become two words: cosines of different meanings stay high, and some pairs of different"
        " meanings are more alike than some of the same. Beware of the first rows, too: in minilm positions are in the"
        " vectors before the first layer, and where the sentences of one meaning are alike in length, as with `match`,"
        " place alone sets them apart a little."
    )


def _moved(results: dict[str, Any]) -> str:
    """Whether meaning moved the word apart, by the halves that are as good: at most one in twenty."""
    most = {at[0]: 0 for at in results["minilm halves"]}
    for name in ABOUT:
        for (word, layer), count in results[f"{name} halves"].items():
            most[word] = max(most[word], count if layer else 0)
    moved = [word for word, count in most.items() if count <= HALVES / 20]
    if len(moved) < len(most):
        return f" So context moves {', '.join(moved) or 'none of the words'} apart by meaning, and not the others."
    return (
        " So context does move a word apart by its meaning, in all four words and in both models: of"
        f" {HALVES} halves of the sentences at most {max(most.values())} overlap as little as the two meanings, in all"
        " rows but those before the first layer."
    )


def spread(vectors: Tensor) -> Spread:
    """Of vectors of which the first half has one meaning and the second half another."""
    table = alike(vectors, vectors)
    count = len(vectors)
    meaning = torch.arange(count) >= count // 2
    same, pairs = meaning[:, None] == meaning, torch.ones(count, count, dtype=torch.bool).triu(1)
    others = ~torch.eye(count, dtype=torch.bool)
    own = sum(int(table[i, same[i] & others[i]].mean() > table[i, ~same[i]].mean()) for i in range(count))
    return Spread(table[same & pairs], table[~same & pairs], own, count)


def halves_as_good(vectors: Tensor) -> int:
    """In how many of all ways to put vectors into two halves the halves overlap as little as the first and the second.

    >>> halves_as_good(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.1, 0.9], [0.0, 1.0]]))
    1
    """
    count = len(vectors)
    one, other = torch.triu_indices(count, count, 1)
    cosines = alike(vectors, vectors)[one, other]
    above = (1 + (cosines[:, None] - cosines).sign()) / 2  # [pairs, pairs]
    # The first vector is always in the first half; the ways begin with the one that is given.
    chosen = torch.tensor([(0, *rest) for rest in itertools.combinations(range(1, count), count // 2 - 1)])
    halves = torch.zeros(len(chosen), count, dtype=torch.bool).scatter(1, chosen, True)
    same = (halves[:, one] == halves[:, other]).to(above.dtype)
    overlaps = ((1 - same) @ above * same).sum(1) / ((1 - same).sum(1) * same.sum(1))
    return int((overlaps <= overlaps[0] + 1e-9).sum())


def draw(found: dict[str, list[Spread]], layers: Sequence[int], name: str) -> Figure:
    """Every pair as a dot: words side by side, layers as panels."""
    figure = new_figure(8.4, 3.4)
    shift = torch.linspace(-0.13, 0.13, 36).tolist()
    for axes, at in zip(figure.subplots(1, len(layers), sharey=True), layers, strict=True):
        for place, spreads in enumerate(found.values()):
            for side, (values, colour) in enumerate(((spreads[at].same, SAME), (spreads[at].other, OTHER))):
                x = [place + 0.36 * side - 0.18 + shift[i * 7 % 36] for i in range(len(values))]
                axes.plot(x, values.tolist(), ".", color=colour, markersize=3.2, alpha=0.7, markeredgewidth=0)
                middle = float(values.mean())
                axes.plot([place + 0.36 * side - 0.34, place + 0.36 * side - 0.02], [middle] * 2, color=colour)
        axes.set_xticks(range(len(found)), list(found))
        axes.set_title(f"{name}, before the first layer" if at == 0 else f"after layer {at}")
    figure.axes[0].set_ylabel("cosine of two sentences' vectors")
    return figure


def states(model: Any, texts: Sequence[str], word: str) -> Tensor:
    """The vectors of a word in some texts before the first layer and after each, `[texts, layers + 1, width]`."""
    stack: Any = getattr(model, "encoder", None) or model.decoder
    batch = model.batch(list(texts))
    places = [tokens.index(word) for tokens in batch.tokens]
    seen: list[Tensor] = []

    def before(module: nn.Module, given: tuple) -> None:
        seen.append(given[0])

    def after(module: nn.Module, given: tuple, out: Tensor) -> None:
        seen.append(out)

    layers = list(stack.layers)
    hooks = [layers[0].register_forward_pre_hook(before), *(layer.register_forward_hook(after) for layer in layers)]
    try:
        with torch.no_grad():
            model(batch.ids, padding=batch.padding)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([x[torch.arange(len(texts)), places] for x in seen], 1).double()


def alike(one: Tensor, other: Tensor) -> Tensor:
    """Cosines between the rows of two matrices."""
    return nn.functional.normalize(one, dim=-1) @ nn.functional.normalize(other, dim=-1).T


def _own(one: Spread) -> str:
    return f"{one.own} of {one.count}" if float(one.other.min()) < 1 - 1e-9 else "all the same"


def _mean(values: Tensor) -> str:
    return f"{float(values.mean()):.2f} ± {float(values.std()):.2f}"
