"""What `sl.monitor` costs a training: a small Llama, eager and compiled, beside the same without it.

    python benchmarks/monitor.py [--only eager] [--out FOLDER]

Figures: a step that is recorded as a multiple of the plain step, the two taking turns; what counting adds to a step in
between, which runs the same code as without a monitor; and what follows for a training that is recorded every 50 steps.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from harness import QUICK, compare, kept, ratio, write

import sightline as sl

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
WIDTH, HEADS, LAYERS = (64, 4, 2) if QUICK else (1024, 16, 8) if GPU else (256, 8, 4)
BATCH, TIME = (2, 33) if QUICK else (8, 1024) if GPU else (4, 256)
EVERY = 50
CALL = "a step of training, "


def llama() -> torch.nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        vocab_size=4096,
        attention_dropout=0.1,
        use_cache=False,
    )
    made = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    return made.to(DEVICE, DTYPE).train()


def measure(how: str) -> dict:
    model = llama()
    run = torch.compile(model) if how == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 4096, (BATCH, TIME), device=DEVICE)
    mask = torch.ones_like(ids)
    mask[-1, : TIME // 3] = 0  # padded on the left

    def step() -> None:
        run(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def recorded() -> None:
        with sl.monitor(model) as monitor:
            step()
            monitor.step()
        if len(monitor.latest or ()) != LAYERS:
            raise SystemExit(f"{how}: the monitor saw {monitor.latest!r}, not {LAYERS} layers ({monitor.unseen})")

    steps: dict[str, Callable[[], object]] = {"plain": step, "recorded": recorded}
    result = compare(steps, repeats=9, in_a_row=True)
    due = ratio(result, "recorded", "plain")
    rest = 1 + between(model) / result["plain"]["median_ms"]
    return {
        "call": CALL + how,
        "every": EVERY,
        "batch": BATCH,
        "tokens": TIME,
        "layers": LAYERS,
        "recorded": due,
        "between": rest,
        "of_unwatched": ((EVERY - 1) * rest + due) / EVERY,
        "candidates": dict(result),
    }


def between(model: torch.nn.Module) -> float:
    """Milliseconds that a monitor adds to a step that it does not record: all it does is to count."""
    monitor = sl.monitor(model, every=1 << 60)
    with warnings.catch_warnings(action="ignore"):  # nothing ran in step 0
        monitor.step()
    before = time.perf_counter()
    for _ in range(1000):
        monitor.step()
    return time.perf_counter() - before  # seconds for a thousand


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--only", choices=["eager", "compiled"], help="the other one stays as it was")
    given = parser.parse_args()
    torch.manual_seed(0)
    which = [given.only] if given.only else ["eager", "compiled"]
    rows = kept("monitor", "call", [CALL + how for how in which], given.out)
    for how in which:
        rows.append(measure(how))
        print(f"{how}: recorded {rows[-1]['recorded']:.2f}, in all {rows[-1]['of_unwatched']:.4f}")
    print(write("monitor", rows, given.out))


if __name__ == "__main__":
    main()
