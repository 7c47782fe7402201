"""What watching a model costs: time and memory beside the same model unwatched, and beside eager attention.

    python benchmarks/watch.py [--out FOLDER] [--tokens N] [--quick] [--parts model short]

On the CPU: SmolLM2-135M in transformers, float32, 2,048 tokens. On a GPU: a model of Llama-3-8B's shape with random
bf16 weights at 32,768 tokens, all layers watched; then at 131,072 tokens with two layers; and eager attention with its
maps at growing lengths, until it does not fit. On both also a padded sequence, on the model's own attention and the
compact way; and short texts and a generation with eight layers of a Llama, as one waits for them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from harness import compare, kept, ratio, write

from sightline.watching import Seen, watch

GPU = torch.cuda.is_available()
TOKENS = 32768 if GPU else 2048
MIB = 2**20


def small_model(implementation: str = "sdpa") -> torch.nn.Module:
    """SmolLM2-135M as transformers runs it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from sightline.models.checkpoints.opening import open_checkpoint

    checkpoint = open_checkpoint("smollm2")
    config = LlamaConfig(**{k: v for k, v in checkpoint.config.items() if k not in ("architectures", "model_type")})
    config._attn_implementation = implementation
    model = LlamaForCausalLM(config).eval()
    state = {name: checkpoint.read(name, torch.float32) for name in checkpoint.names}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"not all weights were taken: {missing}, {unexpected}")
    model.tie_weights()
    return model


def large_model(implementation: str = "sdpa") -> torch.nn.Module:
    """A model of the shape of Llama-3-8B with random weights, made on the GPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        tie_word_embeddings=False,
    )
    config._attn_implementation = implementation
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def text(tokens: int) -> torch.Tensor:
    """Ids of real text on the CPU, random ones on the GPU, where the weights are random too."""
    if GPU:
        return torch.randint(0, 128256, (1, tokens), device="cuda")
    from pydoc_data.topics import topics

    from sightline.models.checkpoints.opening import open_checkpoint

    tokenizer = open_checkpoint("smollm2").tokenizer
    ids = tokenizer.encode("\n".join(topics.values())[: 12 * tokens]).ids
    return torch.tensor([ids[:tokens]])


def forward(model: torch.nn.Module, ids: torch.Tensor, **options: object) -> object:
    with torch.inference_mode():
        return model(ids, use_cache=False, logits_to_keep=1, **options)


def watched(model: torch.nn.Module, ids: torch.Tensor, **options: object) -> object:
    with watch(model, **options) as seen:
        forward(model, ids)
    return seen


def candidates(model: torch.nn.Module, ids: torch.Tensor) -> dict[str, Callable[[], object]]:
    runs = {
        "unwatched": lambda: forward(model, ids),
        "watched": lambda: watched(model, ids),
        "watched, received and overview": lambda: watched(model, ids, stats=("received", "overview")),
        "watched, two layers": lambda: watched(model, ids, layers=[0, 15]),
    }
    if GPU:
        runs["watched, shares alone"] = lambda: watched(model, ids, stats=("shares",))
        runs["watched, overview of maxima too"] = lambda: watched(
            model, ids, stats=("entropy", "received", "overview", "overview_max", "shares")
        )
    return runs


def cost(model: torch.nn.Module, tokens: int, repeats: int) -> list[dict]:
    ids = text(tokens)
    result = compare(candidates(model, ids), repeats=repeats, warmups=1)
    rows = []
    for name in result:
        row = {"call": name, "tokens": tokens, "of_unwatched": ratio(result, name, "unwatched")} | result[name]
        if GPU:
            row["peak_mebibytes"] = peak(candidates(model, ids)[name])
        rows.append(row)
        more = {k: round(v) for k, v in row.items() if k in ("median_ms", "peak_mebibytes")}
        print(f"{name:32} {tokens:7,} tokens {row['of_unwatched']:.3f}", more, flush=True)
    return rows


def padded(model: torch.nn.Module, tokens: int, repeats: int) -> list[dict]:
    """Under padding, where the model writes its mask out as queries x keys, and the compact way does not."""
    ids = text(tokens)
    mask = torch.ones_like(ids)
    mask[:, : tokens // 8] = 0

    def run(**options: object) -> object:
        with watch(model, **options) as seen:
            forward(model, ids, attention_mask=mask)
        return seen

    runs = {
        "padded, unwatched": lambda: forward(model, ids, attention_mask=mask),
        "padded, watched": run,
        "padded, watched the compact way": lambda: run(compact=True),
    }
    result = compare(runs, repeats=repeats, warmups=1)
    rows = []
    for name in result:
        row = {"call": name, "tokens": tokens, "of_unwatched": ratio(result, name, "padded, unwatched")} | result[name]
        if GPU:
            row["peak_mebibytes"] = peak(runs[name])
        rows.append(row)
        print(f"{name:32} {tokens:7,} tokens {row['of_unwatched']:.3f}", flush=True)
    return rows


def middle_model(implementation: str = "sdpa") -> torch.nn.Module:
    """Eight layers of a Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    config._attn_implementation = implementation
    model = LlamaForCausalLM(config).eval()
    return model.cuda().bfloat16() if GPU else model


def short(repeats: int) -> list[dict]:
    """Short texts and a generation, where the host's work is what counts; eager attention gives its maps."""
    if GPU:
        return _short(repeats, "eight layers", ((64, 0), (300, 0), (777, 0), (64, 64)))
    calls = (*((tokens, 0) for tokens in (64, 128, 300, 512, 777, 1024)), (64, 128))
    rows, threads = _short(repeats, "eight layers", calls), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return rows + _short(repeats, "eight layers, one thread", calls)
    finally:
        torch.set_num_threads(threads)


def _short(repeats: int, layers: str, calls: tuple[tuple[int, int], ...]) -> list[dict]:
    own, eager = middle_model(), middle_model("eager")
    rows = []
    for tokens, new in calls:
        ids = torch.randint(0, 1000, (1, tokens), device="cuda" if GPU else "cpu")

        def run(model: torch.nn.Module, ids: torch.Tensor = ids, new: int = new, **options: object) -> None:
            with torch.inference_mode():
                if new:
                    length = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
                    model.generate(ids, **length, return_dict_in_generate=True, **options)
                else:
                    model(ids, **options)

        def run_watched(run: Callable[..., None] = run) -> Seen:
            with watch(own) as seen:
                run(own)
            return seen

        runs = {
            "unwatched": lambda run=run: run(own),
            "watched": run_watched,
            # The account of a short text is made when somebody asks for it.
            "watched, and read": lambda run=run_watched: read(run()),
            "eager, output_attentions": lambda run=run: run(eager, output_attentions=True),
        }
        result = compare(runs, repeats=repeats, warmups=2, in_a_row=True)
        what = f"{layers}, {new} more tokens written" if new else layers
        for name in result:
            share = ratio(result, name, "unwatched")
            rows.append({"call": f"{what}: {name}", "tokens": tokens, "of_unwatched": share} | result[name])
            print(f"{rows[-1]['call']:56} {tokens:5,} tokens {share:.3f}", flush=True)
    return rows


def read(seen: Seen) -> list:
    """Ask for every layer."""
    return [seen[name] for name in seen.layers]


def peak(run: Callable[[], object]) -> float:
    """MiB at the peak of a run on the GPU, the model included."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / MIB


def one_run(name: str, tokens: int) -> None:
    """A run in a process of its own, for its peak memory: printed as JSON."""
    model = small_model("eager" if name.startswith("eager") else "sdpa")
    ids = text(tokens)
    forward(model, ids[:, :16])
    watched(model, ids[:, :16])
    # Loading takes more than running: the peak is counted anew from here.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    runs = candidates(model, ids) | {"eager": lambda: forward(model, ids, output_attentions=True)}
    start = time.perf_counter()
    kept = runs[name]()
    seconds = time.perf_counter() - start
    size = sum(_size(kept, layer) for layer in kept.layers) if name.startswith("watched") else 0
    found = {"seconds": seconds, "peak_mebibytes": _memory("VmHWM"), "before_mebibytes": before}
    print(json.dumps(found | {"kept_mebibytes": size / MIB}))


def _memory(what: str) -> float:
    """MiB of this process, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{what}:"))


def _size(seen: object, layer: str) -> int:
    sight = seen[layer]
    tensors = [sight.lse, *sight.kept.values(), *seen.shares(layer).values()]
    return sum(t.numel() * t.element_size() for t in tensors)


def memory(tokens: int) -> list[dict]:
    """Peak memory on the CPU, each run in a process of its own; of three, whose heaps differ, the one in the middle."""
    rows = []
    for name in ("unwatched", "watched", "eager"):
        command = [sys.executable, __file__, "--one", name, "--tokens", str(tokens)]
        several = []
        for _ in range(1 if name == "eager" else 3):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            several.append(json.loads(done.stdout.splitlines()[-1]))
        several.sort(key=lambda run: run["peak_mebibytes"])
        found = several[len(several) // 2]
        found["peaks_mebibytes"] = [run["peak_mebibytes"] for run in several]
        rows.append({"call": f"memory, {name}", "tokens": tokens} | found)
        print(
            f"{'memory, ' + name:32} {tokens:7,} tokens",
            {k: round(v, 1) for k, v in found.items() if isinstance(v, float)},
            flush=True,
        )
    return rows


def eager(lengths: tuple[int, ...], make: Callable[[str], torch.nn.Module]) -> list[dict]:
    """Eager attention with its maps, until it does not fit."""
    model = make("eager")
    rows = []
    for tokens in lengths:
        ids = text(tokens)
        row: dict = {"call": "eager, output_attentions", "tokens": tokens}
        try:
            forward(model, ids, output_attentions=True)
            start = time.perf_counter()
            row["peak_mebibytes"] = peak(lambda: forward(model, ids, output_attentions=True))
            row["seconds"] = time.perf_counter() - start
        except torch.OutOfMemoryError:
            row["fits"] = False
            torch.cuda.empty_cache()
        rows.append(row)
        print(row, flush=True)
        if row.get("fits") is False:
            break
    return rows


def long_context(model: torch.nn.Module) -> list[dict]:
    """131,072 tokens, two layers watched with pictures."""
    ids = text(131072)
    rows = []
    for name, run in (
        ("unwatched", lambda: forward(model, ids)),
        ("two layers watched", lambda: watched(model, ids, layers=[0, 31])),
    ):
        start = time.perf_counter()
        mebibytes = peak(run)
        seconds = time.perf_counter() - start
        about = {"call": f"long context, {name}", "tokens": 131072}
        rows.append(about | {"seconds": seconds, "peak_mebibytes": mebibytes})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the results")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, no long context")
    parser.add_argument("--parts", nargs="*", default=["model", "short"], choices=["model", "short"])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.one:
        one_run(options.one, options.tokens)
        return
    rows = kept("watch", "part", options.parts, options.out)
    measured = {"model": of_model, "short": lambda options: short(3 if options.quick else 15)}
    for part in options.parts:
        rows += [{"part": part, **row} for row in measured[part](options)]
        print("written:", write("watch", rows, options.out), flush=True)


def of_model(options: argparse.Namespace) -> list[dict]:
    """A large model on a GPU and a long context, a small one on a CPU and its memory."""
    repeats = 2 if options.quick else 5
    if not GPU:
        model = small_model()
        rows = cost(model, options.tokens, repeats) + padded(model, options.tokens, repeats)
        return rows + memory(options.tokens)
    model = large_model()
    rows = cost(model, options.tokens, repeats) + padded(model, min(options.tokens, 16384), repeats)
    if not options.quick:
        rows += long_context(model)
    del model
    torch.cuda.empty_cache()
    return rows + eager((2048, 4096, 8192, 16384, 32768), large_model)


if __name__ == "__main__":
    main()
