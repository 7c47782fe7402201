"""Which heads of two trained models follow a reference: hits of every head, as the lesson `kids-and-lions` counts them.

python benchmarks/references.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import harness
import torch

from sightline.lessons.references import LINKS, NOUNS, VERBS, Found, search, together
from sightline.models import load

MODELS = {"minilm": "all-MiniLM-L6-v2", "smollm2": "SmolLM2-135M-Instruct, 4-bit weights"}


def row(name: str, so: Found, because: Found) -> dict:
    """One model: its best heads, what chance gives, and the hits of every head with every verb."""
    layers, heads = so.rates.shape
    return {
        "name": name,
        "model": MODELS[name],
        "heads": layers * heads,
        "verbs": [" / ".join(verbs[:2]) for verbs in VERBS],
        "nouns": [" and ".join(nouns) for nouns in NOUNS],
        "sentences_of_a_verb": so.count // len(VERBS),
        "so": counts(so) | {"all": every(so)},
        "because": counts(because) | {"all": every(because)},
        "both": counts(together(so, because)),
    }


def counts(found: Found) -> dict:
    """The best heads, and what chance gives to the best."""
    expected, probability = found.by_chance()
    return {
        "pairs": found.count // 2,
        "sentences": found.count,
        "best": [
            {
                "layer": layer,
                "head": head,
                "hits": round(found.count * float(found.rates[layer, head])),
                "first": round(found.count * float(found.first[layer, head])),
                "weight_right": round(float(found.weights[0, layer, head]), 4),
                "weight_other": round(float(found.weights[1, layer, head]), 4),
            }
            for layer, head in found.best(4)
        ],
        "best_by_chance": round(expected, 4),
        "probability": round(probability, 6),
        "held_out": [[layer, head, round(share, 4)] for layer, head, share in found.held_out()],
    }


def every(found: Found) -> list[str]:
    """Of each layer and head: how often the first noun got more than the second; hits with each verb."""
    each = found.count // len(VERBS)
    first, hits = (found.count * found.first).round().int(), (each * found.right).round().int()
    layers, heads = first.shape
    return [
        " ".join(map(str, (i, h, int(first[i, h]), *hits[:, i, h].tolist())))
        for i in range(layers)
        for h in range(heads)
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, help="folder for the results")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in MODELS:
        model = load(name)[0]
        rows.append(row(name, *(search(model, link=link) for link in LINKS)))
    print(harness.write("references", rows, chosen.out))


if __name__ == "__main__":
    main()
