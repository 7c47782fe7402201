"""A GGUF file as a checkpoint: Hugging Face's names and config keys, quantised weights as float32.

| in the file | here |
| --- | --- |
| settings `llama.*`, `qwen2.*` | the keys of config.json |
| `blk.7.attn_q.weight` | `model.layers.7.self_attn.q_proj.weight` |
| Llama: rows of q and k with the halves of each head interleaved | one half after the other |
| blocks of 32 or 256 numbers that share scales | float32, exactly what the `gguf` library makes of them |
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.models.checkpoints.base import Checkpoint, SpecialTokens, refused
from sightline.models.checkpoints.config import check_config
from sightline.models.checkpoints.gguf.config import FREQUENCIES, config_from_gguf
from sightline.models.checkpoints.gguf.header import GGUFHeader, GGUFTensor
from sightline.models.checkpoints.gguf.numbers import PLAIN, read_numbers, unreadable
from sightline.models.checkpoints.gguf.tokenizer import tokenizer_from_gguf
from sightline.models.checkpoints.tokenizer import check_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_BLOCKS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Whether llama.cpp interleaves the rows of q and k.
TURNED = {"llama": True, "qwen2": False}
BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.([a-z_]+)\.(weight|bias)")


class GGUFCheckpoint(Checkpoint):
    """A GGUF file of the Llama family, also Mistral, SmolLM, Qwen2."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        self._header = GGUFHeader(path)
        family = self._header.get("general.architecture")
        if not isinstance(family, str) or family not in TURNED:
            expected = f"general.architecture as one of {', '.join(TURNED)}"
            raise self.refuse("a family that Sightline does not read from GGUF", expected, family)
        self._turned = TURNED[family]
        if self._header.get("split.count", 1) != 1:
            raise self.refuse("only one part of a model", "a model in one file", "split.count above 1")
        self._tensors = self._named()
        self.names = sorted(self._tensors)
        self.config = config_from_gguf(self, self._header)
        check_config(self.config, self.source, (self.shape(name) for name in self.names))

    def refuse(self, what: str, expected: str, got: object) -> Exception:
        return refused(
            f"{self.source} holds {what}",
            expected=expected,
            got=str(got)[:120],
            hint="load the safetensors the file was made from",
        )

    def _named(self) -> dict[str, tuple[str, GGUFTensor]]:
        """The tensors by Hugging Face's names, each with its own name in the file."""
        named = {}
        for name, tensor in self._header.tensors.items():
            block = BLOCK.fullmatch(name)
            if name in WHOLE:
                known = WHOLE[name]
            elif block and block[2] in IN_BLOCKS:
                known = f"model.layers.{block[1]}.{IN_BLOCKS[block[2]]}.{block[3]}"
            elif name == FREQUENCIES:
                continue
            else:
                raise self.refuse("a tensor that no Llama has", "names such as blk.0.attn_q.weight", repr(name))
            if kind := unreadable(tensor.kind):
                raise self.refuse("numbers that cannot be read", "a type the `gguf` library knows", f"{kind}: {name}")
            named[known] = (name, tensor)
        return named

    def _tensor(self, name: str) -> GGUFTensor:
        if name not in self._tensors:
            raise refused(
                f"{self.source} has no tensor {name!r}",
                expected=f"one of its {len(self.names)} tensors",
                got=name,
                hint="`checkpoint.names` lists them",
            )
        return self._tensors[name][1]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return PLAIN.get(self._tensor(name).kind, torch.float32)

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        tensor = read_numbers(self._header.path, self._tensor(name), dtype or self.dtype(name))
        if self._turned and ".q_proj." in name:
            return _halves_together(tensor, self.config["num_attention_heads"])
        if self._turned and ".k_proj." in name:
            return _halves_together(tensor, self.config["num_key_value_heads"])
        return tensor

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        if "tokenizer.ggml.tokens" not in self._header:
            return None
        tokenizer = tokenizer_from_gguf(self._header, self.source)
        check_vocabulary(tokenizer, self)
        return tokenizer

    @cached_property
    def special(self) -> SpecialTokens:  # type: ignore[override]
        def token(key: str) -> int | None:
            number = self._header.get(f"tokenizer.ggml.{key}_token_id")
            return number if type(number) is int and 0 <= number < self.config["vocab_size"] else None

        ends = [token("eos"), token("eot")]
        template = self._header.get("tokenizer.chat_template")
        return SpecialTokens(
            bos=token("bos"),
            eos=tuple(dict.fromkeys(end for end in ends if end is not None)),
            pad=token("padding"),
            unk=token("unknown"),
            chat_template=template if isinstance(template, str) else None,
        )


def _halves_together(tensor: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's order of rows: it puts each channel of a head's first half beside one of the second.

    >>> _halves_together(torch.tensor([0, 4, 1, 5, 2, 6, 3, 7]), heads=1)
    tensor([0, 1, 2, 3, 4, 5, 6, 7])
    """
    rows, *rest = tensor.shape
    return tensor.view(heads, rows // heads // 2, 2, *rest).transpose(1, 2).reshape(tensor.shape)
