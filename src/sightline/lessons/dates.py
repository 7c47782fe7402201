"""Dates: a small encoder-decoder learns to rewrite dates, and its cross-attention shows how (S1.1, S1.7, S2.2).

It is trained here and now, on examples that are made here: `May 5th 2000` is to become `2000-05-05`. Days that are
held out are never seen in training, in no spelling.
"""

from __future__ import annotations

import datetime
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline import plots
from sightline.errors import InputError
from sightline.lessons.ladder.threads import threads
from sightline.lessons.page import Page
from sightline.masks import padding
from sightline.nn import Transformer
from sightline.positions import Sinusoidal
from sightline.watching import watch

if TYPE_CHECKING:
    from jaxtyping import Float, Int

TITLE = "Rewriting dates: attention from one sequence to another"
SOURCES = ("S1.1", "S1.7", "S2.2")

MONTHS = ["January", "February", "March", "April", "May", "June"]
MONTHS += ["July", "August", "September", "October", "November", "December"]
FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
HELD_OUT = 2000  # days of the 73,049
STEPS, BATCH, EXAMPLES = 600, 128, 20_000
WIDTH, HEADS = 64, 4
MEASURED = "99.9 % of the held-out dates exact, 46 seconds"
EXAMPLES_SHOWN = ("May 5th 2000", "7.11.2031", "30th of September 1987", "Feb 29 1904")
SHARES_OF = 60  # dates
START = 0  # the number of "nothing": it fills short inputs up, and is what the first character follows


def ordinal(day: int) -> str:
    """1st, 2nd, 3rd, 4th, …, 11th, 12th, 13th, …

    >>> [ordinal(day) for day in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '22nd', '23rd', '30th']
    """
    ending = "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


SPELLINGS: tuple[Callable[[datetime.date], str], ...] = (
    lambda date: f"{MONTHS[date.month - 1]} {ordinal(date.day)} {date.year}",
    lambda date: f"{MONTHS[date.month - 1]} {date.day}, {date.year}",
    lambda date: f"{date.day} {MONTHS[date.month - 1]} {date.year}",
    lambda date: f"{ordinal(date.day)} of {MONTHS[date.month - 1]} {date.year}",
    lambda date: f"{MONTHS[date.month - 1][:3]} {date.day} {date.year}",
    lambda date: f"{date.day}.{date.month}.{date.year}",
)
ALPHABET = "".join(sorted({*"0123456789-., ", *"".join(MONTHS), *"stndrdthof"}))
NUMBER = {character: number for number, character in enumerate(ALPHABET, start=1)}
LONGEST = len("30th of September 2000")
WRITTEN = len("2000-05-05")


def days(seed: int = 0) -> tuple[list[datetime.date], list[datetime.date]]:
    """All days of two centuries, in two parts: those to learn from, and those held out.

    >>> [len(part) for part in days()]
    [71049, 2000]
    """
    count = (LAST - FIRST).days + 1
    every = [FIRST + datetime.timedelta(i) for i in range(count)]
    random.Random(seed).shuffle(every)
    return every[HELD_OUT:], every[:HELD_OUT]


def spell(dates: Sequence[datetime.date], seed: int) -> list[tuple[str, str]]:
    """Each date in one of the spellings, drawn at random, and as it is to be rewritten.

    >>> spell([datetime.date(2000, 5, 5)], seed=1)
    [('May 5, 2000', '2000-05-05')]
    """
    draw = random.Random(seed)
    return [(draw.choice(SPELLINGS)(date), date.isoformat()) for date in dates]


def encode(texts: Sequence[str]) -> tuple[Int[Tensor, "batch time"], Int[Tensor, " batch"]]:
    """Texts as numbers, filled up to the longest, and their lengths."""
    for text in texts:
        unknown = sorted(set(text) - NUMBER.keys())
        if not text or unknown or len(text) > LONGEST:
            raise InputError(
                "this is not a date the model could read",
                expected=f"1 to {LONGEST} characters of {ALPHABET!r}",
                got=f"{text[:40]!r}" + (f" with {''.join(unknown)[:20]!r}" if unknown else ""),
                hint="May 5th 2000",
            )
    lengths = [len(text) for text in texts]
    longest = max(lengths)
    rows = [[NUMBER[c] for c in text] + [START] * (longest - len(text)) for text in texts]
    return torch.tensor(rows), torch.tensor(lengths)


class Rewriter(nn.Module):
    """An encoder that reads a date, and a decoder that writes it, looking back at what was read.

    >>> model = Rewriter()
    >>> source, lengths = encode(["May 5th 2000", "5.5.2000"])
    >>> target, _ = encode(["2000-05-05", "2000-05-05"])
    >>> model(source, lengths, target).shape  # what comes at each of the ten places, and after the last
    torch.Size([2, 11, 43])
    """

    def __init__(self, width: int = WIDTH, heads: int = HEADS, layers: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET) + 1, width)
        self.transformer = Transformer(width, heads, layers, layers, positions=Sinusoidal(width))
        self.readout = nn.Linear(width, len(ALPHABET) + 1)

    def forward(
        self, source: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"], target: Int[Tensor, "batch written"]
    ) -> Float[Tensor, "batch next alphabet"]:
        """The logits of each next character, when the ones before it are known."""
        before = F.pad(target, (1, 0), value=START)
        real = padding(lengths)  # nobody looks at what only fills up
        z = self.transformer(self.embed(source), self.embed(before), source_mask=real, memory_mask=real)
        logits: Tensor = self.readout(z)
        return logits

    @torch.no_grad()
    def rewrite(self, texts: Sequence[str]) -> list[str]:
        """Write character after character, each time the likeliest one; the cache keeps what was computed before."""
        source, lengths = encode(texts)
        real = padding(lengths)
        memory = self.transformer.encoder(self.embed(source), mask=real)
        cache = self.transformer.decoder.new_cache()
        latest, written = torch.full((len(texts), 1), START), []
        for _ in range(WRITTEN):
            z = self.transformer.decoder(self.embed(latest), memory, memory_mask=real, cache=cache)
            latest = self.readout(z)[..., 1:].argmax(-1) + 1  # a character, never nothing
            written.append(latest)
        return ["".join(ALPHABET[i - 1] for i in row) for row in torch.cat(written, 1).tolist()]

    def alignment(self, text: str) -> tuple[str, Float[Tensor, "heads written read"]]:
        """What is written for a text, and where each head looked when each character was written."""
        (written,) = self.rewrite([text])
        target, _ = encode([written])
        # One pass over all that was written has the same numbers as writing it step by step.
        with torch.no_grad(), watch(self, layers="*.cross_attention") as seen:
            self(*encode([text]), target)
        return written, seen[0].tile(slice(0, WRITTEN), slice(None))[0]


def train(
    steps: int = STEPS, seed: int = 0, listen: Callable[[int, float], None] = lambda step, loss: None
) -> Rewriter:
    """A rewriter, trained on days that are not held out. The same seed gives the same one on the same CPU."""
    learnt, _ = days()
    pairs = spell(random.Random(seed).choices(learnt, k=EXAMPLES), seed)
    source, lengths = encode([text for text, _ in pairs])
    target, _ = encode([answer for _, answer in pairs])
    with torch.random.fork_rng(devices=[]), threads(1):
        torch.manual_seed(seed)
        model = Rewriter()
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
        for step in range(steps):
            for group in optimizer.param_groups:  # up over the first twelfth, then half a cosine down
                warm = min(1, 12 * (step + 1) / steps)
                group["lr"] = 3e-3 * warm * (0.51 + 0.49 * math.cos(math.pi * step / steps))
            rows = torch.randint(EXAMPLES, (BATCH,))
            logits = model(source[rows], lengths[rows], target[rows])[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), target[rows].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            listen(step + 1, loss.item())
    return model.eval()


def fields(text: str) -> dict[str, range]:
    """Where a text says the year, the month and the day.

    >>> {name: "5th of May 2000"[place.start : place.stop] for name, place in fields("5th of May 2000").items()}
    {'year': '2000', 'month': 'May', 'day': '5th'}
    >>> {name: "5.11.2000"[place.start : place.stop] for name, place in fields("5.11.2000").items()}
    {'year': '2000', 'month': '11', 'day': '5'}
    """
    words = re.search(r"[A-Z][a-z]+", text) or re.search(r"(?<=\.)\d+(?=\.)", text)
    found = {"year": re.search(r"\d{4}$", text), "month": words, "day": re.search(r"\b\d{1,2}(st|nd|rd|th)?\b", text)}
    return {name: range(*match.span()) for name, match in found.items() if match is not None}


def shares(model: Rewriter, texts: Sequence[str]) -> Float[Tensor, "3 4"]:
    """Of what is written of the year, the month and the day: how much attention goes to where each of them is read.

    Means over texts and heads; the last column is what goes elsewhere: to blanks, commas, `of`.
    """
    total = torch.zeros(3, 4)
    rows = {"year": slice(0, 4), "month": slice(5, 7), "day": slice(8, 10)}
    for text in texts:
        _, weights = model.alignment(text)
        places = fields(text)
        for i, wrote in enumerate(rows.values()):
            looked = weights[:, wrote].mean((0, 1))  # [read]
            there = torch.stack([looked[list(places[name])].sum() for name in rows])
            total[i] += torch.cat((there, 1 - there.sum(0, keepdim=True)))
    return total / len(texts)


@threads(1)  # the model is small: more would wait for each other
def lesson(page: Page, steps: int = STEPS) -> None:
    page.heading("Two sequences")
    page.text(
        """Self-attention relates the parts of one sequence to each other. **Attention** in the wider sense has
        weights that come from another sequence: what is written looks at what was read. That is cross-attention,
        and the classic place for it is between an encoder and a decoder."""
    )
    _, held_out = days()
    pairs = spell(held_out, seed=1)
    page.text(
        f"""The task: a date comes in one of {len(SPELLINGS)} spellings, character by character, and is to be
        rewritten as year, month and day. Examples are made here, from the days between {FIRST.year} and {LAST.year};
        {HELD_OUT:,} days are held out and never seen in training, in no spelling."""
    )
    page.table(["read", "to be written"], [[f"`{text}`", f"`{answer}`"] for text, answer in pairs[:6]])

    page.heading("The model")
    page.text(
        f"""An encoder layer is self-attention and a feed-forward network; a decoder layer has attention to the
        encoder's output between the two. Here there is one of each, {HEADS} heads, width {WIDTH}: the outputs of the
        heads are concatenated and multiplied by one more matrix. Without positions the model could not tell
        `12.10.` from `10.12.`: sinusoids are added on both sides."""
    )
    page.code(
        f"""
        model = sl.nn.Transformer({WIDTH}, heads={HEADS}, encoder_layers=1, decoder_layers=1,
                                  positions=sl.positions.Sinusoidal({WIDTH}))
        """
    )
    clock, processor = time.perf_counter(), time.process_time()
    curve: list[tuple[int, float]] = []
    with _bar(page, steps) as show:

        def listen(step: int, loss: float) -> None:
            show(step)
            if step == 1 or step % max(1, steps // 6) == 0:
                curve.append((step, loss))

        model = train(steps, listen=listen)
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
    page.text(
        f"""It has {sum(p.numel() for p in model.parameters()):,} parameters, and was trained just now: {steps} steps of
        {BATCH} examples, {cpu_seconds:.0f} seconds of one processor. (When this lesson was written: {MEASURED}.)"""
    )
    page.table(
        ["step", "loss of its batch (nats per character)"], [[str(step), loss] for step, loss in curve], digits=4
    )

    page.heading("What it has learnt")
    answers = model.rewrite([text for text, _ in pairs])
    wrong = [(text, answer, right) for answer, (text, right) in zip(answers, pairs) if answer != right]
    exact = 1 - len(wrong) / len(pairs)
    page.text(
        f"""Of the {len(pairs):,} held-out dates **{exact:.1%}** come out exactly right, all ten characters. It writes
        one character after another, each time the likeliest; the decoder's cache keeps the keys and values of what
        was written and read before."""
    )
    page.table(["read", "written"], [[f"`{text}`", f"`{model.rewrite([text])[0]}`"] for text in EXAMPLES_SHOWN])
    if wrong:
        page.table(["read", "written, and wrong", "right"], [[f"`{part}`" for part in row] for row in wrong[:5]])
    else:
        page.text("Not one of them is wrong.")

    page.heading("The alignment")
    page.text(
        """While a character is written, the decoder's cross-attention says where it looks. Nobody told it which part
        of the input is the year: that it looks there follows from the task alone. A key is not only the character
        that stands there: the encoder has let every character look at its neighbours before."""
    )
    for index, text in enumerate(EXAMPLES_SHOWN[:3]):
        written, weights = model.alignment(text)
        mean = weights.mean(0)
        if not index:
            caption = f"`{text}` to `{written}`: the mean of the heads."
            page.heat(mean.round(decimals=2), list(written), list(text), digits=2, caption=caption)
        page.picture(
            partial(plots.alignment, mean, written, text, title=f"{text} → {written}"),
            f"{text} read, {written} written: where each written character looked; a ring marks the strongest.",
        )
        page.keep(f"alignment of {text}", (written, weights))
    table = shares(model, [text for text, _ in pairs[:SHARES_OF]])
    page.table(
        ["written", "read: year", "month", "day", "elsewhere"],
        [[name, *row] for name, row in zip(("year", "month", "day"), table.tolist())],
        digits=2,
        caption=f"Shares of attention, over {SHARES_OF} held-out dates in all spellings and all heads.",
    )
    for name, value in {"exact": exact, "seconds": seconds, "cpu_seconds": cpu_seconds, "shares": table}.items():
        page.keep(name, value)
    page.keep("model", model)
    page.keep("curve", curve)


@contextmanager
def _bar(page: Page, steps: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, where there is a terminal to show it."""
    if page.console is None:
        yield lambda step: None
        return
    from rich.progress import Progress

    with Progress(console=page.console, transient=True) as progress:
        task = progress.add_task("training", total=steps)
        yield lambda step: progress.update(task, completed=step)
