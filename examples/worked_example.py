"""Three words through one attention head, with every number on the way (S2.3, S2.4).

The words of `Action gets results` get an embedding each; the embeddings times W_q, W_k and W_v give a query, a key
and a value per word; and for each word as the query a table shows how its new vector z_i comes about. At the end
the sums of the tables are compared with what `sightline.attention` returns: the same numbers, or this script fails.

Run it with `make demo`; `sightline steps` does the same for any sentence, and with a trained model.
"""

from __future__ import annotations

import torch

import sightline as sl
from sightline.backends import reference
from sightline.steps import explain_words

SENTENCE = "Action gets results"
TOLERANCE = 1e-12  # everything is in float64


def compare(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Say that two results agree, or stop with the difference."""
    difference = (ours - theirs).abs().max().item()
    if not difference <= TOLERANCE:
        raise SystemExit(f"FAILED: {what} differ by {difference:.3g}, more than {TOLERANCE:g}")
    print(f"  {what}: largest difference {difference:.1e}")


def main() -> None:
    steps = explain_words(SENTENCE)
    steps.print()

    print("\nThe same numbers from the library:\n")
    q, k, v = steps["q"], steps["k"], steps["v"]
    output = sl.attention(q, k, v)
    sums = torch.stack([table.sum for table in steps.tables()])
    compare("sums of the tables and sightline.attention(q, k, v)", sums, output)
    compare("sightline.attention(q, k, v) and softmax(Q K^T / 8) V", output, reference.matrix_view(q, k, v))
    compare("sums of the matrix's rows and 1", steps["weight"].sum(-1), torch.ones(len(q), dtype=q.dtype))


if __name__ == "__main__":
    main()
