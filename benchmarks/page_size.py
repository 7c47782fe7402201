"""A page to look at: the size of Sightline's report.html and the time to make it, beside BertViz's.

    python benchmarks/page_size.py [--out FOLDER]

The model is minilm (6 layers of 12 heads) on the same text, cut at 128 to 512 tokens. Sightline's time is that of
watching the model and writing the file; BertViz's is that of the same forward pass with its maps, by transformers,
and of its head view. BertViz takes part if it is installed (`pip install -e '.[peers]'`). Both write to memory.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import torch
from harness import QUICK, compare, ratio, write

LENGTHS = (128,) if QUICK else (128, 256, 384, 512)


def text(tokens: int) -> str:
    """Words of Python's own documentation that make exactly so many tokens, special ones included."""
    from sightline.models import open_checkpoint

    tokenizer = open_checkpoint("minilm").tokenizer
    words = " ".join(topics[name] for name in sorted(topics)).split()
    low, high = 1, tokens
    while low < high:  # the most words that fit
        middle = (low + high + 1) // 2
        if len(tokenizer.encode(" ".join(words[:middle])).ids) <= tokens:
            low = middle
        else:
            high = middle - 1
    return " ".join(words[:low])


def ours() -> Callable[[str], bytes]:
    from sightline.explore.model_runs import Models, RunRequest, watched
    from sightline.explore.report import report
    from sightline.explore.run import as_run
    from sightline.watching import load

    models = Models(["minilm"])
    model, tokenizer = models.get("minilm")

    def page(content: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            watched(model, tokenizer, RunRequest(content, "minilm", None), place, lambda *a, **k: None)
            return report(as_run("look", load(place), origin=place.name))

    return page


def theirs() -> Callable[[str], bytes]:
    from bertviz import head_view
    from tokenizers import Tokenizer
    from transformers import BertModel

    from sightline.models import open_checkpoint

    folder = open_checkpoint("minilm")._folder  # type: ignore[attr-defined]
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    @torch.inference_mode()
    def page(content: str) -> bytes:
        encoding = tokenizer.encode(content)
        maps = model(torch.tensor([encoding.ids]), output_attentions=True).attentions
        return head_view(maps, encoding.tokens, html_action="return").data.encode()

    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the results")
    options = parser.parse_args()
    pages = {"sightline": ours()}
    if find_spec("bertviz"):
        pages["bertviz"] = theirs()
    rows = []
    for tokens in LENGTHS:
        content = text(tokens)
        sizes: dict[str, int] = {}
        runs = {name: (lambda n=name, p=page: sizes.update({n: len(p(content))})) for name, page in pages.items()}
        # BertViz writes every weight as text, and takes most of a minute for the longest.
        result = compare(runs, repeats=3 if tokens <= 256 else 1, warmups=1 if tokens <= 128 else 0)
        row: dict = {"call": "page", "tokens": tokens}
        row |= {name: {"bytes": sizes[name], **result[name]} for name in pages}
        if "bertviz" in pages:
            row |= {"ratio": ratio(result, "sightline", "bertviz"), "size_ratio": sizes["sightline"] / sizes["bertviz"]}
        rows.append(row)
        shown = ", ".join(f"{name} {sizes[name] / 1e6:.2f} MB {result[name]['median_ms']:.0f} ms" for name in pages)
        print(f"{tokens:4} tokens: {shown}", flush=True)
    print("written:", write("page_size", rows, options.out))


if __name__ == "__main__":
    main()
