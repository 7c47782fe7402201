"""Where a token stands: attention itself cannot tell, so a position scheme says it.

Attention is a weighted sum, and a sum has no order: shuffle the input and the output is shuffled the same way,
nothing more. Each scheme here breaks that symmetry in its own place.

| scheme | acts on | for |
| --- | --- | --- |
| `Sinusoidal`, `Learned` | the input | a sequence |
| `Grid` | the input | an image or a field on a grid, row by row |
| `LatLon` | the input | places on a sphere |
| `Rotary` | queries and keys | a sequence, where only the distance between two tokens counts |
| `alibi` | the scores | a sequence, where far keys count less |

All but `alibi` are called the same way: `scheme(x, at=None)`, where `at` says the positions.
"""

from sightline.positions.grid import Grid
from sightline.positions.latlon import LatLon
from sightline.positions.learned import Learned
from sightline.positions.linear_bias import Alibi, alibi
from sightline.positions.rotary import Rotary
from sightline.positions.sinusoidal import Sinusoidal

__all__ = ["Alibi", "Grid", "LatLon", "Learned", "Rotary", "Sinusoidal", "alibi"]
