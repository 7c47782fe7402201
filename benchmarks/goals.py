"""What was to be reached, and what was: every line has a bound that had to hold, a goal, and the measured value.

Ratios are of times, side by side in one run. `first` is what must hold before the part counts as done, `goal` where the
arithmetic says it can go. Where several calls share a line, the worst of them counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tables import Results

PICTURE, ROWS, TOP = "received, picture", "+ entropy, max_score, distance", "+ top(8)"
# Calls that torch cannot make in the same way: it needs the mask written out.
UNLIKE = "torch: written out"


Found = list[tuple[float, str]]
# The calls of a small model that is watched: on all cores, and on one.
WATCHED = ("eight layers", "eight layers, one thread")


class Goal(NamedTuple):
    """A line of the scoreboard; `found` gives the measured values with their calls; the worst is compared."""

    what: str
    where: str
    first: float
    goal: float
    found: Callable[[Results], Found]
    unit: str = ""


def same_call(kind: str) -> Callable[[Results], Found]:
    def found(results: Results) -> Found:
        rows = results.rows(f"attention-{kind}")
        pairs = [(row["ratio"], _call(row)) for row in rows if "ratio" in row and UNLIKE not in row["call"]]
        return pairs + [(row["of_best_torch"], _call(row)) for row in rows if row.get("candidate") == "sightline"]

    return found


def account(kind: str, call: str) -> Callable[[Results], Found]:
    def found(results: Results) -> Found:
        rows = results.rows(f"lens-{kind}", call=call)
        return [(row["of_best_forward"], "causal" if row["causal"] else "full") for row in rows]

    return found


def one(name: str, key: str, **match: object) -> Callable[[Results], Found]:
    """One kind of result; of several rows each says what it was of."""

    def found(results: Results) -> Found:
        rows = [row for row in results.rows(name, **match) if key in row]
        return [(row[key], _sizes(row) if len(rows) > 1 else "") for row in rows]

    return found


def _sizes(row: dict) -> str:
    said = [f"{row['tokens']:,} tokens"] if "tokens" in row else []
    said += [row["mask"], row["call"]] if "mask" in row else []
    return ", ".join(said + (["causal" if row["causal"] else "full"] if "causal" in row else []))


def encoder(kind: str) -> Callable[[Results], Found]:
    def found(results: Results) -> Found:
        rows = [row for row in results.rows(f"modules-{kind}") if row["call"].startswith("encoder, ")]
        return [(row["ratio"], _call(row).removeprefix("encoder, ")) for row in rows]

    return found


def watched(*lengths: int) -> Callable[[Results], Found]:
    """Watched over unwatched on a small model, on the CPU: as a share of what eager attention with its maps takes."""

    def found(results: Results) -> Found:
        pairs = []
        for layers in WATCHED:
            for tokens in lengths:
                own, read, eager = (
                    results.figure("watch-cpu", "of_unwatched", call=f"{layers}: {name}", tokens=tokens)
                    for name in ("watched", "watched, and read", "eager, output_attentions")
                )
                if own is not None and eager is not None:
                    where = f"{layers.removeprefix('eight layers').removeprefix(', ')} {tokens:,} tokens".strip()
                    asked = "" if read is None else f" ({read:.2f} with the numbers read)"
                    pairs.append((own / eager, f"{where}: {own:.2f} of unwatched{asked}, eager {eager:.2f}"))
        return pairs

    return found


def texts(layers: int) -> Callable[[Results], Found]:
    return one("lengths-gpu", "of_torch", part="texts", layers=layers)


SAME = "`sl.attention` / torch's best kernel for the same call"
STACK = "`sl.nn.Encoder` / `torch.nn.TransformerEncoder`, same weights"
RANDOM = "`sl.attention`, 100 texts of random lengths up to 8,192 / torch's default; layers: "
EIGHT = "eight layers watched / unwatched, "
CELLS = "strongest edges, picture, magnitudes"
EDGES = "influence: strongest edges, a picture and magnitudes"
GOALS = (
    Goal(SAME, "CPU", 1.05, 1.02, same_call("cpu")),
    Goal(SAME, "H200", 1.05, 1.02, same_call("gpu")),
    Goal(
        "`sl.observe` with lse, received and a 512 x 512 picture / best plain forward",
        "H200, 16,384 tokens",
        1.75,
        1.6,
        account("gpu", PICTURE),
    ),
    Goal("the same and entropy, max_score, distance", "H200, 16,384 tokens", 2.0, 1.75, account("gpu", ROWS)),
    Goal("the same and `top(8)`", "H200, 16,384 tokens", 2.6, 2.1, account("gpu", TOP)),
    Goal(
        "`sl.observe` with all of these but `top` / SDPA", "CPU, 4,096 tokens and more", 1.8, 1.6, account("cpu", ROWS)
    ),
    Goal(
        "memory of `sl.observe` beyond q, k, v and the output",
        "H200, 65,536 tokens, 16 heads",
        64,
        48,
        one("lens-gpu", "mebibytes", call="memory"),
        "MiB",
    ),
    Goal(
        "one layer of 1,048,576 tokens, 16 heads of 128, causal: output, all statistics but `top`, pictures of "
        "1,024 x 1,024",
        "H200",
        16,
        14,
        one("lens-gpu", "seconds", call="one layer"),
        "s",
    ),
    Goal(
        f"{EDGES}, of a call that has run / torch's forward + backward",
        "H200, 16,384 tokens",
        0.6,
        0.4,
        one("influence-gpu", "of_forward_and_backward", call=f"{CELLS}, of a call that has run", tokens=16_384),
    ),
    Goal(
        f"{EDGES}, by `sl.look`, which makes the forward pass again / torch's forward + backward",
        "H200, 16,384 tokens",
        0.6,
        0.4,
        one("influence-gpu", "of_forward_and_backward", call=CELLS, tokens=16_384),
    ),
    Goal(
        "influence: rows and heads only / the backward without it",
        "CPU",
        1.05,
        1.02,
        one("influence-cpu", "of_backward", call="rows and heads"),
    ),
    Goal(
        "influence: rows and heads only / the backward without it",
        "H200",
        1.05,
        1.02,
        one("influence-gpu", "of_backward", call="rows and heads"),
    ),
    Goal(
        "all layers watched / unwatched, the shape of an 8B model",
        "H200, 32,768 tokens",
        1.35,
        1.2,
        one("watch-gpu", "of_unwatched", call="watched", tokens=32768),
    ),
    Goal(
        "eight layers watched / eager attention with its maps",
        "CPU, 64 to 1,024 tokens",
        1.0,
        1.0,
        watched(64, 128, 300, 512, 777, 1024),
    ),
    Goal(
        EIGHT + "128 tokens written",
        "CPU",
        1.3,
        1.2,
        one("watch-cpu", "of_unwatched", call="eight layers, 128 more tokens written: watched"),
    ),
    Goal(
        EIGHT + "300 tokens",
        "H200, warm",
        2.0,
        1.3,
        one("watch-gpu", "of_unwatched", call="eight layers: watched", tokens=300),
    ),
    Goal(
        EIGHT + "64 tokens written",
        "H200, warm",
        1.4,
        1.15,
        one("watch-gpu", "of_unwatched", call="eight layers, 64 more tokens written: watched"),
    ),
    Goal(
        "a length not seen before, beyond 1.3 of the same call warm",
        "H200, 1 to 20,000 tokens",
        5,
        0,
        one("lengths-gpu", "worst_beyond_ms", part="unseen"),
        "ms",
    ),
    Goal(RANDOM + "1", "H200", 0.5, 0.1, texts(1)),
    Goal(RANDOM + "32", "H200", 1.0, 0.9, texts(32)),
    Goal(
        "a rectangle cut in all layers (`edits.cut`) / unedited",
        "H200, 131,072 tokens, 8B shape",
        1.15,
        1.05,
        one("edits-gpu", "of_unedited", call="a rectangle cut", tokens=131_072),
    ),
    Goal(
        "`sl.effects`: every head of SmolLM2 ablated, a sentence / one run for each head",
        "CPU",
        0.35,
        0.2,
        one("edits-cpu", "of_one_by_one", call="effects"),
    ),
    Goal(STACK, "CPU", 1.05, 0.9, encoder("cpu")),
    Goal(STACK, "H200", 1.05, 0.9, encoder("gpu")),
)


def scoreboard(results: Results) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the lines of the table."""
    rows = []
    for line in GOALS:
        results.asked.clear()
        found = line.found(results)
        old = any(results.is_old(name) for name in results.asked)
        values = [value for value, _ in found]
        rows.append(
            (
                line.what,
                line.where,
                _shown(line.first, line.unit, exact=True),
                _shown(line.goal, line.unit, exact=True),
                _measured(found, line.unit),
                verdict(values, line) + (" †" if old and found else ""),
            )
        )
    return ("what", "where", "first", "goal", "measured", ""), rows


def verdict(values: list[float], line: Goal) -> str:
    """Whether the worst of the values keeps to the bounds, as they are: nothing is rounded in anyone's favour."""
    if not values:
        return "not measured yet"
    worst = max(values)
    return "goal" if worst <= line.goal else "first" if worst <= line.first else "**short**"


def _call(row: dict) -> str:
    """Which call a figure is of."""
    size = f"{row['batch']} x {row['tokens']:,}" if "batch" in row else f"{row['tokens']:,}"
    return f"{row['call'].removeprefix('everybody, ')}, {size} tokens"


def _measured(found: Found, unit: str) -> str:
    """The range, and which call is the worst."""
    if not found:
        return "—"
    low, high = _shown(min(found)[0], unit), _shown(max(found)[0], unit)
    if low == high:
        return low
    return f"{low.removesuffix(f' {unit}')} to {high} ({max(found)[1]})"


def _shown(value: float, unit: str, exact: bool = False) -> str:
    number = f"{value:g}" if exact else f"{value:.0f}" if unit == "MiB" else f"{value:.1f}" if unit else f"{value:.3f}"
    return f"{number} {unit}".strip()
