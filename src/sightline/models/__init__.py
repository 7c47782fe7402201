"""Trained checkpoints that run on Sightline's own modules.

`load` makes a model and its tokenizer from a name or a folder. `open_checkpoint` only opens: config, names, shapes and
dtypes, and each tensor when it is asked for.

| to find | look in |
| --- | --- |
| folders with safetensors | `folder.py`, `safetensors_files.py` |
| GGUF files | `gguf_header.py`, `gguf_config.py`, `gguf_numbers.py`, `gguf_tokenizer.py`, `gguf_file.py` |
| what configs must keep to | `config.py` |
| `minilm` and `smollm2` | `builtin.py`, `cache.py` |
| which of these is meant | `formats.py` (a path), `opening.py` (a name or a path) |
"""

from sightline.models.checkpoint import Checkpoint, CheckpointError, SpecialTokens
from sightline.models.image_encoder import ImageEncoder
from sightline.models.language_model import LanguageModel
from sightline.models.load import load
from sightline.models.opening import open_checkpoint
from sightline.models.sights import Sights
from sightline.models.text_encoder import TextEncoder

__all__ = [
    "load",
    "open_checkpoint",
    "TextEncoder",
    "LanguageModel",
    "ImageEncoder",
    "Sights",
    "Checkpoint",
    "CheckpointError",
    "SpecialTokens",
]
