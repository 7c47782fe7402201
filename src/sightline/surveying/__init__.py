"""Survey: the heads of a model over a corpus, as a Parquet data set, and an atlas of them."""

from sightline.surveying.api import Survey, survey

__all__ = ["Survey", "survey"]
