"""How calls of attention are caught, in anybody's model, without changing what it computes.

| to find | look in |
| --- | --- |
| which watches are on, and which module runs | `active.py`, `caller.py` |
| calls of torch | `function_mode.py`, `torch_calls.py`, `flex.py`, `fast_path.py`; as understood: `looked.py` |
| compiled and scripted modules | `compiled.py`, `scripted.py` |
| transformers | `transformers.py`, `transformers_masks.py`, `mask_tables.py` |
| the lse of the model's own kernel | `lse_capture.py` |
| what was not caught, and who is believed | `unseen.py`, `verify.py`, `listen.py` |
"""
