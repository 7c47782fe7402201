"""The families: one file for each, and this table.

| file       | model_type                                | module          |
| ---------- | ----------------------------------------- | --------------- |
| `bert.py`  | bert, roberta and its kin, distilbert     | `TextEncoder`   |
| `gpt2.py`  | gpt2                                      | `LanguageModel` |
| `llama.py` | llama, mistral, qwen2, phi3               | `LanguageModel` |
| `vit.py`   | vit                                       | `ImageEncoder`  |
"""

from sightline.models.families.base import Family, Source
from sightline.models.families.bert import BERT, DISTILBERT
from sightline.models.families.gpt2 import GPT2
from sightline.models.families.llama import LLAMA
from sightline.models.families.settings import Settings
from sightline.models.families.vit import VIT

FAMILIES: dict[str, Family] = {
    model_type: family for family in (BERT, DISTILBERT, GPT2, LLAMA, VIT) for model_type in family.model_types
}

__all__ = ["FAMILIES", "Family", "Settings", "Source"]
