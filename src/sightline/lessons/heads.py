"""Several heads, each with weights of its own: eight of them, then what trained ones do (S2.5, S3.5, S0.5)."""

from __future__ import annotations

import torch

from sightline import plots
from sightline.backends import attention
from sightline.errors import MissingExtraError
from sightline.lessons.page import Page
from sightline.models.loading import load
from sightline.nn import MultiHeadAttention
from sightline.steps import embed_words, explain

TITLE = "Several heads"
SOURCES = ("S0.5", "S2.5", "S3.5")
SENTENCE = "Action gets results"
WIDTH, HEADS, HEAD = 512, 8, 64
KIDS = "The kids were scared of the lions, so they left right away."


def lesson(page: Page) -> None:
    words = SENTENCE.split()
    generator = torch.Generator().manual_seed(0)
    x = embed_words(words, width=WIDTH)
    w_q, w_k, w_v = torch.randn(3, HEADS, WIDTH, HEAD, generator=generator, dtype=torch.float64) / WIDTH**0.5
    w_o = torch.randn(HEADS * HEAD, WIDTH, generator=generator, dtype=torch.float64) / (HEADS * HEAD) ** 0.5

    page.heading(f"{HEADS} heads, {HEADS} spaces")
    page.text(
        f"""One head has one way of looking. So there are several, here {HEADS}, each with its own W_q, W_k and W_v,
        and so each with its own space of queries, keys and values. They work side by side and know nothing of each
        other. (All weights here are random.)"""
    )
    steps = explain(x, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, labels=words)
    page.table(
        ["head", *(f"{words[0]} looks at {word}" for word in words), "Z (first 3 numbers)"],
        [[f"Z_{h}", *steps["weight"][h, 0].tolist(), steps["sum"][h, 0, :3]] for h in range(HEADS)],
        caption=f"The same word, `{words[0]}`, in all heads: a row of each map, and what comes of it.",
    )

    page.heading("Concatenated, and one more matrix")
    together, final = steps["concatenation"], steps["projection"]
    page.text(
        f"""Z_0 to Z_{HEADS - 1} have {HEAD} numbers for each word. Side by side they are {together.shape[1]}, and one
        more matrix W makes the final Z_f of them, again {final.shape[1]} numbers: what the next layer gets."""
    )
    page.table(
        ["name", "shape"],
        [
            ["x", _shape(x)],
            ["W_q, W_k, W_v", _shape(w_q)],
            ["Z_0 ... Z_7", _shape(steps["sum"])],
            ["concatenated", _shape(together)],
            ["W", _shape(w_o)],
            ["Z_f", _shape(final)],
        ],
    )
    module = as_module(w_q, w_k, w_v, w_o)
    with torch.no_grad():
        page.agree("Z_f and `sl.nn.MultiHeadAttention` with these weights", module(x), final, at_most=1e-10)
    z = attention(steps["q"], steps["k"], steps["v"])
    page.agree("The heads' sums and one call of `sl.attention` for all of them", z, steps["sum"])
    for name in ("weight", "concatenation", "projection"):
        page.keep(name, steps[name])

    page.heading("What trained heads do")
    page.text(
        """Twelve to a hundred heads are common. Nobody tells them what to do; training makes them differ. Below, every
        head of the trained model `minilm` on one sentence: how much weight goes, on average, to the word before, to
        the word itself, to the next one, and to the marks [CLS] and [SEP]. Heads that look at meaning show up as none
        of these: see `sightline lesson kids-and-lions`."""
    )
    try:
        trained(page)
    except MissingExtraError as error:
        page.code(str(error))


def trained(page: Page) -> None:
    """Where the heads of a trained model look, by the place of the key alone."""
    model, _ = load("minilm")
    _, sights = model.observe(KIDS)  # type: ignore[operator]
    count = len(sights.tokens)
    maps = torch.stack([sights[layer].tile(slice(None), slice(None)).reshape(-1, count, count) for layer in range(6)])
    inner = maps[:, :, 1:-1]  # queries that are words: [layers, heads, words, keys]
    shares = {
        "the word before": inner.diagonal(0, -2, -1).mean(-1),
        "the word itself": inner.diagonal(1, -2, -1).mean(-1),
        "the next word": inner.diagonal(2, -2, -1).mean(-1),
        "[CLS] and [SEP]": inner[..., [0, -1]].sum(-1).mean(-1),
    }
    page.keep("maps", maps)
    page.keep("shares", shares)
    for name, share in shares.items():
        page.heat(
            share.round(decimals=2),
            [f"layer {layer}" for layer in range(6)],
            [str(h) for h in range(12)],
            digits=2,
            largest=1.0,
            caption=f"Mean weight on {name}: a row for each layer, a column for each head.",
        )
    best = {name: divmod(int(share.argmax()), 12) for name, share in shares.items()}
    page.table(
        ["looks at", "layer", "head", "mean weight"],
        [[name, layer, head, float(shares[name][layer, head])] for name, (layer, head) in best.items()],
        caption="The strongest head of each kind. These are tendencies on one sentence, not laws.",
    )
    page.picture(
        lambda: plots.map(maps[3], sights.tokens, title="minilm, layer 3: twelve heads on one sentence"),
        "The maps of all twelve heads of layer 3: each looks in its own way.",
        width=64,
    )


def as_module(w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor, w_o: torch.Tensor) -> MultiHeadAttention:
    """The same weights in the module that models are made of; a torch Linear keeps its weight transposed."""
    module = MultiHeadAttention(WIDTH, HEADS, bias=False).double()
    for linear, w in ((module.query, w_q), (module.key, w_k), (module.value, w_v)):
        linear.weight.data.copy_(w.transpose(0, 1).flatten(1).T)
    module.output.weight.data.copy_(w_o.T)
    return module


def _shape(x: torch.Tensor) -> str:
    return " x ".join(map(str, x.shape))
