"""What a notebook shows of a run."""

from __future__ import annotations

import base64
import re

import torch

import watch_cases as tiny
from sightline.watching import watch


def images(text):
    return [base64.b64decode(found) for found in re.findall(r'base64,([^"]+)"', text)]


def test_a_run_and_its_sights_show_themselves():
    model, given = tiny.model("llama"), tiny.inputs("llama", "left")
    with torch.no_grad(), watch(model) as seen:
        model(**given)
    seen.tokens = [["<script>alert(1)</script>", "&"] * 6] * 3
    text = seen._repr_html_()
    assert "LlamaForCausalLM" in text
    assert "model.layers.1.self_attn" in text
    assert "<script>" not in text
    assert len(images(text)) == 8
    # Heads stand apart, each with its number; so do tokens, whatever sign their tokenizer has for a space.
    assert re.findall(r"<figcaption>(.*?)</figcaption>", text) == [f"head {h}" for h in range(4)] * 2
    assert text.count("margin:0 12px 8px 0") == 8
    assert "Queries down, keys across" in text
    seen.tokens = [["\u0120The", "\u2581kids", "##s", "\u0120"]] * 3
    assert re.findall(r"<span[^>]*>(.*?)</span>", seen._repr_html_()) == ["The", "kids", "##s", "\u0120"]
    seen.tokens = [["a"] * 81] * 3
    assert " and 1 more" in seen._repr_html_()
    sight = seen[0]._repr_html_()
    assert len(images(sight)) == 4
    assert "the first of 3 sequences" in sight


def test_many_layers_and_heads_are_cut_short():
    model = tiny.model("gpt2", num_attention_heads=4, n_layer=9)
    with torch.no_grad(), watch(model) as seen:
        model(**tiny.inputs("gpt2"))
    text = seen._repr_html_()
    assert "3 more layers" in text
    assert len(images(text)) == 6 * 4


def test_nothing_to_show():
    model, given = tiny.model("llama"), tiny.inputs("llama")
    with torch.no_grad(), watch(model, stats=("entropy",)) as seen:
        model(**given)
    assert "no picture was computed" in seen._repr_html_()
    assert "No picture was computed" in seen[0]._repr_html_()
