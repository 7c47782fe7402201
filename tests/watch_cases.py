"""Small random models of the families that transformers has, and what they attend to by its own account."""

from __future__ import annotations

import functools

import torch

from sightline.lens import Top

TOKENS = 97
STATS = ("entropy", "max_score", "distance", "received", "overview", "overview_max", "shares", Top(3))


@functools.cache
def classes():
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def config(family):
    t = classes()
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": TOKENS}
    causal = shape | {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
    causal |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    match family:
        case "llama":
            return t.LlamaConfig(**causal)
        case "mistral":
            return t.MistralConfig(**causal, sliding_window=5)
        case "gemma2":
            return t.Gemma2Config(
                **causal, head_dim=8, sliding_window=5, attn_logit_softcapping=2.0, query_pre_attn_scalar=8
            )
        case "gpt-oss":
            return t.GptOssConfig(**causal, head_dim=8, sliding_window=5, num_local_experts=2, num_experts_per_tok=1)
        case "gpt2":
            return t.GPT2Config(
                vocab_size=TOKENS,
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=64,
                bos_token_id=1,
                eos_token_id=None,
                pad_token_id=0,
                scale_attn_by_inverse_layer_idx=True,
            )
        case "bert":
            return t.BertConfig(**shape, intermediate_size=48, max_position_embeddings=64, pad_token_id=0)
        case "vit":
            return t.ViTConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=48,
                image_size=16,
                patch_size=4,
            )
        case "t5":
            return t.T5Config(
                vocab_size=TOKENS,
                d_model=32,
                d_kv=8,
                d_ff=48,
                num_layers=2,
                num_heads=4,
                decoder_start_token_id=0,
                pad_token_id=0,
                eos_token_id=None,
                relative_attention_num_buckets=8,
            )
        case "whisper":
            return t.WhisperConfig(
                vocab_size=TOKENS,
                d_model=32,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=48,
                decoder_ffn_dim=48,
                num_mel_bins=8,
                max_source_positions=10,
                max_target_positions=32,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=None,
                decoder_start_token_id=1,
                suppress_tokens=None,
                begin_suppress_tokens=None,
            )
    raise KeyError(family)


CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertModel",
    "vit": "ViTModel",
    "t5": "T5ForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
}
FAMILIES = list(CLASSES)
CAUSAL = ["llama", "mistral", "gemma2", "gpt-oss", "gpt2"]
# Without a fused implementation of their own in transformers.
EAGER_ONLY = ["gemma2", "gpt-oss"]


def model(family, implementation="sdpa", **changes):
    """A small random model whose attention is far from even."""
    made = config(family)
    for name, value in changes.items():
        setattr(made, name, value)
    torch.manual_seed(7)
    built = getattr(classes(), CLASSES[family])._from_config(made, attn_implementation=implementation).eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
            elif "sinks" in name:
                parameter.normal_(0, 1)
    return built


def inputs(family, padding=None, batch=3, length=12):
    """What goes into a model; with padding "left" or "right" the sequences have different lengths."""
    draw = torch.Generator().manual_seed(3)
    if family == "vit":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=draw)}
    ids = torch.randint(2, TOKENS, (batch, length), generator=draw)
    mask = torch.ones_like(ids)
    if padding:
        for i, hidden in enumerate((0, 3, 5)[:batch]):
            cut = slice(0, hidden) if padding == "left" else slice(length - hidden, length)
            mask[i, cut] = 0
    if family == "whisper":
        features = torch.randn(batch, 8, 20, generator=draw)
        return {"input_features": features, "decoder_input_ids": ids, "decoder_attention_mask": mask}
    if family == "t5":
        target = torch.randint(2, TOKENS, (batch, 7), generator=draw)
        return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": target}
    return {"input_ids": ids, "attention_mask": mask}


def attentions(family, output):
    """The maps of an output, by the kind of attention."""
    if family in ("t5", "whisper"):
        return {
            "encoder": output.encoder_attentions,
            "decoder": output.decoder_attentions,
            "cross": output.cross_attentions,
        }
    return {"self": output.attentions}


def logits(output):
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def layers_of(family, seen):
    """The names of the watched layers, by the kind of attention."""
    if family not in ("t5", "whisper"):
        return {"self": seen.layers}
    decoder = [name for name in seen.layers if "decoder" in name]
    return {
        "encoder": [name for name in seen.layers if name not in decoder],
        "decoder": [name for name in decoder if seen.kind(name) == "self"],
        "cross": [name for name in decoder if seen.kind(name) == "cross"],
    }


def rows_that_exist(family, kind, given):
    """Queries that are not padding, [batch, queries]: the others are uniform in eager attention, and 0 in fused."""
    if kind in ("self", "encoder"):
        return given.get("attention_mask")
    return given.get("decoder_attention_mask")


def check_statistics(sight, weights, exists=None):
    """Every statistic of a sight, and its tiles, against a whole map."""
    assert sight.shape == tuple(weights.shape)
    batch, _, queries, keys = weights.shape
    rows = torch.ones(batch, 1, queries) if exists is None else exists[:, None].float()
    weights = weights.double() * rows[..., None]

    def close(got, want):
        torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=0)

    tile = sight.tile(slice(0, queries), slice(0, keys))
    close(tile * rows[..., None], weights)
    total = weights.sum(-1).clamp_min(1e-30)
    close(sight.entropy * rows, (torch.special.entr(weights).sum(-1) / total + total.log()) * (weights.sum(-1) > 0))
    place = torch.arange(queries)[:, None] + keys - queries
    close(sight.distance * rows, (weights * (place - torch.arange(keys)).abs()).sum(-1) / total)
    if exists is None or bool(exists.all()):
        close(sight.received(), weights.sum(-2))
        close(sight.overview().sums, weights)
    close(sight.overview().maxima * rows[..., None], weights)
    strongest = torch.where(sight.lse > -torch.inf, (sight.max_score - sight.lse).exp(), 0.0)
    close(strongest * rows, weights.amax(-1))
    top = sight.top(3)
    close(top.weights * rows[..., None], weights.topk(3).values)
