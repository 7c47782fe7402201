"""Three words through one attention head, with every number on the way (S2.3, S2.4).

The words of `Action gets results` get an embedding each; the embeddings times W_q, W_k and W_v give a query, a key
and a value per word; and for each word as the query a table shows how its new vector z_i comes about. At the end
the sums of the tables are compared with what `sightline.attention` returns: the same numbers, or this script fails.

Run it with `make demo`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import sightline as sl
from sightline.attention import reference

WORDS = ["Action", "gets", "results"]
WIDTH = 512  # numbers in an embedding
HEAD = 64  # numbers in a query, a key or a value; their root is the 8 of the tables
SHOWN = 3  # numbers of a vector that a table has room for
TOLERANCE = 1e-12  # everything is in float64

# Heading, symbol and width of each column; two blanks between columns make 118 characters.
COLUMNS = (
    ("word", "j", 7),
    ("q vector", "q_i", 14),
    ("k vector", "k_j", 14),
    ("v vector", "v_j", 14),
    ("score", "q_i.k_j", 7),
    ("score", "/ 8", 5),
    ("softmax", "x_ij", 7),
    ("weighted v", "x_ij * v_j", 17),
    ("sum", "z_i", 17),
)
SHADES = " .:-=+*#%@"


def project(words: list[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings times W_q, W_k and W_v: three matrices of words x HEAD. The numbers are random but always the same."""
    generator = torch.Generator().manual_seed(6)
    embeddings = torch.randn(len(words), WIDTH, generator=generator, dtype=torch.float64)
    w_q, w_k, w_v = torch.randn(3, WIDTH, HEAD, generator=generator, dtype=torch.float64) / math.sqrt(WIDTH)
    return embeddings @ w_q, embeddings @ w_k, embeddings @ w_v


def numbers(vector: Tensor, width: int, digits: int) -> str:
    """The first numbers of a vector, each in its own column."""
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return " ".join(f"{round(x, digits) + 0.0:{width}.{digits}f}" for x in vector[:SHOWN].tolist())


def line(cells: list[str]) -> str:
    """One line of a table: words to the left, numbers to the right."""
    padded = [cell.rjust(width) for cell, (_, _, width) in zip(cells, COLUMNS, strict=True)]
    padded[0] = cells[0].ljust(COLUMNS[0][2])
    return "  ".join(padded).rstrip()


def table(i: int, q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> tuple[str, Tensor]:
    """The table of the query `WORDS[i]`, and the sum z_i in its last column."""
    root = math.sqrt(HEAD)
    lines = [line([heading for heading, _, _ in COLUMNS]), line([symbol for _, symbol, _ in COLUMNS])]
    lines.append(line(["-" * width for _, _, width in COLUMNS]))
    z = torch.zeros_like(v[0])
    for j, word in enumerate(WORDS):
        score = torch.dot(q[i], k[j]).item()
        share = weights[i, j].item()
        z = z + share * v[j]
        last = j == len(WORDS) - 1
        lines.append(
            line(
                [
                    word,
                    numbers(q[i], 4, 1),
                    numbers(k[j], 4, 1),
                    numbers(v[j], 4, 1),
                    f"{score:.2f}",
                    f"{score / root:.2f}",
                    f"{share:.3f}",
                    numbers(share * v[j], 5, 2),
                    numbers(z, 5, 2) if last else "",
                ]
            )
        )
    return "\n".join(lines), z


def shaded_map(weights: Tensor) -> str:
    """The attention matrix as a picture made of characters: the darker, the more attention."""
    margin = max(map(len, WORDS)) + 2
    lines = [" " * margin + "".join(f"{word:^12}" for word in WORDS).rstrip()]
    for word, row in zip(WORDS, weights.tolist(), strict=True):
        shades = "".join(f" {SHADES[math.ceil(x * (len(SHADES) - 1))] * 10} " for x in row)
        shares = "".join(f"{x:^12.3f}" for x in row)
        lines += [f"{word:<{margin}}{shades}".rstrip(), f"{'':<{margin}}{shares}".rstrip()]
    return "\n".join(lines)


def compare(what: str, ours: Tensor, theirs: Tensor) -> None:
    """Say that two results agree, or stop with the difference."""
    difference = (ours - theirs).abs().max().item()
    if not difference <= TOLERANCE:
        raise SystemExit(f"FAILED: {what} differ by {difference:.3g}, more than {TOLERANCE:g}")
    print(f"  {what}: largest difference {difference:.1e}")


def main() -> None:
    q, k, v = project(WORDS)
    weights = reference.weights(q, k)

    print(f"Self-attention of the words: {' '.join(WORDS)}")
    print(f"Embeddings of {WIDTH} numbers times W_q, W_k, W_v give vectors of {HEAD}; the first {SHOWN} are shown.")
    sums = []
    for i, word in enumerate(WORDS):
        text, z = table(i, q, k, v, weights)
        sums.append(z)
        print(f"\nQuery: {word}\n\n{text}")

    print("\nThe attention matrix softmax(Q K^T / 8): a row is a query, a column a key.\n")
    print(shaded_map(weights))

    print("\nThe same numbers from the library:\n")
    output = sl.attention(q, k, v)
    compare("sums of the tables and sightline.attention(q, k, v)", torch.stack(sums), output)
    compare("sightline.attention(q, k, v) and softmax(Q K^T / 8) V", output, reference.matrix_view(q, k, v))
    compare("sums of the matrix's rows and 1", weights.sum(-1), torch.ones_like(weights[:, 0]))


if __name__ == "__main__":
    main()
