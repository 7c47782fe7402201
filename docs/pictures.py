"""The pictures of the documentation, made by the library itself from a trained model.

    python docs/pictures.py

All of them are of minilm on one sentence, but the pictures of a long map, which are of SmolLM2 on Python's own help, and
the readings of one row, which are of SmolLM2 on a sentence with two names.
"""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch

import sightline as sl
import sightline.plots as plots
from sightline.files import write_whole
from sightline.plots.canvas import COLOURS, FAINT, MARK, new_figure, style, ticks

IMAGES = Path(__file__).parent / "images"
SENTENCE = "The kids were scared of the lions, so they left right away."
LAYER, HEAD = 3, 1


def main() -> None:
    model, tokenizer = sl.models.load("minilm")
    encoding = tokenizer.encode(SENTENCE)
    with torch.no_grad(), sl.watch(model, keep_qk=True) as seen:
        model(torch.tensor([encoding.ids]))
    sight, tokens = seen[LAYER], encoding.tokens
    weights = sight.tile(slice(None), slice(None))[0]
    save(plots.map(weights, tokens, head=HEAD, title=f"layer {LAYER}, head {HEAD}"), "kids-map.svg")
    save(margins(sight, tokens), "meaning-margins.svg")
    save(strongest(sight, tokens), "meaning-top.svg")
    save(rollout(seen, tokens), "meaning-rollout.svg")
    save(plots.portraits(numbered(seen), measures=("entropy", "distance", "previous")), "meaning-portraits.svg")
    save(masks(), "meaning-masks.svg")
    save(reductions(), "meaning-reduce.png")
    save(readings(), "meaning-readings.svg")


def save(figure: Any, name: str) -> None:
    """Whole or not at all, and the same bytes every time."""
    dates = {"Date": None} if name.endswith(".svg") else {}

    def draw(path: Path) -> None:
        with style():
            figure.savefig(path, format=name.rpartition(".")[2], dpi=130, metadata=dates)

    IMAGES.mkdir(exist_ok=True)
    write_whole(IMAGES / name, draw)


def margins(sight: sl.Sight, tokens: list[str]) -> Any:
    """A map with what is said of its rows at the right, and of its columns below."""
    weights = sight.tile(slice(None), slice(None))[0, HEAD].numpy()
    count = len(tokens)
    with style():
        figure = new_figure(9.2, 6.2)
        grid = figure.add_gridspec(2, 4, width_ratios=(3.4, 1, 1, 1), height_ratios=(3.4, 1))
        centre = figure.add_subplot(grid[0, 0])
        centre.imshow(weights, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
        ticks(centre, "x", tokens, count)
        ticks(centre, "y", tokens, count)
        centre.tick_params(axis="x", labelrotation=90)
        centre.set_ylabel("query: the word that reads")
        centre.set_title("weight", loc="left")
        rows = {
            "entropy": (sight.entropy, "nats: how many\nkeys share it"),
            "distance": (sight.distance, "tokens: how far\naway it looks"),
            "max_score": (sight.max_score, "before softmax:\nhow sure it is"),
        }
        for place, (name, (values, says)) in enumerate(rows.items(), start=1):
            side = figure.add_subplot(grid[0, place], sharey=centre)
            side.barh(range(count), values[0, HEAD].numpy(), color=MARK, height=0.7)
            side.set_title(name, loc="left")
            side.set_xlabel(says, fontsize=8)
            bare(side)
            side.tick_params(axis="y", left=False, labelleft=False)
        below = figure.add_subplot(grid[1, 0], sharex=centre)
        below.bar(range(count), sight.received()[0, HEAD].numpy(), color=MARK, width=0.7)
        below.set_ylabel("received")
        below.set_xlabel("key: the word that is read")
        below.tick_params(axis="x", labelbottom=False)
        bare(below)
    return figure


def bare(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(color=FAINT, alpha=0.25, linewidth=0.5)
    axes.set_axisbelow(True)


def strongest(sight: sl.Sight, tokens: list[str]) -> Any:
    """The strongest keys of every query as lines from the words above to the words below."""
    top = sight.top(2)
    with style():
        figure = new_figure(9.2, 2.6)
        axes = figure.subplots()
        for query in range(len(tokens)):
            pairs = zip(top.keys[0, HEAD, query].tolist(), top.weights[0, HEAD, query].tolist())
            for key, weight in pairs:
                axes.plot([query, key], [1, 0], color="#0072b2", alpha=min(1.0, weight + 0.05), linewidth=2.5 * weight)
        for place, word in enumerate(tokens):
            axes.text(place, 1.04, word, rotation=45, ha="left", va="bottom", fontsize=8)
            axes.text(place, -0.04, word, rotation=45, ha="right", va="top", fontsize=8)
        axes.text(-1.2, 1, "query", ha="right", va="center", color=FAINT)
        axes.text(-1.2, 0, "key", ha="right", va="center", color=FAINT)
        axes.set_xlim(-2.2, len(tokens) + 0.5)
        axes.set_ylim(-0.45, 1.45)
        axes.set_axis_off()
    return figure


def rollout(seen: Any, tokens: list[str]) -> Any:
    """What fed a word through all layers, beside what one head of one layer shows."""
    they = tokens.index("they")
    with style():
        figure = new_figure(9.2, 2.6)
        axes = figure.subplots()
        axes.bar(range(len(tokens)), seen.rollout(query=they)[0].numpy(), color=MARK, width=0.7)
        ticks(axes, "x", tokens, len(tokens))
        axes.tick_params(axis="x", labelrotation=45)
        axes.set_ylabel("share")
        axes.set_title("rollout: what fed “they” through all six layers", loc="left")
        bare(axes)
    return figure


def numbered(seen: Any) -> list[dict]:
    """Portraits with the number of the layer instead of its path, which is too long for an axis."""
    numbers = {name: index for index, name in enumerate(seen.layers)}
    return [{**p._asdict(), "layer": numbers[p.layer]} for p in seen.portraits()]


def masks() -> Any:
    """Rules, drawn: light is "may attend"."""
    ids = torch.arange(16) // 6
    rules = {
        "causal()": sl.causal(),
        "window(3)": sl.window(3),
        "window(3, 3)": sl.window(3, 3),
        "prefix(4)": sl.prefix(4),
        "documents(ids)": sl.documents(ids),
        "padding([11])": sl.padding(torch.tensor(11)),
        "causal() & (window(3) | padding([2]))": sl.causal() & (sl.window(3) | sl.padding(torch.tensor(2))),
        "causal(), fewer queries": sl.causal(),
    }
    with style():
        figure = new_figure(9.2, 4.8)
        panels = figure.subplots(2, 4)
        for axes, (name, rule) in zip(panels.flat, rules.items()):
            table = rule.to_dense(8 if "fewer" in name else 16, 16).numpy().reshape(-1, 16)
            axes.imshow(table, cmap=COLOURS, vmin=-0.1, vmax=1.15)
            axes.set_title(name, loc="left", fontsize=8)
            axes.set_xticks(np.arange(17) - 0.5, labels=[])
            axes.set_yticks(np.arange(len(table) + 1) - 0.5, labels=[])
            axes.grid(color="white", alpha=0.25, linewidth=0.5)
            axes.tick_params(length=0)
        panels[0, 0].set_ylabel("query")
        panels[1, 0].set_ylabel("query")
        for axes in panels[1]:
            axes.set_xlabel("key")
    return figure


def reductions() -> Any:
    """One long map, its cells joined into pixels by their mean and by their maximum; and a part of it, exact."""
    model, tokenizer = sl.models.load("smollm2")
    ids = tokenizer.encode("\n".join(topics[name] for name in sorted(topics))[:9000]).ids[:1536]
    with torch.inference_mode(), sl.watch(model, layers=[4], keep_qk=True) as seen:
        model(torch.tensor([ids]))
    sight, head = seen[0], 5
    shown = {
        'picture(reduce="mean")': sight.picture(size=(192, 192)),
        'picture(reduce="max")': sight.picture(size=(192, 192), reduce="max"),
        "tile(960:1056, 864:960)": sight.tile(slice(960, 1056), slice(864, 960)),
    }
    with style():
        figure = new_figure(9.2, 3.3)
        for axes, (name, values) in zip(figure.subplots(1, 3), shown.items()):
            picture = values[0, head].numpy()
            axes.imshow(np.log10(picture + 1e-6), cmap=COLOURS, vmin=-5, vmax=0, interpolation="nearest")
            axes.set_title(name, loc="left")
            axes.set_xticks([])
            axes.set_yticks([])
    return figure


def readings() -> Any:
    """Four readings of one row: what the last word looks at, what it carries from there, and what mattered."""
    model, tokenizer = sl.models.load("smollm2")
    encoding = tokenizer.encode("When Mary and John went to the store, John gave a drink to")
    mary, john = (tokenizer.encode(name).ids[0] for name in (" Mary", " John"))
    with sl.watch(model, influence=True, keep_qk=True) as seen:
        seen.backward(sl.targets.logit(mary, than=john)(model(torch.tensor([encoding.ids]))))
    says = {
        "weights": "looked at",
        "norms": "carried",
        "influence": "mattered: raises Mary over John",
        "pull": "would matter: more weight here, less on all else",
    }
    words = [token.replace("Ġ", "") for token in encoding.tokens]
    with style():
        figure = new_figure(9.2, 6.4)
        for axes, (of, meaning) in zip(figure.subplots(4, 1, sharex=True), says.items()):
            row = seen[23].tile(-1, slice(None), of=of)[0, 3, 0].numpy()
            axes.bar(range(len(words)), row, color=[MARK if x >= 0 else "#d55e00" for x in row], width=0.7)
            axes.axhline(0, color=FAINT, linewidth=0.8)
            axes.set_title(f"{of}: {meaning}", loc="left", fontsize=9)
            axes.tick_params(axis="x", bottom=False, labelbottom=of == "pull")
            bare(axes)
        ticks(axes, "x", words, len(words))
        axes.set_xlabel("key; the query is the last word")
    return figure


if __name__ == "__main__":
    main()
