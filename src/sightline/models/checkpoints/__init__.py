"""Checkpoints on disk: opened with suspicion, and read one tensor at a time.

| to find | look in |
| --- | --- |
| what every checkpoint has | `base.py` |
| folders with safetensors | `folder.py`, `safetensors.py`, `strict_json.py` |
| GGUF files | `gguf/` |
| what configs must keep to | `config.py` |
| tokens | `tokenizer.py`, `special_tokens.py` |
| `minilm` and `smollm2` | `builtin.py`, `copies.py` |
| which of these is meant | `formats.py` (a path), `opening.py` (a name or a path) |
"""
