"""Pictures: each function returns a matplotlib Figure, to show, change or save.

| function     | what it draws                                                               |
| ------------ | --------------------------------------------------------------------------- |
| `map`        | weights of queries x keys, labelled with their tokens; one panel per head   |
| `alignment`  | cross-attention as the alignment between what is written and what is read   |
| `on_image`   | attention from one patch of a picture, over the picture                     |
| `on_map`     | attention from one place of a grid, on plain longitudes and latitudes       |
| `on_globe`   | the same on a sphere, seen from above a place                               |
| `portraits`  | measures of all heads, layers x heads                                       |
| `by_head`    | one number for each head, its influence say, layers x heads                 |
| `effects`    | what every head did for a target, layers x heads, signed                    |
| `curves`     | losses over steps, each curve named where it ends                           |
| `training`   | what `sl.monitor` recorded: layers as panels, heads as lines                |
| `save`       | any of them as PNG, SVG or PDF; the file appears whole or not at all        |

Colours are matplotlib's `magma`, `viridis` and `cividis`: they get lighter evenly, also for colour-blind eyes and in
print. matplotlib is imported when something is drawn; it comes with the extra `plots`.
"""

from sightline.plots.aligned import alignment
from sightline.plots.canvas import save
from sightline.plots.head_effects import effects
from sightline.plots.heads import by_head, portraits
from sightline.plots.heat import map
from sightline.plots.image import on_image
from sightline.plots.lines import curves
from sightline.plots.places import on_globe, on_map
from sightline.plots.trained import training

__all__ = [
    "map",
    "alignment",
    "on_image",
    "on_map",
    "on_globe",
    "portraits",
    "by_head",
    "effects",
    "curves",
    "training",
    "save",
]
