"""Where the patches of a picture look: a small vision transformer that has learnt that pictures are symmetric.

Every picture here is made here: random colours, mirrored left to right. Some of its patches are hidden, and a small
encoder (16 x 16 pixels a patch would be a ViT; here it is 8 x 8) has to say what was there. The one way to know is to
look at the mirror image, and nobody tells it where that is. After a short training, less than half a minute, the
attention of a hidden patch is drawn over the picture, head by head.

    python examples/patches.py --out patches.png

The model and its training are short: src/sightline/lessons/images.py, which `sightline lesson images` gives with words.

These are toy pictures and toy weights: they show how to look, not how a large vision model sees.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from sightline import plots
from sightline.lessons.images import COLUMNS, QUERY, ROWS, Vision, look, patches, pictures, train

__all__ = ["Vision", "look", "patches", "pictures", "train"]


def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=Path("patches.png"), help="a .png, .svg or .pdf file")
    options.add_argument("--steps", type=int, default=400, help="of training")
    chosen = options.parse_args(arguments)
    image = pictures(1, torch.Generator().manual_seed(1234))[0]  # not one of those it learns from
    twin = QUERY[0], COLUMNS - 1 - QUERY[1]
    before = look(Vision().eval(), image)
    model, error = train(chosen.steps)
    weights = look(model, image)
    title = f"A hidden patch, and where each head looks for it after {chosen.steps} steps"
    plots.save(plots.on_image(image.permute(1, 2, 0), weights, query=QUERY, title=title), chosen.out)
    print(f"error on hidden patches: {error:.2f} of their variance")
    for name, maps in (("untrained", before), ("trained", weights)):
        shares = ", ".join(f"{share:.2f}" for share in maps[:, twin[0], twin[1]].tolist())
        print(f"{name}: the mirror image of the hidden patch gets {shares} of the attention of the heads")
    print(f"equal shares would be {1 / (ROWS * COLUMNS):.3f}; drawn in {chosen.out}")


if __name__ == "__main__":
    main()
