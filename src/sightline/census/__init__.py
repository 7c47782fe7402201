"""What the heads of a model are: measures of each, and what the model loses without them.

| to find | look in |
| --- | --- |
| what a head is like, in numbers | `watching/read/measures.py` |
| all heads of a model, ranked; loss against heads removed | `take.py` |
| the same as a page | `page.py`, over that of an atlas (`surveying/atlas.html`) |
"""

from sightline.census.take import Census, census

__all__ = ["Census", "census"]
