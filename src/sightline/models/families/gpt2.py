"""GPT-2: a decoder with learned positions; its matrices are stored as [in, out], and q, k and v in one."""

from __future__ import annotations

from torch import nn

from sightline.models.families.base import Family, Source
from sightline.models.families.settings import Settings
from sightline.models.text.language_model import LanguageModel
from sightline.nn import Decoder
from sightline.nn.decoder import DecoderLayer
from sightline.positions import Learned

LAYER = "decoder.layers.#."
QKV = tuple(f"{LAYER}attention.{part}.*" for part in ("query", "key", "value"))


def gpt2(say: Settings) -> nn.Module:
    say.only("add_cross_attention", False)
    width, heads = say.whole("n_embd", "hidden_size"), say.whole("n_head", "num_attention_heads")
    prefix = _prefix(say)
    layers = say.layers("n_layer", "num_hidden_layers", names=f"{prefix}h.#")
    vocabulary, length = say.whole("vocab_size"), say.whole("n_positions", "max_position_embeddings")
    say.expect(f"{prefix}wte.weight", vocabulary, width)
    eps = say.number("layer_norm_epsilon", default=1e-5)
    scale = (width / heads) ** -0.5 if say.flag("scale_attn_weights", True) else 1.0
    by_layer = say.flag("scale_attn_by_inverse_layer_idx", False)
    decoder = Decoder.of(
        [
            DecoderLayer(
                width,
                heads,
                hidden=say.whole("n_inner", default=4 * width),
                activation=say.activation("activation_function", default="gelu_new"),
                eps=eps,
                scale=scale / (number + 1) if by_layer else scale,
            )
            for number in range(layers)
        ],
        norm=nn.LayerNorm(width, eps=eps),
        positions=Learned(width, length),
    )
    return LanguageModel(
        nn.Embedding(vocabulary, width), decoder, tied=say.flag("tie_word_embeddings", True), context=length
    )


def _prefix(say: Settings) -> str:
    return say.prefix("wte.weight", "transformer.")


def gpt2_names(say: Settings) -> dict[str, str | Source]:
    prefix = _prefix(say)
    layer = f"{prefix}h.#."
    return {
        "embedding.weight": f"{prefix}wte.weight",
        "decoder.positions.weight": f"{prefix}wpe.weight",
        "decoder.norm.*": f"{prefix}ln_f.*",
        "head.weight": "lm_head.weight",
        **{own: Source(f"{layer}attn.c_attn.*", transposed=True, shares=QKV) for own in QKV},
        f"{LAYER}attention.output.*": Source(f"{layer}attn.c_proj.*", transposed=True),
        f"{LAYER}attention_norm.*": f"{layer}ln_1.*",
        f"{LAYER}feed_forward.up.*": Source(f"{layer}mlp.c_fc.*", transposed=True),
        f"{LAYER}feed_forward.down.*": Source(f"{layer}mlp.c_proj.*", transposed=True),
        f"{LAYER}feed_forward_norm.*": f"{layer}ln_2.*",
    }


# Early files keep the causal mask as a table, and its value for hidden cells.
GPT2 = Family(("gpt2",), gpt2, gpt2_names, ("*.attn.bias", "*.attn.masked_bias", "lm_head.weight"))
