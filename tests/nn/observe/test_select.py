"""Names of the attention inside modules, and the choice of some of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sightline import nn as slnn
from sightline.errors import InputError, InputTypeError
from sightline.nn.observe.select import select

DECODER = slnn.Decoder(8, heads=2, layers=3, cross=True)
TRANSFORMER = slnn.Transformer(8, heads=2, encoder_layers=2, decoder_layers=1)


def test_names_are_those_of_named_modules() -> None:
    for module in (DECODER, TRANSFORMER, DECODER.layers[0], DECODER.layers[0].attention):
        for name, part in select(module).items():
            assert module.get_submodule(name) is part
    assert list(select(TRANSFORMER)) == [
        "encoder.layers.0.attention",
        "encoder.layers.1.attention",
        "decoder.layers.0.attention",
        "decoder.layers.0.cross_attention",
    ]
    assert list(select(slnn.AttentionHead(8, 4))) == [""]


@pytest.mark.parametrize(
    "layers, chosen",
    [
        (None, [0, 1, 2]),
        (0, [0]),
        (-1, [2]),
        (np.int64(1), [1]),
        ([0, -1], [0, 2]),
        ((2, 0, 2), [0, 2]),
        (range(2), [0, 1]),
        (slice(1, None), [1, 2]),
        (slice(None, None, 2), [0, 2]),
        (slice(5, 9), []),
        ([], []),
        ("layers.1.*", [1]),
        ("layers.1", [1]),
        ("layers.[02]", [0, 2]),
        (["*.0.*", 2], [0, 2]),
        (lambda name: "1" in name, [1]),
        (lambda name: False, []),
    ],
)
def test_self_and_cross_attention_of_a_layer_go_together(layers: object, chosen: list[int]) -> None:
    expected = [f"layers.{i}.{kind}" for i in chosen for kind in ("attention", "cross_attention")]
    assert list(select(DECODER, layers)) == expected


def test_layers_are_counted_through_all_stacks() -> None:
    assert list(select(TRANSFORMER, 2)) == ["decoder.layers.0.attention", "decoder.layers.0.cross_attention"]
    assert list(select(TRANSFORMER, -2)) == ["encoder.layers.1.attention"]
    assert list(select(TRANSFORMER, "decoder.*.cross*")) == ["decoder.layers.0.cross_attention"]
    assert list(select(TRANSFORMER, "layers.1")) == ["encoder.layers.1.attention"]
    assert list(select(TRANSFORMER, "cross_attention")) == ["decoder.layers.0.cross_attention"]


def test_heads_in_a_list_are_layers_of_their_own() -> None:
    heads = torch.nn.ModuleList(slnn.AttentionHead(8, 4) for _ in range(12))
    assert list(select(heads, 10)) == ["10"]
    assert list(select(DECODER.layers[0], 0)) == ["attention", "cross_attention"]


def test_a_shared_module_has_one_name() -> None:
    layer = slnn.EncoderLayer(8, heads=2)
    assert list(select(slnn.Encoder.of([layer, layer]))) == ["layers.0.attention"]


def test_torch_compile_is_no_part_of_a_name() -> None:
    assert list(select(torch.compile(DECODER), 0)) == list(select(DECODER, 0))
    assert list(select(torch.compile(DECODER.layers[0].attention))) == [""]
    inner = torch.nn.Sequential(torch.compile(slnn.Encoder(8, heads=2, layers=1)))
    assert list(select(inner)) == ["0.layers.0.attention"]


@pytest.mark.parametrize("number", [3, -4])
def test_there_is_no_such_layer(number: int) -> None:
    with pytest.raises(InputError) as error:
        select(DECODER, number)
    assert str(error.value).splitlines() == [
        "there is no such layer",
        "  expected: 0 to 2, or -3 to -1 from the end",
        f"  got: {number}",
        "  try: layers=-1 for the last",
    ]


def test_no_attention_has_such_a_name() -> None:
    with pytest.raises(
        InputError, match=r"no attention has such a name\n  expected: .*layers\.0\.attention, "
    ) as error:
        select(DECODER, "layer.1.attention")
    assert str(error.value).endswith("  got: 'layer.1.attention'\n  try: layers=\"layers.1.attention\"")


@pytest.mark.parametrize("layers", [1.5, True, [True], [None]])
def test_this_chooses_no_layers(layers: object) -> None:
    with pytest.raises(InputTypeError, match="this chooses no layers"):
        select(DECODER, layers)


def test_modules_without_attention_of_ours() -> None:
    with pytest.raises(InputError, match="there is no attention of Sightline's in this module"):
        select(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True))
    with pytest.raises(InputTypeError, match="only modules have attention inside"):
        select(torch.zeros(3))
