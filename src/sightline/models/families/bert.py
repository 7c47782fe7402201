"""BERT and its kin: encoders of text with learned positions, and a norm after each sum.

https://arxiv.org/abs/1810.04805, https://arxiv.org/abs/1907.11692 (RoBERTa), https://arxiv.org/abs/1910.01108
(DistilBERT). Heads for other tasks (masked words, classes, questions) are left out: the model gives hidden states.
"""

from __future__ import annotations

from torch import nn

from sightline.models.families.base import Family, Source
from sightline.models.families.settings import Settings
from sightline.models.text.encoder import TextEncoder, TokenEmbedding
from sightline.models.text.pooling import read_pooling
from sightline.nn import Encoder
from sightline.positions import Learned

HEADS = (
    "pooler.*",
    "*.pooler.*",
    "*position_ids",
    "cls.*",
    "classifier.*",
    "pre_classifier.*",
    "qa_outputs.*",
    "lm_head.*",
    "vocab_*",
)

# Our names, and those of transformers without the prefix of the model; `#` is the number of a layer.
EMBEDDING = {
    "embedding.tokens.weight": "embeddings.word_embeddings.weight",
    "embedding.positions.weight": "embeddings.position_embeddings.weight",
    "embedding.segments.weight": "embeddings.token_type_embeddings.weight",
    "embedding.norm.*": "embeddings.LayerNorm.*",
}
BERT_LAYER = {
    "attention.query.*": "attention.self.query.*",
    "attention.key.*": "attention.self.key.*",
    "attention.value.*": "attention.self.value.*",
    "attention.output.*": "attention.output.dense.*",
    "attention_norm.*": "attention.output.LayerNorm.*",
    "feed_forward.up.*": "intermediate.dense.*",
    "feed_forward.down.*": "output.dense.*",
    "feed_forward_norm.*": "output.LayerNorm.*",
}
DISTILBERT_LAYER = {
    "attention.query.*": "attention.q_lin.*",
    "attention.key.*": "attention.k_lin.*",
    "attention.value.*": "attention.v_lin.*",
    "attention.output.*": "attention.out_lin.*",
    "attention_norm.*": "sa_layer_norm.*",
    "feed_forward.up.*": "ffn.lin1.*",
    "feed_forward.down.*": "ffn.lin2.*",
    "feed_forward_norm.*": "output_layer_norm.*",
}


def bert(say: Settings) -> nn.Module:
    say.only("position_embedding_type", "absolute")
    say.only("is_decoder", False)
    say.only("add_cross_attention", False)
    # RoBERTa counts positions from behind the padding's id.
    first = 0 if say.model_type == "bert" else int(say.get("pad_token_id", default=1)) + 1
    return _encoder(
        say,
        width=say.whole("hidden_size"),
        heads=say.whole("num_attention_heads"),
        layers=say.layers("num_hidden_layers", names=f"{_prefix(say)}encoder.layer.#"),
        hidden=say.whole("intermediate_size"),
        activation=say.activation("hidden_act", default="gelu"),
        eps=say.number("layer_norm_eps", default=1e-12),
        segments=say.whole("type_vocab_size", default=2),
        first=first,
    )


def distilbert(say: Settings) -> nn.Module:
    return _encoder(
        say,
        width=say.whole("dim"),
        heads=say.whole("n_heads"),
        layers=say.layers("n_layers", names=f"{_prefix(say)}transformer.layer.#"),
        hidden=say.whole("hidden_dim"),
        activation=say.activation("activation", default="gelu"),
        eps=1e-12,
        segments=0,
        first=0,
    )


def _encoder(
    say: Settings,
    *,
    width: int,
    heads: int,
    layers: int,
    hidden: int,
    activation: str,
    eps: float,
    segments: int,
    first: int,
) -> TextEncoder:
    vocabulary, length = say.whole("vocab_size"), say.whole("max_position_embeddings", default=512)
    say.expect(f"{_prefix(say)}embeddings.word_embeddings.weight", vocabulary, width)
    embedding = TokenEmbedding(
        nn.Embedding(vocabulary, width),
        Learned(width, length),
        nn.Embedding(segments, width) if segments else None,
        nn.LayerNorm(width, eps=eps),
        first=first,
    )
    encoder = Encoder(width, heads, layers, hidden=hidden, norm_first=False, eps=eps, activation=activation)
    return TextEncoder(embedding, encoder, read_pooling(say.checkpoint, length - first))


def _prefix(say: Settings) -> str:
    return say.prefix("embeddings.word_embeddings.weight", "bert.", "roberta.", "distilbert.")


def bert_names(say: Settings) -> dict[str, str | Source]:
    return _names(say, "encoder.layer.#.", BERT_LAYER)


def distilbert_names(say: Settings) -> dict[str, str | Source]:
    return _names(say, "transformer.layer.#.", DISTILBERT_LAYER)


def _names(say: Settings, layer: str, of_layer: dict[str, str]) -> dict[str, str | Source]:
    prefix = _prefix(say)
    names = EMBEDDING | {f"encoder.layers.#.{ours}": layer + theirs for ours, theirs in of_layer.items()}
    made: dict[str, str | Source] = {}
    for ours, theirs in names.items():
        if "norm" in ours and f"{prefix}embeddings.LayerNorm.gamma" in say.checkpoint:
            # Early checkpoints call the weight of a norm gamma and its bias beta.
            made[ours.replace("*", "weight")] = prefix + theirs.replace("*", "gamma")
            made[ours.replace("*", "bias")] = prefix + theirs.replace("*", "beta")
        else:
            made[ours] = prefix + theirs
    return made


BERT = Family(("bert", "roberta", "xlm-roberta", "camembert"), bert, bert_names, HEADS)
DISTILBERT = Family(("distilbert",), distilbert, distilbert_names, HEADS)
