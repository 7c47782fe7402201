"""The steps of a running model are the model's own numbers."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import sightline as sl
from sightline.errors import InputError
from sightline.steps import explain


class Tokenizer:
    """Every word its number; the shape of the tokenizers library."""

    words = ("[CLS]", "the", "kids", "left")

    def encode(self, text: str) -> Tokenizer:
        self.tokens = ["[CLS]", *text.split()]
        self.ids = [self.words.index(word) for word in self.tokens]
        return self


class Tiny(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.tokenizer = Tokenizer()
        self.embed = nn.Embedding(4, 16)
        self.encoder = sl.nn.Encoder(16, heads=4, layers=layers)
        self.eval()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.embed(ids))


def test_a_layer_of_a_model_on_a_text() -> None:
    model = Tiny()
    steps = explain(model, "the kids left", layer=1, head=2)
    assert steps.labels == ["[CLS]", "the", "kids", "left"]
    assert steps.heads == 4
    table = steps.table("kids")
    assert table.head == 2
    assert table.difference < 1e-6
    by_name = [name for name, m in model.named_modules() if isinstance(m, sl.nn.MultiHeadAttention)]
    again = explain(model, "the kids left", layer=by_name[1], head=2)
    torch.testing.assert_close(again["weight"], steps["weight"])
    assert by_name[1] in steps.title


def test_the_numbers_are_those_of_the_module() -> None:
    model = Tiny()
    seen = {}
    attention = next(m for m in model.modules() if isinstance(m, sl.nn.MultiHeadAttention))
    handle = attention.register_forward_hook(lambda m, args, out: seen.update(x=args[0], out=out))
    steps = explain(model, "the kids left", layer=0)
    handle.remove()
    x, out = seen["x"][0], seen["out"][0]
    torch.testing.assert_close(steps["embeddings"], x)
    q = attention.query(x).view(4, 4, 4).transpose(0, 1)
    torch.testing.assert_close(steps["q"], q)
    torch.testing.assert_close(steps["projection"], out)
    torch.testing.assert_close(steps["concatenation"] @ steps["w_o"] + steps["b_o"], out)


def test_a_module_called_with_a_tensor() -> None:
    attention = sl.nn.MultiHeadAttention(16, 4, kv_heads=2, positions=sl.positions.Rotary(4))
    x = torch.randn(1, 5, 16)
    steps = explain(attention, x)
    assert steps.labels == ["0", "1", "2", "3", "4"]
    torch.testing.assert_close(steps["projection"], attention(x)[0])
    assert "Rotary" in steps.notes[0]


def test_a_single_head() -> None:
    head = sl.nn.AttentionHead(8, 4, masked=True)
    x = torch.randn(1, 5, 8)
    steps = explain(head, x, labels="a b c d e")
    torch.testing.assert_close(steps["sum"][0], head(x)[0])
    assert "masked_score" in steps.names


def test_the_model_stops_behind_the_layer_asked_for() -> None:
    model = Tiny()
    ran: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, sl.nn.MultiHeadAttention):
            module.register_forward_pre_hook(lambda m, args, name=name: ran.append(name))
    explain(model, "the kids left", layer=1)
    assert len(ran) == 2


def test_nothing_is_left_behind() -> None:
    model = Tiny()
    explain(model, "the kids", layer=0)
    with pytest.raises(ValueError, match="not in tuple"):
        explain(model, "the lions", layer=0)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: explain(Tiny(), "the kids"), "which layer"),
        (lambda: explain(Tiny(), "the kids", layer=3), "there is no such layer"),
        (lambda: explain(Tiny(), "the kids", layer="decoder"), "there is no such layer"),
        (lambda: explain(Tiny(), "the kids", layer=0, head=4), "there is no such head"),
        (lambda: explain(Tiny(), layer=0), "nothing to run the model on"),
        (lambda: explain(nn.Linear(2, 2), torch.eye(2)), "no attention was seen"),
        (lambda: explain(nn.Linear(2, 2), "text"), "has no tokenizer"),
        (lambda: explain(Tiny(), "the kids", layer=0, w_q=torch.eye(2)), "a model has its own weights"),
        (lambda: explain(Tiny(), "the kids", layer=0, normalizer="relu"), "a model has its own weights"),
        (
            lambda: explain(sl.nn.MultiHeadAttention(4, 1, dropout=0.5), torch.randn(1, 2, 4)),
            "this model is training",
        ),
        (lambda: explain(sl.nn.MultiHeadAttention(4, 1), torch.randn(2, 2, 4)), "one sequence"),
    ],
)
def test_what_cannot_work_is_said(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_what_another_thread_asks_the_same_model_is_not_looked_at() -> None:
    """A server explains a text while it runs another: here that one stands still in a layer until this one is done."""
    model, texts = Tiny(), ("the kids left", "left left kids the")
    alone = [explain(model, text, layer=1) for text in texts]
    main, inside, done = threading.get_ident(), threading.Event(), threading.Event()
    other: list[sl.Steps] = []
    thread = threading.Thread(target=lambda: other.append(explain(model, texts[1], layer=1)))

    def meanwhile(*_: object) -> None:
        if threading.get_ident() != main:
            inside.set()
            assert done.wait(30)
        elif not inside.is_set():
            thread.start()
            assert inside.wait(30)

    attention = next(m for m in model.modules() if isinstance(m, sl.nn.MultiHeadAttention))
    handle = attention.register_forward_pre_hook(meanwhile)
    try:
        steps = explain(model, texts[0], layer=1)
    finally:
        done.set()
        thread.join()
        handle.remove()
    for found, expected in zip((steps, *other), alone, strict=True):
        assert torch.equal(found["weight"], expected["weight"])
        assert torch.equal(found["embeddings"], expected["embeddings"])
        assert found.title == expected.title
