"""Which heads of two trained models follow a reference: hits of every head, as the lesson `kids-and-lions` counts them.

python benchmarks/references.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import harness
import torch

from sightline.lessons.references import NOUNS, VERBS, Found, search
from sightline.models import load

MODELS = {"minilm": "all-MiniLM-L6-v2", "smollm2": "SmolLM2-135M-Instruct, 4-bit weights"}


def row(name: str, found: Found) -> dict:
    """One model: its best heads, what chance gives, and the hits of every head with every verb."""
    each = found.count // len(VERBS)
    layers, heads = found.rates.shape
    expected, probability = found.by_chance()
    return {
        "name": name,
        "model": MODELS[name],
        "pairs": found.count // 2,
        "sentences": found.count,
        "heads": layers * heads,
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
        "verbs": [" / ".join(verbs[:2]) for verbs in VERBS],
        "nouns": [" and ".join(nouns) for nouns in NOUNS],
        "sentences_of_a_verb": each,
        # Layer and head; how often the first noun got more than the second; hits with each verb.
        "all": [
            " ".join(
                map(
                    str,
                    (
                        i,
                        h,
                        round(found.count * float(found.first[i, h])),
                        *(each * found.right[:, i, h]).int().tolist(),
                    ),
                )
            )
            for i in range(layers)
            for h in range(heads)
        ],
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, help="folder for the results")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    print(harness.write("references", [row(name, search(load(name)[0])) for name in MODELS], chosen.out))


if __name__ == "__main__":
    main()
