"""Trained checkpoints that run on Sightline's own modules.

`load` makes a model and its tokenizer from a name or a folder. `open_checkpoint` only opens: config, names, shapes and
dtypes, and each tensor when it is asked for.

| to find | look in |
| --- | --- |
| from a name or a folder to a model | `loading.py`, `build.py` |
| a family, by the names of its tensors | `families/` |
| what is on disk: folders, GGUF files, `minilm` and `smollm2` | `checkpoints/` |
| models of text, of images, and their sights | `text/`, `image_encoder.py`, `sights.py` |
"""

from sightline.models.checkpoints.base import Checkpoint, CheckpointError, SpecialTokens
from sightline.models.checkpoints.opening import open_checkpoint
from sightline.models.image_encoder import ImageEncoder
from sightline.models.loading import load
from sightline.models.sights import Sights
from sightline.models.text.encoder import TextEncoder
from sightline.models.text.language_model import LanguageModel

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
