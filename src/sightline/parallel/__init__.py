"""A sequence that lies on several ranks of torch.distributed: attention, and the account of it."""

from sightline.lens.spread import RankSight
from sightline.parallel.api import attention, observe, shard, unshard

__all__ = ["RankSight", "attention", "observe", "shard", "unshard"]
