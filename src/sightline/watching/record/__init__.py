"""What is kept of the calls that were caught: the account of each, layer by layer, on the CPU and in folders.

| to find | look in |
| --- | --- |
| the account of a call | `account.py`, `shares.py`, `chosen_keys.py` |
| small calls, and steps of a generation, that wait | `gather.py`, `resting.py`, `decoding_steps.py`, `follow.py` |
| a layer of a run, and its sight | `layer.py`, `joined_mask.py` |
| on the way to the CPU, to a folder and back | `to_cpu.py`, `folder.py`, `loading.py` |
"""
