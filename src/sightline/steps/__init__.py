"""The computation, word by word: every intermediate of an attention call, named, as tables (S2.4).

`explain` takes an input with weights, or q, k and v, or a model, and calls the library's own functions; nothing is
computed a second time for show. `explain_lookup` and `explain_record` do the same for the dictionary of `sl.lookup`.
"""

from sightline.steps.explaining import explain
from sightline.steps.lookup import explain_lookup, explain_record
from sightline.steps.steps import Steps
from sightline.steps.table import Line, Table
from sightline.steps.words import embed_words, explain_words

__all__ = [
    "Line",
    "Steps",
    "Table",
    "embed_words",
    "explain",
    "explain_lookup",
    "explain_record",
    "explain_words",
]
