"""Modules: heads, layers and stacks that take `[*batch, time, width]` and give `[*batch, time, width]`.

Time is whatever there is a sequence of (words, patches of an image, stations), width whatever each of them holds.

| module                     | what it is                                                                  |
| -------------------------- | --------------------------------------------------------------------------- |
| `AttentionHead`            | one head: queries, keys and values made directly from the input             |
| `MultiHeadAttention`       | several heads, concatenated and projected; self or cross, grouped, cached   |
| `FeedForward`              | two linear layers with an activation between them, plain or gated           |
| `EncoderLayer`, `Encoder`  | attention and feed-forward, everyone sees everyone                          |
| `DecoderLayer`, `Decoder`  | the same, causal, and reading a memory if there is one                      |
| `Transformer`              | an encoder, and a decoder that reads its output                             |
| `KVCache`, `DecoderCache`  | the keys and values of the past, so that a step costs a step                |
| `masks_from_torch`         | masks of torch.nn, where True means blocked, as masks of ours               |
| `observing`                | the sights of the attention inside any module made of these                 |
| `Monitor`                  | what every head does in training, every so many steps; gives `Record`s      |

All modules with attention inside have `observe`: the output of the same call, and its sights.
"""

from sightline.nn.cache import KVCache
from sightline.nn.decoder import Decoder, DecoderLayer
from sightline.nn.decoder_cache import DecoderCache
from sightline.nn.encoder import Encoder, EncoderLayer
from sightline.nn.feedforward import FeedForward
from sightline.nn.from_torch import masks_from_torch
from sightline.nn.head import AttentionHead
from sightline.nn.multihead import MultiHeadAttention
from sightline.nn.observe import observing
from sightline.nn.observe.alarms import Alarm
from sightline.nn.observe.monitor import Monitor
from sightline.nn.observe.record import Reading, Record
from sightline.nn.transformer import Transformer

__all__ = [
    "AttentionHead",
    "MultiHeadAttention",
    "FeedForward",
    "EncoderLayer",
    "Encoder",
    "DecoderLayer",
    "Decoder",
    "Transformer",
    "KVCache",
    "DecoderCache",
    "masks_from_torch",
    "observing",
    "Monitor",
    "Alarm",
    "Record",
    "Reading",
]
