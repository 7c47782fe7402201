"""Where the patches of a picture look: a small vision transformer that has learnt that pictures are symmetric.

Every picture here is made here: random colours, mirrored left to right. Some of its patches are hidden, and a small
encoder (16 x 16 pixels a patch would be a ViT; here it is 8 x 8) has to say what was there. The one way to know is to
look at the mirror image, and nobody tells it where that is. After a short training, less than half a minute, the
attention of a hidden patch is drawn over the picture, head by head.

    python examples/patches.py --out patches.png

These are toy pictures and toy weights: they show how to look, not how a large vision model sees.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sightline as sl
from sightline import plots
from sightline.watching import watch

ROWS = COLUMNS = 8  # patches
PATCH = 8  # pixels
HIDDEN = 0.25  # the share of patches that is hidden
QUERY = (2, 1)  # the patch that is drawn


def pictures(count: int, generator: torch.Generator) -> Tensor:
    """Random pictures that are their own mirror images, `[count, 3, 64, 64]`, numbers from 0 to 1."""
    coarse = torch.rand(count, 3, 2 * ROWS, 2 * COLUMNS, generator=generator)
    fine = F.interpolate(coarse, scale_factor=PATCH // 2, mode="bilinear", align_corners=False)
    left = fine[..., : COLUMNS * PATCH // 2]
    return torch.cat((left, left.flip(-1)), dim=-1)


def patches(images: Tensor) -> Tensor:
    """Pictures as sequences of patches, row after row, around 0: `[count, 64, 192]`. A channel is only depth (S0.2)."""
    return 4 * F.unfold(images - 0.5, kernel_size=PATCH, stride=PATCH).transpose(1, 2)


class Vision(nn.Module):
    """A vision transformer in small: patches in, patches out, everyone sees everyone."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        depth = 3 * PATCH * PATCH
        self.embed = nn.Linear(depth, width)
        self.unknown = nn.Parameter(torch.zeros(width))  # stands where a patch is hidden
        self.encoder = sl.nn.Encoder(
            width, heads, layers=1, positions=sl.positions.Grid(width, ROWS, COLUMNS, base=100)
        )
        self.readout = nn.Linear(width, depth)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        tokens = torch.where(hidden[..., None], self.unknown, self.embed(x))  # [batch, patches, width]
        out: Tensor = self.readout(self.encoder(tokens))
        return out


def train(steps: int, seed: int = 0) -> tuple[Vision, float]:
    """A model that restores hidden patches, and its squared error on them as a share of their variance."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Vision()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    for _ in range(steps):
        x = patches(pictures(32, generator))
        hidden = torch.rand(x.shape[:2], generator=generator) < HIDDEN
        loss = F.mse_loss(model(x, hidden)[hidden], x[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval(), loss.item() / x.var().item()


def look(model: Vision, image: Tensor) -> Tensor:
    """The attention of the hidden patch QUERY, head by head: `[heads, ROWS, COLUMNS]`."""
    query = QUERY[0] * COLUMNS + QUERY[1]
    hidden = torch.zeros(1, ROWS * COLUMNS, dtype=torch.bool)
    hidden[0, query] = True
    with torch.no_grad(), watch(model) as seen:
        model(patches(image[None]), hidden)
    return seen[0].tile(slice(query, query + 1), slice(None))[0].unflatten(-1, (ROWS, COLUMNS))[:, 0]


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
