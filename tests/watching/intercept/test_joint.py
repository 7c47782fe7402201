"""Joint attention, as SD3's and Flux's: where text and image lie in it is known by the names the model has for them."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.errors import InputError, SightFileError
from sightline.watching import load, watch

DIM, HEADS = 16, 2


class Attention(nn.Module):
    """Projections of the image and added ones of the text; the image comes first (SD3), or the text (Flux)."""

    def __init__(self, first):
        super().__init__()
        self.first = first
        self.to_qkv, self.add_k_proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, 3 * DIM)

    def forward(self, hidden_states, encoder_hidden_states=None):
        found = []
        added = None if encoder_hidden_states is None else self.add_k_proj(encoder_hidden_states).chunk(3, -1)
        for i, query in enumerate(self.to_qkv(hidden_states).chunk(3, -1)):
            if added is not None:
                encoder_query = added[i]
                pair = [query, encoder_query] if self.first == "image" else [encoder_query, query]
                query = torch.cat(pair, dim=1)
            found.append(query.unflatten(-1, (HEADS, -1)).transpose(1, 2))
        return F.scaled_dot_product_attention(*found).transpose(1, 2).flatten(2)


class Single(nn.Module):
    """Flux's single blocks: both are one sequence before they are projected."""

    def __init__(self):
        super().__init__()
        self.attn = Attention("text")

    def forward(self, hidden_states, encoder_hidden_states):
        return self.attn(torch.cat([encoder_hidden_states, hidden_states], dim=1))


class Model(nn.Module):
    def __init__(self, first="text"):
        super().__init__()
        self.patches = nn.Conv2d(3, DIM, 2, 2)
        self.both, self.alone, self.single = Attention(first), Attention(first), Single()

    def forward(self, image, encoder_hidden_states):
        hidden_states = self.patches(image).flatten(2).mT
        self.both(hidden_states, encoder_hidden_states)
        self.alone(hidden_states)  # the image by itself
        return self.single(hidden_states, encoder_hidden_states)


def seen_of(first="text", words=5, **options):
    torch.manual_seed(2)
    with torch.no_grad(), watch(model := Model(first).eval(), **options) as seen:
        model(torch.randn(2, 3, 6, 10), torch.randn(2, words, DIM))
    return seen


@pytest.mark.parametrize("first", ["text", "image"])
@pytest.mark.parametrize("words", [5, 15])  # as many as there are patches, too
def test_text_and_image_are_spans(first, words, tmp_path):
    seen = seen_of(first, words, keep_qk=True)
    other = {"text": slice(0, words), "image": slice(words, words + 15)}
    parts = other if first == "text" else {"image": slice(0, 15), "text": slice(15, words + 15)}
    assert seen.joint == {"both": parts, "single.attn": other}
    assert list(seen.joint["both"]) == list(parts)
    found = seen.spans()
    assert list(found) == ["both", "single.attn"]
    for name, spans in found.items():
        assert spans.queries == tuple(seen.joint[name])
        weights = seen[name].tile(slice(None), slice(None))
        for i, rows in enumerate(seen.joint[name].values()):
            for j, columns in enumerate(seen.joint[name].values()):
                mean = weights[:, :, rows, columns].sum(-1).mean(-1)
                torch.testing.assert_close(spans.table[:, :, i, j], mean)
    again = load(seen.save(tmp_path / "run"))
    assert again.joint == seen.joint
    # The patches begin where the image does.
    assert seen.grid == (3, 5, parts["image"].start)


def test_others_have_none_and_say_so(tmp_path):
    layer = nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval()
    x = torch.randn(1, 5, DIM)
    with watch(layer) as seen:
        layer(x, x, x)
    assert seen.joint == {}
    with pytest.raises(InputError, match="text and image at once"):
        seen.spans()
    folder = seen_of().save(tmp_path / "run")
    index = json.loads((folder / "index.json").read_text())
    index["meta"]["joint"]["both"]["text"] = [0, "5"]
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(SightFileError, match="joint"):
        load(folder)


def test_names_that_do_not_tell_are_not_believed():
    class Silent(Model):
        named = False

        def forward(self, image, other):
            hidden_states = self.patches(image).flatten(2).mT
            if self.named:
                return self.single(hidden_states, other)
            return self.single.attn(torch.cat([other, hidden_states], dim=1))

    with torch.no_grad(), watch(model := Silent().eval(), runs="all") as seen:
        for model.named in (False, True, False):
            model(torch.randn(2, 3, 6, 10), torch.randn(2, 5, DIM))
    assert seen.layers == ["single.attn"]
    assert [bool(run.joint) for run in seen.runs] == [False, True, False]
