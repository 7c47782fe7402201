from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.errors import InputError
from sightline.models.sights import Sights, observe, some_heads


def test_layers_are_found_by_number_and_name() -> None:
    sight = sl.look(torch.eye(3), torch.eye(3))
    sights = Sights({"decoder.layers.2.attention": sight})
    assert sights[2] is sights["decoder.layers.2.attention"] is sight
    for key in (0, "2"):
        with pytest.raises(InputError, match=r"a layer out of \[2\]"):
            sights[key]


@pytest.mark.parametrize("heads", [0, 5, -1, [4, 1], slice(2, None), torch.tensor([3, 3])], ids=str)
def test_some_heads_of_a_grouped_call(heads: object) -> None:
    q, k = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8)
    whole = sl.look(q, k, mask=sl.causal() & sl.padding([7, 4]), scale=0.3)
    some = some_heads(whole, heads, ("entropy",))  # type: ignore[arg-type]
    chosen = torch.arange(6)[heads if isinstance(heads, slice) else torch.as_tensor(heads).reshape(-1)]
    torch.testing.assert_close(some.tile(slice(None), slice(None)), whole.tile(slice(None), slice(None))[:, chosen])
    torch.testing.assert_close(some.entropy, whole.entropy[:, chosen])


def test_some_heads_have_their_own_of_everything() -> None:
    mask, bias = sl.dense(torch.rand(6, 5, 7) > 0.3), torch.randn(6, 5, 7)
    q, k = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8)
    for options in ({"sinks": torch.randn(6)}, {"normalizer": "relu"}, {"softcap": 2.0}):
        whole = sl.look(q, k, mask=mask, bias=bias, **options)  # type: ignore[arg-type]
        some = some_heads(whole, [5, 2])
        torch.testing.assert_close(some.tile(slice(None), slice(None)), whole.tile(slice(None), slice(None))[:, [5, 2]])


def test_heads_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match="0 to 5"):
        some_heads(sl.look(torch.randn(6, 5, 8), torch.randn(3, 7, 8)), [6])


def test_observing_a_model_for_chosen_layers_and_heads() -> None:
    model, x = sl.nn.Decoder(32, heads=4, layers=3, kv_heads=2), torch.randn(2, 5, 32)
    with torch.no_grad():
        out, sights = observe(model, (x,), {}, "entropy", [0, 2], [1, 3])
        assert torch.equal(out, model(x))
        _, everything = observe(model, (x,), {}, (), None, None)
    assert list(sights) == ["layers.0.attention", "layers.2.attention"]
    assert sights["layers.0.attention"].shape == (2, 2, 5, 5)
    torch.testing.assert_close(
        sights["layers.2.attention"].entropy, everything["layers.2.attention"].entropy[:, [1, 3]]
    )
