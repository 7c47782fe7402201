"""Anything, not only text: a picture as a sequence of patches, and where a hidden patch looks (S0.2).

Every picture here is made here: random colours, mirrored left to right. Some of its patches are hidden, and a small
encoder has to say what was there. The one way to know is to look at the mirror image, and nobody tells it where it is.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline import plots
from sightline.lessons.page import Page
from sightline.nn import Encoder
from sightline.positions import Grid
from sightline.watching import watch

TITLE = "Not only text: the patches of a picture"
SOURCES = ("S0.2", "S0.6")
ROWS = COLUMNS = 8  # patches
PATCH = 8  # pixels
HIDDEN = 0.25  # the share of patches that is hidden
QUERY = (2, 1)  # the patch that is drawn
STEPS = 400  # of training


def lesson(page: Page) -> None:
    page.text(
        f"""Nothing in attention knows of words. Its input is (B, T, C): batch, sequence, channel. Cut a picture of
        {ROWS * PATCH} x {COLUMNS * PATCH} pixels into patches of {PATCH} x {PATCH}, put them one after the other, and T
        is {ROWS * COLUMNS} patches and C is {3 * PATCH * PATCH} numbers: the red, green and blue of each pixel."""
    )
    image = pictures(1, torch.Generator().manual_seed(1234))[0]  # not one of those it learns from
    x = patches(image[None])
    page.code(f"image    {tuple(image.shape)}\npatches  {tuple(x.shape)}   (B, T, C)")
    page.text(
        f"""Each picture here is random colours, mirrored left to right. A quarter of the patches is hidden, and a small
        encoder has to say what was there. **Predict**: where must the hidden patch in row {QUERY[0]}, column {QUERY[1]}
        look, and how much weight does that patch get before training, when all {ROWS * COLUMNS} are alike to it?"""
    )
    twin = QUERY[0], COLUMNS - 1 - QUERY[1]
    torch.manual_seed(0)
    before = look(Vision().eval(), image)
    model, error = train(STEPS)
    weights = look(model, image)
    page.keep("before", before)
    page.keep("weights", weights)
    page.keep("error", error)
    page.table(
        ["head", "before training", f"after {STEPS} steps"],
        [[h, float(before[h][twin]), float(weights[h][twin])] for h in range(len(weights))],
        caption=f"""The weight on the mirror image, row {twin[0]}, column {twin[1]}. Shared alike it would be
        {1 / (ROWS * COLUMNS):.3f}.""".replace("\n        ", " "),
    )
    best = int(weights[:, twin[0], twin[1]].argmax())
    share = float(weights[best, twin[0], twin[1]])
    found = "It has found the mirror image" if share > 0.5 else "It has not found the mirror image yet"
    others = mirrored(model, pictures(8, torch.Generator().manual_seed(4321)))[best]
    page.keep("others", others)
    page.text(
        f"""{found}: head {best} gives it {share:.3f} of its weight. One patch of one picture could be luck, so the same
        head again, with every patch of 8 other pictures hidden in turn: {float(others.mean()):.2f} ±
        {float(others.std()):.2f} on the mirror image, above one half in {int((others > 0.5).sum())} of {others.numel()}
        cases. Nobody told it that pictures are symmetric, nor where a patch lies but by its position on the grid.""",
        f"""It still misses {error:.2f} of the variance of the hidden patches. Most of that cannot be known: of the
        mirror images a quarter is hidden too, and then there is nothing to copy.""",
    )
    page.picture(
        lambda: plots.on_image(image.permute(1, 2, 0), weights, query=QUERY, title="Where each head looks"),
        "The picture, and the weights of the hidden patch (ringed) over it, head by head.",
        width=60,
    )
    page.text(
        """These are toy pictures and toy weights: they show how to look, not how a large vision model sees. A trained
        vision transformer is watched in the same way: `sl.watch(model)`. `examples/patches.py` is this as a script."""
    )


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
        self.encoder = Encoder(width, heads, layers=1, positions=Grid(width, ROWS, COLUMNS, base=100))
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


def mirrored(model: Vision, images: Tensor) -> Tensor:
    """The weight of each patch, hidden alone, on its mirror image, head by head: `[heads, pictures, patches]`."""
    count = ROWS * COLUMNS
    twins = torch.arange(count).view(ROWS, COLUMNS).flip(-1).flatten()
    found = []
    for x in patches(images):
        with torch.no_grad(), watch(model) as seen:
            model(x.expand(count, -1, -1), torch.eye(count, dtype=torch.bool))
        maps = seen[0].tile(slice(None), slice(None))  # [the one that is hidden, heads, queries, keys]
        found.append(maps[torch.arange(count), :, torch.arange(count), twins].T)
    return torch.stack(found, 1)


def look(model: Vision, image: Tensor) -> Tensor:
    """The attention of the hidden patch QUERY, head by head: `[heads, ROWS, COLUMNS]`."""
    query = QUERY[0] * COLUMNS + QUERY[1]
    hidden = torch.zeros(1, ROWS * COLUMNS, dtype=torch.bool)
    hidden[0, query] = True
    with torch.no_grad(), watch(model) as seen:
        model(patches(image[None]), hidden)
    return seen[0].tile(slice(query, query + 1), slice(None))[0].unflatten(-1, (ROWS, COLUMNS))[:, 0]
