"""The same arithmetic with little around it, where no gradient, hook or other module asks for more.

| to find | look in |
| --- | --- |
| linear layers that are one product | `side_by_side.py` |
| a layer of an encoder | `encoder_layer.py` |
| a step of a decoder | `decoder_step.py`, over matrices laid out by `layout.py` |
"""
