"""The runs behind the pictures of `states.py`: one for each kind of thing the page has to show, saved once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from stories import KIDS, LIONS, MARY, haystack

import sightline as sl
from sightline.explore.model_runs import STATS, RunRequest, watched
from sightline.models import load as load_model

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from image_cases import checkpoint, picture, png

SCRIPTS = (
    "## Plans\n- a `list` of **two**\n\ndef f(x):\n\treturn x[0]\n\n狮子吓到了孩子们。\n"
    "كان الأطفال خائفين من الأسود.\n👩‍👩‍👧 left 🦁!\n"
)
LONG = 2100
# Of each run: the model, its text and how many tokens it writes. The first letter is the order in the list.
TEXTS: dict[str, tuple[str, str, int]] = {
    "a-kids": ("minilm", KIDS, 0),
    "b-lions": ("minilm", LIONS, 0),
    "c-mary": ("smollm2", MARY, 0),
    "d-scripts": ("smollm2", SCRIPTS, 0),
    "e-written": ("smollm2", "The three primary colours are", 12),
    "f-scripts-minilm": ("minilm", SCRIPTS, 0),
}


class ByHand(torch.nn.Module):
    """Attention that cannot be followed: what each key gives sums to 1, not what each query takes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.mT / 4, -2) @ x


class Mixed(torch.nn.Module):
    """Two layers of words that look at each other and at others, and one that is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerDecoderLayer(16, 2, 32, batch_first=True) for _ in range(2)
        )
        self.by_hand = ByHand()

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, memory)
        return self.by_hand(x)


def make(folder: Path) -> dict[str, Path]:
    """Every run that is not there yet; gives the folders by name, and that of a model that reads pictures."""
    for name, (model, text, generate) in TEXTS.items():
        _text(folder / "runs" / name, model, text, generate)
    _text(folder / "runs" / "g-long", "smollm2", haystack(load_model("smollm2")[1], "Ginger.", LONG), 0)
    plain(folder / "runs")
    vit = folder / "vit"
    if not vit.exists():
        checkpoint(vit)
    (folder / "picture.png").write_bytes(png(picture(512)))
    return {"runs": folder / "runs", "vit": vit, "picture": folder / "picture.png"}


def _text(folder: Path, model: str, text: str, generate: int) -> None:
    if not (folder / "index.json").exists():
        found, tokenizer = load_model(model)
        watched(found.eval(), tokenizer, RunRequest(text, model, generate=generate), folder, lambda **_: None)


def plain(folder: Path) -> None:
    """Runs of other modules: without tokens, without q and k, with cross-attention; and one sight alone."""
    torch.manual_seed(0)
    words, memory = ["the", "kids", "saw", "the", "lions"], ["die", "Kinder", "sahen", "die", "Löwen"]
    mixed = Mixed().eval()
    if not (folder / "h-cross" / "index.json").exists():
        with torch.no_grad(), sl.watch(mixed, keep_qk=True, stats=STATS) as seen:
            mixed(2 * torch.randn(1, len(words), 16), 2 * torch.randn(1, len(memory) + 3, 16))
        seen.tokens = [words]
        seen.save(folder / "h-cross")
    encoder = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    for name, tokens, kept in (("i-no-tokens", 40, True), ("j-not-kept", 700, False)):
        if not (folder / name / "index.json").exists():
            with torch.no_grad(), sl.watch(encoder, keep_qk=kept, stats=STATS) as seen:
                encoder(4 * torch.randn(1, tokens, 16))
            seen.save(folder / name, keep_qk=kept)
    q, k = torch.randn(2, 1, 4, 60, 16).unbind()
    sl.look(q, k, mask=sl.causal(), stats=("entropy", "received")).save(folder / "k-alone.safetensors")


def found(listed: list[dict[str, Any]], folder: Path) -> dict[str, str]:
    """The ids of the runs by name, as the server lists them."""
    names = sorted(path.parent.name for path in folder.glob("*/index.json"))
    ids = {name[2:]: run["id"] for name, run in zip(names, listed, strict=False)}
    return ids | {"alone": listed[-1]["id"]}
