"""How much of each row a rule would keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.lens.job import Allowed
from sightline.lens.levels import Levels
from sightline.lens.plan import compute
from sightline.lens.statistics import TOTAL
from sightline.masks import as_mask

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import MaskLike
    from sightline.lens.asked import Answers


def share_of(sight: Answers, mask: MaskLike) -> Float[Tensor, "*batch heads queries"]:
    """The sum of the weights of those keys of each row that a mask allows; None allows all."""
    call, s = sight.call, sight.call.sizes
    rule = as_mask(torch.ones(1, 1, dtype=torch.bool, device=sight.device) if mask is None else mask)
    rule.check(s.batch, s.heads, s.queries, s.keys, sight.device)
    if sight.has_qk and sight.device.type == "cpu" and not sight._levels.any():
        # The number of a row says all that its weights need: what is left of its keys can be added up by any pass.
        call = sight._readable("this share")
        both = call.replace(mask=rule if call.mask is None else call.mask & rule)
        return compute(Levels(both, sight.row), [TOTAL.name])[TOTAL.name]
    request = Allowed(rule)
    return sight.compute([request])[request]
