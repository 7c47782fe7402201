"""The pass on the CPU: a sweep of few large operations on tiles that stay in the cache, a thread for each core.

| to find | look in |
| --- | --- |
| which jobs it does, and in which pieces | `plan.py` |
| one piece: bands of rows, tile by tile | `sweep.py`, over `bands.py`, `hiding.py`, `stretches.py` |
| what is summed | `row_sums.py`, `strips.py` (pixels), `top_keys.py`; by the compiled kernel: `native.py` |
| cores, memory | `threads.py`, `buffers.py` |
"""
