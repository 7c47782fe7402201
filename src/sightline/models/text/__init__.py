"""Models of text: encoders, language models, and what they have in common.

| to find | look in |
| --- | --- |
| tokens, batches, labels | `base.py`, `labels.py` |
| vectors of texts | `encoder.py`, `pooling.py` |
| texts that go on | `language_model.py`, `generate.py`, `sampling.py`, `stream.py` |
"""
