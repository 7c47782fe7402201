"""Attention that is not caught is named with the reason, and nothing else is."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watch_cases as tiny
from sightline.watching import load, watch
from sightline.watching.intercept.by_hand import AXES, CHANGED
from sightline.watching.intercept.unseen import BY_HAND, SAMPLED
from watch_by_hand import DIM, TIME, Fused, Projected, padding, run


class Talking(Projected):
    """Heads are mixed before and after the softmax."""

    def attend(self, q, k, v):
        scores = self.mix((q @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = torch.einsum("bhqk,hg->bgqk", F.softmax(self.hide(scores), dim=-1), self.mix.weight)
        return weights @ v


class Sampling(nn.Module):
    """Deformable attention: a softmax weighs values at a few points."""

    def __init__(self):
        super().__init__()
        self.where, self.weigh = nn.Linear(DIM, 4 * 2), nn.Linear(DIM, 4)

    def forward(self, x):
        points = self.where(x).view(2, TIME, 4, 2).tanh()
        weights = F.softmax(self.weigh(x), -1).view(2, 1, TIME, 4)
        values = F.grid_sample(x.mT.reshape(2, DIM, 1, TIME), points, align_corners=False)
        return (torch.stack([values], dim=0).flatten(0, 1) * weights).sum(-1).mT


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_weights_that_are_changed_after_the_softmax_are_named(side):
    model = nn.ModuleDict({"a": Talking(), "b": Fused(), "c": Talking()})
    model.forward = lambda x: model["c"](model["b"](model["a"](x)))
    for name in "ac":
        model[name].real = padding(side)
    for module in (model.eval(), model.train()):
        seen = run(module, torch.randn(2, TIME, DIM))
        assert seen.layers == ["b"]
        assert seen.unseen == {"a": CHANGED, "c": CHANGED}


def test_sampled_points_are_attention():
    assert run(nn.Sequential(Sampling()), torch.randn(2, TIME, DIM)).unseen == {"0": SAMPLED}


def test_a_model_that_is_all_written_by_hand_has_one_warning():
    seen = run(Talking(), torch.randn(2, TIME, DIM))
    assert seen.unseen == {"Talking": CHANGED}
    with pytest.raises(Exception, match=r"seen\.unseen"):
        seen[0]


def test_only_chosen_modules_count():
    model = nn.Sequential(Talking(), Fused(), Talking())
    x = torch.randn(2, TIME, DIM)
    assert run(model, x, layers=["1", "2"]).unseen == {"2": CHANGED}
    assert run(model, x, layers=1).unseen == {}
    assert run(model, x, layers=lambda name: name != "0").unseen == {"2": CHANGED}


def test_watches_inside_each_other_name_their_own():
    model = nn.Sequential(Talking(), Fused(), Talking())
    with pytest.warns(UserWarning, match="without being seen"), watch(model) as outer:
        inner = run(model[2], torch.randn(2, TIME, DIM))
    assert inner.unseen == {"Talking": CHANGED}
    assert outer.unseen == {"2": CHANGED}


def test_gradients_that_run_a_layer_again_name_it_once():
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(Talking(), Fused())
    x = torch.randn(2, TIME, DIM, requires_grad=True)
    with pytest.warns(UserWarning, match="without being seen"), watch(model) as seen:
        checkpoint(model, x, use_reentrant=False).sum().backward()
    assert seen.unseen == {"0": CHANGED}
    assert seen.layers == ["1"]


def test_nothing_is_left_on_tensors():
    from sightline.watching.intercept.function_mode import WatchMode

    mode, x = WatchMode(), torch.randn(2, TIME, DIM)
    with mode:
        scores = x @ x.mT
        assert len(mode.trace.marks) == 1
        del scores
    assert not mode.trace.marks


# What is no attention.


class Routed(nn.Module):
    """Experts chosen by the largest of a softmax, weighed by it."""

    def __init__(self, how):
        super().__init__()
        self.how, self.gate = how, nn.Parameter(torch.randn(DIM, 4))
        self.experts = nn.Parameter(torch.randn(4, DIM, DIM))

    def forward(self, x):
        scores = x @ self.gate.float() if self.how == "product" else F.linear(x, self.gate.t())
        weights, chosen = scores.softmax(-1).topk(2)
        table = torch.zeros_like(scores).scatter(-1, chosen, weights)
        outputs = torch.einsum("btd,edf->btef", x, self.experts)
        if self.how == "soft":
            table = scores.softmax(-1)
        return torch.einsum("bte,btef->btf", table, outputs)


class Excited(nn.Module):
    def __init__(self):
        super().__init__()
        self.squeeze, self.excite = nn.Linear(DIM, 4), nn.Linear(4, DIM)

    def forward(self, x):
        return x * self.excite(self.squeeze(x.mean(1, keepdim=True)).relu()).softmax(-1)


class LinearAttention(Projected):
    def attend(self, q, k, v):
        return q.softmax(-1) @ (k.softmax(-2).mT @ v)


class LinearByParameters(nn.Module):
    """Linear attention whose projections are products too."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, DIM, DIM))

    def forward(self, x):
        q, k, v = (x @ self.w[i].to(x.dtype) for i in range(3))
        return q.softmax(-1) @ (k.softmax(-1).mT @ v)


class Vocabulary(nn.Module):
    """A temperature over a vocabulary, and the mean embedding of it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(31, DIM)

    def forward(self, x):
        return (x @ self.table.weight.T / 0.7).softmax(-1) @ self.table.weight


class Classified(nn.Module):
    """Similarities to computed prototypes, as probabilities."""

    def forward(self, x):
        return (x @ x[:, :3].mT).softmax(-1)


class Gated(nn.Module):
    """A softmax of a product that is used element by element alone; products follow."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(TIME, DIM)

    def forward(self, x):
        scores = x @ x.mT
        gated = scores.softmax(-1) * torch.tanh(scores.roll(1, -1))
        return self.out(gated @ gated.mT)


@pytest.mark.parametrize(
    "module",
    [
        lambda: Routed("product"),
        lambda: Routed("linear"),
        lambda: Routed("soft"),
        Excited,
        LinearAttention,
        LinearByParameters,
        Vocabulary,
        Classified,
        Gated,
    ],
)
def test_what_is_no_attention_is_neither_seen_nor_listed(module):
    fused, other = Fused(), module()
    model = nn.ModuleDict({"attn": fused, "other": other})
    model.forward = lambda x: other(fused(x))
    seen = run(model, torch.randn(2, TIME, DIM))
    assert seen.layers == ["attn"]
    assert seen.unseen == {}


# Models of transformers.


def family(name):
    t = tiny.classes()
    text = {"vocab_size": tiny.TOKENS, "pad_token_id": 0}
    halves = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    halves |= {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "block_size": 4} | text
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2} | text
    bert = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16} | text
    match name:
        case "longt5":
            return t.LongT5Model(t.LongT5Config(**t5, local_radius=3))
        case "pegasus_x":
            return t.PegasusXModel(t.PegasusXConfig(**halves, num_global_tokens=3))
        case "bigbird":
            config = t.BigBirdPegasusConfig(**halves, num_random_blocks=1, max_position_embeddings=80)
            return t.BigBirdPegasusModel(config)
        case "squeezebert":
            groups = {f"{part}_groups": 1 for part in ("q", "k", "v", "post_attention", "intermediate", "output")}
            return t.SqueezeBertModel(t.SqueezeBertConfig(**bert, **groups, embedding_size=16))
        case "deberta":
            more = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
            return t.DebertaV2Model(t.DebertaV2Config(**bert, **more))
        case "mixtral":
            return t.MixtralModel(t.MixtralConfig(**bert, num_key_value_heads=1, num_local_experts=4))
        case "switch":
            more = {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
            return t.SwitchTransformersModel(t.SwitchTransformersConfig(**t5, **more))
        case "bert-eager":
            return t.BertModel(t.BertConfig(**bert), add_pooling_layer=False)


FAMILIES = {  # seen, unseen
    "longt5": (2, {"encoder.block.0.layer.0.LocalSelfAttention": AXES}),
    "pegasus_x": (2, {"encoder.layers.0.self_attn": BY_HAND}),
    "bigbird": (2, {"encoder.layers.0.self_attn.self": BY_HAND}),
    "squeezebert": (1, {}),
    "deberta": (1, {}),
    "mixtral": (1, {}),
    "switch": (3, {}),
    "bert-eager": (1, {}),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", FAMILIES)
def test_models_of_transformers(name, side):
    torch.manual_seed(0)
    model = family(name).eval()
    if name == "bert-eager":
        model.set_attn_implementation("eager")
    tokens = 67 if name == "bigbird" else 13
    given = {"input_ids": torch.randint(2, tiny.TOKENS, (2, tokens)), "attention_mask": torch.ones(2, tokens).long()}
    given["attention_mask"][0, slice(0, 3) if side == "left" else slice(-3, None)] = 0
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(2, tiny.TOKENS, (2, 5))
    caller = nn.Module()
    caller.model, caller.forward = model, lambda: model(**given)
    seen = run(caller)
    count, unseen = FAMILIES[name]
    assert len(seen.layers) == count
    assert seen.unseen == {f"model.{path}": why for path, why in unseen.items()}


# What becomes of it.


def test_it_is_saved_and_shown(tmp_path):
    seen = run(nn.Sequential(Talking(), Fused()), torch.randn(2, TIME, DIM))
    again = load(seen.save(tmp_path / "run"))
    assert again.unseen == seen.unseen == {"0": CHANGED}
    for shown in (seen, again):
        assert "1 not seen: 0" in repr(shown)
        assert f"<li>0: {CHANGED}</li>" in shown._repr_html_()
    index = tmp_path / "run" / "index.json"
    for wrong in ([], {"0": 1}):
        index.write_text(json.dumps(json.loads(index.read_text()) | {"unseen": wrong}))
        with pytest.raises(ValueError, match="unseen"):
            load(tmp_path / "run")


def test_a_run_that_is_written_as_it_goes_holds_it(tmp_path):
    run(nn.Sequential(Fused(), Talking()), torch.randn(2, TIME, DIM), folder=tmp_path / "run")
    assert load(tmp_path / "run").unseen == {"1": CHANGED}


def test_runs_of_the_first_format_have_none(tmp_path):
    folder = run(nn.Sequential(Fused()), torch.randn(2, TIME, DIM)).save(tmp_path / "run")
    content = json.loads((folder / "index.json").read_text())
    del content["unseen"]
    (folder / "index.json").write_text(json.dumps(content | {"version": 1}))
    assert load(folder).unseen == {}
