"""The tables of the pages, each made from results: one function for each block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from goals import scoreboard

if TYPE_CHECKING:
    from tables import Results

MISSING = "not measured yet"
# Stands beside what was measured on other code than there is now.
OLD = "†"
FIRST = ("peers", "scoreboard")  # the first of their pages: what the sign means is said there
OLD_NOTE = f"{OLD} measured on earlier code: what it measures has been changed since."
MOST = "+ entropy, max_score, distance"
Rows = Iterable[tuple[str, ...]]


def table(head: tuple[str, ...], rows: Rows, words: tuple[int, ...] = (0,)) -> str:
    """A Markdown table; columns of words stand at the left, figures at the right."""
    rows = list(rows)
    if not rows:
        return f"*{MISSING.capitalize()}.*"
    lines = [head, tuple("---" if place in words else "---:" for place in range(len(head))), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times(value: float | None) -> str:
    """A ratio: three digits below ten, fewer above."""
    return MISSING if value is None else f"{value:.2f}" if value < 9.995 else f"{value:.0f}"


def duration(milliseconds: float | None) -> str:
    """A time in the unit that suits it."""
    if milliseconds is None:
        return MISSING
    for limit, factor, unit in ((1, 1e3, "µs"), (1e3, 1, "ms"), (float("inf"), 1e-3, "s")):
        if milliseconds < limit:
            value = milliseconds * factor
            return f"{value:.3g} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    raise AssertionError


def size(mebibytes: float | None) -> str:
    if mebibytes is None:
        return MISSING
    return f"{mebibytes:,.0f} MiB" if mebibytes < 9999 else f"{mebibytes / 1024:,.1f} GiB"


def megabytes(count: float | None) -> str:
    return MISSING if count is None else f"{count / 1e6:,.1f} MB"


def where(results: Results, kind: str, *names: str) -> str:
    """The machine of some results, in words."""
    about = results.machine(*(f"{name}-{kind}" for name in names))
    if about is None:
        return "NVIDIA H200" if kind == "gpu" else "CPU"
    versions = [
        "torch",
        *(name for name in ("triton", "transformers", "x-transformers", "bertviz") if name in about),
    ]
    told = ", ".join(f"{name} {about[name].partition('+')[0]}" for name in versions)
    old = f" {OLD}" if any(results.is_old(f"{name}-{kind}") for name in names) else ""
    if kind == "gpu":
        return f"{about['gpu']}, bf16, {told}{old}"
    return f"{about['processor']}, {about['threads']} threads, float32, {told}{old}"


def peers(results: Results) -> str:
    """The README's table: a few lines that say what it costs beside what."""
    lines: list[tuple[str, ...]] = []
    for kind, tokens, watched in (("cpu", 4096, 2048), ("gpu", 16384, 32768)):
        lines.append((f"**{where(results, kind, 'lens', 'attention').removesuffix(f' {OLD}')}**", "", ""))

        def old(name: str, kind: str = kind) -> str:
            return f" {OLD}" if results.is_old(f"{name}-{kind}") else ""

        lens = [results.figure(f"lens-{kind}", "of_best_forward", call=MOST, causal=causal) for causal in (True, False)]
        eager = results.figure(f"lens-{kind}", "of_best_forward", call="eager, with its map", causal=True)
        common = {row["candidate"]: row for row in results.rows(f"attention-{kind}", call="everybody, forward")}
        plain = common.get("sightline", {})
        length = f", {plain['tokens']:,} tokens" if plain else ""
        others = [
            f"{words} {times(common[name]['of_best_torch'])}"
            for name, words in (("FlexAttention, compiled", "FlexAttention"), ("eager", "eager"))
            if "of_best_torch" in common.get(name, {})
        ]
        seen = results.figure(f"watch-{kind}", "of_unwatched", call="watched", tokens=watched)
        beside = "torch's best kernel"
        peers = "; ".join([f"{beside} = 1", *others])
        lines.append((f"attention, causal{length}", times(plain.get("of_best_torch")) + old("attention"), peers))
        shared = results.rows(f"attention-{kind}", part="grouped", candidate="sightline")
        if shared:
            told = " / ".join(row["call"].rpartition(", ")[2] for row in shared)
            what = f"a token after {shared[0]['tokens']:,}, 32 heads over 8, {told}"
            lines.append(
                (what, " / ".join(times(row["of_best_torch"]) for row in shared) + old("attention"), f"{beside} = 1")
            )
        more = "" if eager is None else f"; eager with its map {times(eager)}"
        pair = " / ".join(times(value) for value in lens) if None not in lens else MISSING
        what = f"attention and its account, causal / full, {tokens:,} tokens"
        lines.append((what, pair + old("lens"), f"{beside} = 1{more}"))
        model = "SmolLM2-135M" if kind == "cpu" else "a model of Llama-3-8B's shape"
        what = f"{model}, all layers watched, {watched:,} tokens"
        lines.append((what, times(seen) + old("watch"), "the same unwatched = 1"))
        encoder = [row["ratio"] for row in results.rows(f"modules-{kind}", call="encoder, no gradients")]
        lines.append(
            (
                "an encoder, the same weights, the worse of two sizes",
                times(max(encoder, default=None)) + old("modules"),
                "torch.nn.TransformerEncoder = 1",
            )
        )
        if kind == "cpu":
            for call, words in (("encode", "64 sentences to vectors"), ("generate", "128 tokens written by SmolLM2")):
                took = times(results.figure("models-cpu", "ratio", call=call)) + old("models")
                lines.append((words, took, "transformers = 1"))
            page = [results.figure("page_size-cpu", f"{who}.bytes", tokens=512) for who in ("sightline", "bertviz")]
            own = megabytes(page[0]) + old("page_size")
            lines.append(("a page of 72 heads over 512 tokens", own, f"BertViz {megabytes(page[1])}"))
        else:
            shape = "in the shape of"
            for call, words in (
                ({"call": "encode"}, f"64 texts to vectors, {shape} MiniLM"),
                ({"call": "generate", "batch": 1}, f"128 tokens, {shape} SmolLM2-135M"),
                ({"call": "generate", "batch": 16}, "the same, 16 sequences at once"),
            ):
                if results.rows("models-gpu", **call):
                    took = times(results.figure("models-gpu", "ratio", **call)) + old("models")
                    lines.append((words, took, "transformers = 1"))
            whole = results.figure("lens-gpu", "seconds", call="one layer")
            bare = results.figure("growth-gpu", "median_ms", call="torch SDPA", tokens=1 << 20)
            lines.append(
                (
                    "one layer of 1,048,576 tokens with its account",
                    duration(None if whole is None else whole * 1e3) + old("lens"),
                    f"torch's output alone {duration(bare)}",
                )
            )
    return table(("time, unless a unit says otherwise; less is better", "Sightline", "beside"), lines, words=(0, 2))


def everybody(results: Results, kind: str) -> str:
    """One call by everybody: columns are forward, forward + backward, decoding."""
    name = f"attention-{kind}"
    calls = ("forward", "forward + backward", "decoding")
    found = {call: results.rows(name, call=f"everybody, {call}") for call in calls}
    candidates = dict.fromkeys(row["candidate"] for rows in found.values() for row in rows)
    rows = []
    for candidate in candidates:
        cells = []
        for call in calls:
            row = next((row for row in found[call] if row["candidate"] == candidate), {})
            value = row.get("of_best_torch")
            cells.append("—" if value is None else f"{times(value)} ({duration(row['median_ms'])})")
        if any(cell != "—" for cell in cells):
            rows.append((candidate, *cells))
    heads = tuple(f"{call}, {found[call][0]['tokens']:,} tokens" if found[call] else call for call in calls)
    return f"{where(results, kind, 'attention')}.\n\n" + table(("", *heads), rows)


def grouped(results: Results) -> str:
    """Decoding with heads that share keys: columns are machines and precisions."""
    found = {}
    for kind, device in (("cpu", "CPU"), ("gpu", "H200")):
        for row in results.rows(f"attention-{kind}", part="grouped"):
            column = f"{device}, {row['call'].rpartition(', ')[2]}, {row['tokens']:,} tokens"
            found.setdefault(column, {})[row["candidate"]] = row
    candidates = dict.fromkeys(name for rows in found.values() for name in rows)
    lines = [
        (
            name,
            *(f"{times(rows[name]['of_best_torch'])} ({duration(rows[name]['median_ms'])})" for rows in found.values()),
        )
        for name in candidates
    ]
    return table(("", *found), lines)


def short(results: Results) -> str:
    """What a call takes where the context is so short that nothing else counts: 500 calls of 16 tokens."""
    rows = []
    for kind, device in (("cpu", "CPU"), ("gpu", "H200")):
        for row in results.rows(f"attention-{kind}", part="overhead"):
            each = (f"{row['each'][who]:.1f} µs" for who in ("torch", "sightline"))
            rows.append((row["call"].removeprefix("overhead, "), device, *each, f"{row['microseconds']:.1f} µs"))
    return table(("", "", "torch SDPA", "sightline", "more"), rows, words=(0, 1))


def account(results: Results, kind: str) -> str:
    """`observe` with growing sets of statistics."""
    both = {causal: results.rows(f"lens-{kind}", causal=causal) for causal in (True, False)}
    rows = []
    for one in both[True]:
        other = next((row for row in both[False] if row["call"] == one["call"]), {})
        cells = (f"{times(row.get('of_best_forward'))} ({duration(row.get('median_ms'))})" for row in (one, other))
        rows.append((one["call"], *cells))
    tokens = f"{both[True][0]['tokens']:,} tokens" if both[True] else ""
    return f"{where(results, kind, 'lens')}; {tokens}.\n\n" + table(("", "causal", "full"), rows)


def influence(results: Results, kind: str) -> str:
    """What edges cost beside torch's passes, and rows beside the backward pass alone."""
    name = f"influence-{kind}"
    rows = [
        (
            row["call"],
            f"{row['tokens']:,}, {'causal' if row['causal'] else 'full'}",
            f"{times(row['of_forward_and_backward'])} of torch's forward and backward"
            + (f", {times(row['of_eager'])} of eager with retained gradients" if "of_eager" in row else ""),
            duration(row["median_ms"]),
        )
        for row in results.rows(name, part="edges")
    ]
    rows += [
        (row["call"], f"{row['tokens']:,}", f"{times(row['of_backward'])} of the backward without it",
         duration(row["median_ms"]))
        for row in results.rows(name, call="rows and heads")
    ]  # fmt: skip
    rows += [
        (row["call"], f"{row['tokens']:,}", f"{size(row['peak_mebibytes'])} at most", duration(1e3 * row["seconds"]))
        for row in results.rows(name, part="long")
    ]
    head = ("", "tokens", "", "took")
    return f"{where(results, kind, 'influence')}.\n\n{table(head, rows, words=(0, 1, 2))}"


def lengths(results: Results, kind: str) -> str:
    """New texts, odd lengths, and what a length costs that was never seen."""
    name = f"lengths-{kind}"
    if name not in results.files:
        return "Not measured yet."
    texts = []
    for row in results.rows(name, part="texts"):
        what = f"{row['texts']} texts of up to {row['longest']:,} tokens, layers: {row['layers']}"
        spent = (duration(row[who] * 1e3) for who in ("torch", "sightline"))
        texts.append((what, *spent, times(row["of_torch"])))
    pairs = list(dict.fromkeys((row["odd"], row["round"]) for row in results.rows(name, part="account")))
    account = []
    for first in results.rows(name, part="account", odd=pairs[0][0]):
        call, causal = first["call"], first["causal"]
        rows = [results.rows(name, part="account", odd=odd, call=call, causal=causal)[0] for odd, _ in pairs]
        cells = (f"{times(row['odd_of_forward'])} ({times(row['round_of_forward'])})" for row in rows)
        account.append((f"{call}, {'causal' if causal else 'full'}", *cells))
    unseen = []
    for mask in dict.fromkeys(row["mask"] for row in results.rows(name, part="unseen")):
        rows = results.rows(name, part="unseen", mask=mask)
        worst = max(row["worst_beyond_ms"] for row in rows)
        held = max(row["bytes_per_token_and_head"] or 0 for row in rows)
        unseen.append(
            (mask, str(sum(row["lengths"] for row in rows)), f"{max(worst, 0):.1f} ms", f"{held:,.0f}" if held else "")
        )
    return "\n\n".join(
        [
            f"{where(results, kind, 'lengths')}.",
            table(("each length new", "torch SDPA", "sightline", "of torch"), texts),
            table(("`sl.observe` / forward", *(f"{odd:,} ({even:,})" for odd, even in pairs)), account),
            table(("mask", "lengths", "at worst beyond 1.3 of warm", "bytes for each token and head"), unseen),
        ]
    )


def modules(results: Results, kind: str) -> str:
    rows = [
        (row["call"], f"{row['batch']} x {row['tokens']:,}", times(row["ratio"]), duration(row["torch"]["median_ms"]))
        for row in results.rows(f"modules-{kind}")
        if "ratio" in row
    ]
    head = ("", "batch x tokens", "sightline / torch.nn", "torch.nn")
    return f"{where(results, kind, 'modules')}.\n\n" + table(head, rows)


def models(results: Results) -> str:
    rows = []
    for row in results.rows("models-cpu"):
        ours, theirs = row["sightline"], row["transformers"]
        if "median_ms" in ours:
            rows.append((row["call"], times(row["ratio"]), duration(ours["median_ms"]), duration(theirs["median_ms"])))
        else:
            rows.append((row["call"], times(row["ratio"]), size(ours["peak_mib"]), size(theirs["peak_mib"])))
    head = ("", "sightline / transformers", "sightline", "transformers")
    found = f"{where(results, 'cpu', 'models')}.\n\n" + table(head, rows)
    rows = []
    for row in results.rows("models-gpu"):
        many = f"{row['texts']} texts" if "texts" in row else f"{row['tokens']} tokens x {row['batch']}"
        spent = (duration(row[who]["median_ms"]) for who in ("sightline", "transformers"))
        rows.append((f"{row['call']}, {many}", times(row["ratio"]), *spent))
    said = f"{where(results, 'gpu', 'models')}: random weights of the same shapes, one call after the other."
    return f"{found}\n\n{said}\n\n{table(head, rows)}" if rows else found


def watching(results: Results, kind: str) -> str:
    rows = []
    for row in results.rows(f"watch-{kind}"):
        spent = row["seconds"] * 1e3 if "seconds" in row else row.get("median_ms")
        share = times(row["of_unwatched"]) if "of_unwatched" in row else ""
        took = "does not fit" if row.get("fits") is False else duration(spent)
        memory = size(row["peak_mebibytes"]) if "peak_mebibytes" in row else ""
        rows.append((row["call"], f"{row['tokens']:,}", share, took, memory))
    head = ("", "tokens", "of unwatched", "time", "memory at the peak")
    return f"{where(results, kind, 'watch')}.\n\n" + table(head, rows)


def growth(results: Results, kind: str) -> str:
    rows = []
    for row in results.rows(f"growth-{kind}"):
        if not row["call"].startswith("exponent, "):
            continue
        call = row["call"].removeprefix("exponent, ")
        last = results.row(f"growth-{kind}", call=call, tokens=row["to"])
        powers = ("—" if row[what] is None else f"n^{row[what]:.2f}" for what in ("time", "memory"))
        rows.append((call, f"{row['to']:,}", duration(last["median_ms"]), size(last["mebibytes"]), *powers))
    head = ("", "longest context", "time there", "memory there", "time grows as", "memory grows as")
    picture = f"\n\n![Time and memory over the length of the context](images/growth-{kind}.svg)" if rows else ""
    return f"{where(results, kind, 'growth')}.\n\n" + table(head, rows) + picture


def edits(results: Results, kind: str) -> str:
    """What edits cost, beside what they take the place of."""
    rows = []
    for row in results.rows(f"edits-{kind}"):
        long = f"{row['tokens']:,}"
        if row["part"] == "cut":
            of, took = f"{times(row['of_unedited'])} of unedited", duration(row["median_ms"])
            rows.append((row["call"], long, of, took, size(row["mebibytes"])))
        else:
            of, took = f"{times(row['of_one_by_one'])} of one run for each head", duration(row["seconds"] * 1e3)
            rows.append((f"{row['call']}, {row['heads']} heads", long, of, took, ""))
    head = ("", "tokens", "of what", "time", "memory")
    return f"{where(results, kind, 'edits')}.\n\n" + table(head, rows)


def other_tools(results: Results) -> str:
    """The same questions asked of others: time beside ours, memory, and how far the numbers are from float64's."""
    rows, before = [], None
    for row in results.rows("peers-cpu"):
        question = (row["call"], f"{row['tokens']:,}")
        shown = question if question != before else ("", "")
        off = "" if row["apart"] is None else f"{row['apart']:.0e}"
        rows.append((*shown, row["by"], times(row["of_ours"]), duration(row["median_ms"]), size(row["mebibytes"]), off))
        before = question
    head = ("", "tokens", "by", "of ours", "time", "memory", "off by")
    if not rows:
        return table(head, rows)
    rounds = " to ".join(str(count) for count in sorted({row["runs"] for row in results.rows("peers-cpu")}))
    return f"{where(results, 'cpu', 'peers')}; rounds: {rounds}.\n\n" + table(head, rows, words=(0, 2))


def page_size(results: Results) -> str:
    rows = []
    for row in results.rows("page_size-cpu"):
        cells = []
        for who in ("sightline", "bertviz"):
            found = row.get(who, {})
            cells += [megabytes(found.get("bytes")), duration(found.get("median_ms"))]
        rows.append((f"{row['tokens']}", *cells))
    head = ("tokens", "Sightline", "made in", "BertViz", "made in")
    return f"{where(results, 'cpu', 'page_size')}.\n\n" + table(head, rows)


def explorer(results: Results) -> str:
    """What the explorer takes, beside what it may take."""
    filling, full = "further tiles while the overview is filled", "further tiles once the overview is full"
    figures = {
        "first full view of a map of 65,536 x 65,536": ("first full view", "seconds", "3 s"),
        "a tile of it that nobody asked for before, in the first seconds": (filling, "median_ms", "150 ms"),
        "such a tile later": (full, "median_ms", "150 ms"),
        "memory of the server": ("memory of the server", "most_mib", "1,536 MiB"),
        "until all is sharp after a minute of panning": ("panning", "complete_after_seconds", "1 s"),
        "frames a second while panning": ("panning", "frames_a_second_median", "30 or more"),
        "memory of the page while panning": ("panning", "page_most_mib", "286 MiB"),
        "an answer while fifty clients ask, some slow, some broken": ("50 clients", "first_requests.median_ms", ""),
        "SmolLM2 on 2,048 tokens, from the click to the map": ("smollm2 in the page", "run_seconds", ""),
        "another head of it": ("smollm2 in the page", "switch_seconds", ""),
    }
    there = {row["name"] for row in results.rows("explorer-cpu")}
    rows = []
    for what, (name, key, budget) in figures.items():
        value = results.figure("explorer-cpu", key, name=name)
        if value is None and there:
            raise KeyError(f"explorer-cpu has no {key!r} of {name!r}, only rows of {sorted(there)}")
        if value is None:
            shown = MISSING
        elif key.endswith("mib"):
            shown = size(value)
        elif key.endswith("median") and "frames" in key:
            shown = f"{value:.0f}"
        else:
            shown = duration(value * (1e3 if "seconds" in key else 1))
        rows.append((what, shown + _slow_levels(results.row("explorer-cpu", name=name), key), budget))
    return f"{where(results, 'cpu', 'explorer')}.\n\n" + table(("", "measured", "may take"), rows)


def _slow_levels(row: dict | None, key: str) -> str:
    """The levels that take longer than all may together: a median over all does not show them."""
    levels = (row or {}).get("levels", {}) if key == "median_ms" else {}
    medians = {int(level): one["median_ms"] for level, one in levels.items()}
    slow = {level: value for level, value in medians.items() if value > (row or {})["budget_ms"]}
    told = [f"{duration(value)} at level {level}" for level, value in sorted(slow.items(), key=lambda one: -one[1])]
    return f" ({', '.join(told)})" if told else ""


def installs(results: Results) -> str:
    """The install from the package index alone, by Python."""
    rows = sorted(results.rows("installs-cpu"), key=lambda row: [int(part) for part in row["python"].split(".")])
    lines = [
        (
            row["python"],
            f"{row['torch']}, {row['triton']}",
            f"{row['packages']}",
            f"{row['gigabytes']:.1f} GB",
            f"{row['seconds']:,} s",
            f"{row['passed']:,} passed" + (f", {row['failed']} failed" if row.get("failed") else ""),
        )
        for row in rows
    ]
    return table(("Python", "torch, Triton", "packages", "size", "took", "a part of the tests"), lines, words=(0, 1))


def extras(results: Results) -> str:
    """Every extra in an environment of its own."""
    lines = []
    for row in results.rows("extras-cpu", versions="pinned"):
        oldest = results.row("extras-cpu", versions="oldest", extra=row["extra"])
        own = [name for name in row["works"] if row["extra"] == "none" or name != "attend, watch, look"]
        same = oldest is not None and oldest["works"] == row["works"]
        said = "; ".join(f"{what}: {how}" for one in (row, oldest) if one for what, how in one["wrong"].items())
        lines.append(
            (
                row["extra"] if row["extra"] == "none" else f"`{row['extra']}`",
                f"{len(row['packages'])}",
                f"{row['megabytes']:,.0f} MB",
                ", ".join(own),
                "the same" if same else MISSING if oldest is None else ", ".join(oldest["works"]),
                said or "yes",
            )
        )
    head = (
        "extra alone",
        "packages",
        "size",
        "works there",
        "with the oldest",
        "all else names its extra",
    )
    return table(head, lines, words=(0, 3, 4, 5))


def _of(kind: str, make: Callable[[Results, str], str]) -> Callable[[Results], str]:
    return lambda results: make(results, kind)


def ladder(results: Results) -> str:
    """Every step of the ladder over its seeds: what it brought, and whether it helped."""
    from sightline.lessons.ladder import RUNGS, report

    ladders = [row["rungs"] for row in results.rows("ladder-cpu")]
    adds = {rung.name: rung.adds for rung in RUNGS}
    rows = [
        (gain.name, adds[gain.name], f"{gain.mean:+.3f} ± {gain.spread:.3f}", gain.verdict)
        for gain in report.gains(ladders)
    ]
    return table(("step", "what it adds", "better by (nats per character)", "it"), rows, words=(0, 1, 3))


def references(results: Results) -> str:
    """The heads that follow a reference most often, with each link and over both, and what chance gives."""
    rows = []
    kinds = ("so", "because", "both")
    for found in results.rows("references-cpu"):
        hits = {
            kind: {
                tuple(line[:2]): sum(line[3:]) for line in ([int(x) for x in one.split()] for one in found[kind]["all"])
            }
            for kind in kinds[:2]
        }
        hits["both"] = {head: count + hits["because"][head] for head, count in hits["so"].items()}
        bests = [found[kind]["best"][0] for kind in kinds]
        for layer, head in dict.fromkeys((best["layer"], best["head"]) for best in bests):
            rows.append(
                (
                    f"{found['model']}, {found['heads']} heads",
                    f"layer {layer}, head {head}",
                    *(f"{hits[kind][layer, head]} of {found[kind]['sentences']}" for kind in kinds),
                )
            )
        chance = ((found[kind]["best_by_chance"], found[kind]["sentences"]) for kind in kinds)
        rows.append(
            ("", "*the best of all by chance*", *(f"{round(share * count)} of {count}" for share, count in chance))
        )
    return table(("model", "head", "hits with so", "with because", "together"), rows, words=(0, 1))


def survey(results: Results) -> str:
    """Workers of a survey against one."""
    rows = results.rows("survey-cpu")
    if not rows:
        return table((), ())
    first = rows[0]
    same = "the same rows" if all(row["same_rows"] for row in rows) else "DIFFERENT ROWS"
    said = (
        f"SmolLM2-135M-Instruct (4-bit weights) over {first['texts']} pieces of {first['corpus']}, about "
        f"{first['tokens']:.0f} tokens each, {first['rows']:,} rows; in turns, rounds: {first['rounds']}, on "
        f"{where(results, 'cpu', 'survey')}; other work may have shared the cores. All wrote {same}."
    )
    shown = [
        (
            str(row["workers"]),
            f"{row['texts_per_second']:.2f}",
            times(row["of_one_worker"]),
            f"{row['first_part']:.0f} s",
            f"{row['seconds']:.0f} s",
        )
        for row in rows
    ]
    head = ("workers", "texts a second", "of one worker", "until the first part (loading)", "all of it")
    return f"{said}\n\n{table(head, shown, words=())}"


def on_paper(results: Results) -> str:
    """What several devices would take for four million tokens: arithmetic over what one device took."""
    tokens, wanted, heads, dim = 1 << 20, 1 << 22, 16, 128
    found = [results.figure("growth-gpu", "median_ms", call=call, tokens=tokens) for call in ("attention", "observe")]
    if None in found:
        return table((), ())
    attention, both = (milliseconds / 1e3 for milliseconds in found)
    more = both - attention
    sent = {"attention": heads * dim * 2 * 2, "statistics": heads * dim * 2}
    home = {"attention": 0, "statistics": heads * 4}
    said = (
        f"t₁ = {attention:.2f} s and s₁ = {more:.2f} s: one H200, N₁ = {tokens:,} tokens, {heads} heads of {dim}, "
        f"bfloat16 (`growth-gpu.json`: attention, and what observing adds). A token "
        f"sends b_kv = {sent['attention']:,} bytes of keys and values, or b_k = {sent['statistics']:,} of keys alone "
        f"and b_r = {home['statistics']:,} of what they received, which goes home. B is taken as 450 "
        f"GB/s (NVLink, in one machine) or 50 GB/s (a network of 400 Gbit/s). For "
        f"N = {wanted:,}:"
    )
    rows = []
    for devices, name, bandwidth in ((1, "1", None), (4, "4, NVLink", 450e9), (64, "64, network", 50e9)):
        row = [name]
        for seconds, part in ((attention, "attention"), (more, "statistics")):
            computing = seconds * (wanted / tokens) ** 2 / devices
            a_token = (devices - 1) / devices * sent[part] + home[part]
            moving = 0.0 if bandwidth is None else wanted * a_token / bandwidth
            row += [f"{computing + moving:.3g} s", "" if bandwidth is None else f"{moving:.2f} s"]
        rows.append(tuple(row))
    return f"{said}\n\n{table(('devices', 'attention', 'of it transfers', 'statistics', 'of it transfers'), rows)}"


BLOCKS: dict[str, Callable[[Results], str]] = {
    "survey": survey,
    "on-paper": on_paper,
    "peers": peers,
    "other-tools": other_tools,
    "scoreboard": lambda results: table(*scoreboard(results), words=(0, 1, 5)),
    "models": models,
    "page-size": page_size,
    "explorer": explorer,
    "short": short,
    "grouped": grouped,
    "installs": installs,
    "extras": extras,
    "references": references,
    "ladder": ladder,
}
for _kind in ("cpu", "gpu"):
    for _name, _make in {
        "everybody": everybody,
        "account": account,
        "lengths": lengths,
        "modules": modules,
        "watching": watching,
        "growth": growth,
        "influence": influence,
        "edits": edits,
    }.items():
        BLOCKS[f"{_name}-{_kind}"] = _of(_kind, _make)
