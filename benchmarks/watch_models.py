"""What `sl.watch` does to models of other libraries: whether their bits stay, what is seen of them, and what is not.

    python benchmarks/watch_models.py [--out FOLDER] [--only NAME …]

Small models with random weights, of all libraries that are installed, at odd lengths and padded on both sides. Of each:
output bits in evaluation, and loss, gradients and random numbers in training with dropout, watched and unwatched; the
layers seen and unseen; modules that are called attention, ran, and are neither; and the largest difference of a seen
weight to the one that the model itself gives in eager mode. Then what looking for attention written by hand costs.
"""

from __future__ import annotations

import argparse
import copy
import random
import re
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import zoo_others
import zoo_transformers
import zoo_vision
from harness import Rounds, kept, ratio, write
from torch import Tensor, nn
from zoo_transformers import Case

from sightline.watching import watch
from sightline.watching.intercept import function_mode
from sightline.watching.intercept.marks import Trace

ATTENDS = re.compile(r"attention|attn|multihead|^xca$", re.IGNORECASE)


def tensors(x: Any) -> Iterator[Tensor]:
    """All tensors of an output, in order."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict):
        for part in x.values():
            yield from tensors(part)
    elif isinstance(x, list | tuple):
        for part in x:
            yield from tensors(part)
    elif hasattr(x, "__dict__") and not isinstance(x, nn.Module | type):
        yield from tensors(vars(x))


def call(model: nn.Module, given: dict[str, Any]) -> Any:
    positional = given.get("args", ())
    return model(*positional, **{name: x for name, x in given.items() if name != "args"})


def same(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    return len(one) == len(other) and all(
        (a is None) == (b is None) and (a is None or b is None or _bits(a, b)) for a, b in zip(one, other)
    )


def _bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5))


def evaluated(model: nn.Module, given: dict, watched: bool) -> tuple[list[Tensor], Any]:
    torch.manual_seed(11)
    with torch.no_grad():
        if not watched:
            return [x.clone() for x in tensors(call(model, given))], None
        with watch(model) as seen:
            out = call(model, given)
        return list(tensors(out)), seen


def trained(model: nn.Module, given: dict, watched: bool) -> list[Tensor | None]:
    """Output, gradients, and the random number that comes next, of one step with dropout."""
    model = copy.deepcopy(model).train()  # batch norms count
    drop(model)
    torch.manual_seed(11)

    def step() -> list[Tensor]:
        out = [x for x in tensors(call(model, given)) if x.requires_grad]
        sum(x.float().square().mean() for x in out).backward()
        return [x.detach() for x in out]

    if watched:
        with watch(model):
            out = step()
    else:
        out = step()
    return [*out, *(None if p.grad is None else p.grad for p in model.parameters()), torch.rand(1)]


def drop(model: nn.Module) -> None:
    """Dropout everywhere, whatever the configuration says."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
        for name in ("dropout", "attention_dropout", "attn_dropout", "dropout_prob"):
            if isinstance(vars(module).get(name), float):
                setattr(module, name, 0.1)


def attending(model: nn.Module, given: dict) -> dict[str, str]:
    """The modules that ran and are called attention, with their classes, the innermost only."""
    ran: set[str] = set()
    names = dict(model.named_modules())
    hooks = [m.register_forward_pre_hook(lambda *_, name=name: ran.add(name)) for name, m in names.items()]
    with torch.no_grad():
        call(model, given)
    for hook in hooks:
        hook.remove()
    called = {name for name in ran if name and ATTENDS.search(type(names[name]).__name__)}
    inner = [name for name in called if not any(other.startswith(f"{name}.") for other in called)]
    return {name: type(names[name]).__name__ for name in sorted(inner)}


def unnamed(found: dict[str, str], said: list[str]) -> dict[str, str]:
    """Modules that are called attention and that no name stands for."""
    said = [name.split("#")[0] for name in said]
    return {
        name: kind
        for name, kind in found.items()
        if not any(f"{name}.".startswith(f"{other}.") or other.startswith(f"{name}.") for other in said)
    }


def from_eager(model: nn.Module, given: dict, seen: Any, plain: list[Tensor]) -> dict[str, Any]:
    """The largest differences of seen weights to the model's own in eager mode, which is watched too.

    Where eager mode computes something else (a ready mask of True and False is added to the scores by it), its weights
    are no measure for the other run, but for its own.
    """
    if not hasattr(model, "set_attn_implementation"):
        return {}
    model = copy.deepcopy(model)
    try:
        model.set_attn_implementation("eager")
    except (ValueError, NotImplementedError):
        return {}
    found: dict[str, list[Tensor]] = {}

    def take(name: str, out: Any) -> None:
        found.setdefault(name, []).extend(x for x in tensors(out) if x.dim() == 4)

    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(lambda _, __, out, name=name: take(name, out))
    out, mine = evaluated(model, given, True)
    first, other, real = out[0], plain[0], given.get("attention_mask")
    if isinstance(real, Tensor) and first.shape[:2] == real.shape:  # padding may differ, and nobody looks at it
        first, other = first[real.bool()], other[real.bool()]
    alike = torch.allclose(first, other, atol=1e-3, rtol=1e-3, equal_nan=True)
    return {
        "to_eager": farthest(seen, found) if alike else "eager mode gives another output",
        "eager": {"seen": len(mine.layers), "unseen": by_reason(mine.unseen), "difference": farthest(mine, found)},
    }


def farthest(seen: Any, maps: dict[str, list[Tensor]]) -> dict[str, Any] | None:
    """The largest difference to maps of the same shape, by the names of the layers, over rows that see something."""
    worst, count = 0.0, 0
    for name in seen.layers:
        sight = seen[name]
        _, _, queries, keys = sight.shape
        fitting = [x for x in maps.get(name, []) if tuple(x.shape) == sight.shape]
        if fitting:
            exists = (sight.lse > -torch.inf)[..., None]
            tile = sight.tile(slice(0, queries), slice(0, keys))
            worst = max(worst, float(((tile - fitting[-1]) * exists).abs().max()))
            count += 1
    return {"largest": worst, "layers": count} if count else None


def by_reason(unseen: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, reason in unseen.items():
        found.setdefault(reason, []).append(name)
    return found


def declare() -> None:
    """Let a torchvision be imported that was built for CUDA: its operators do not load on a CPU, and none is used."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        KEPT.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            KEPT[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except ImportError:
        pass


KEPT: list[torch.library.Library] = []


def one(case: Case) -> list[dict]:
    rows = []
    torch.manual_seed(5)
    model = case.make().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # attention far from even
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    for side in case.sides:
        torch.manual_seed(3)
        given = case.inputs(side)
        with warnings.catch_warnings(action="ignore"):
            plain, again = (evaluated(model, given, False)[0] for _ in range(2))
            mine, seen = evaluated(model, given, True)
            steps = [trained(model, given, watched) for watched in (False, True, False)]
            missing = unnamed(attending(model, given), [*seen.layers, *seen.unseen])
            eager = from_eager(model, given, seen, plain)
        excused = {name: kind for name, kind in missing.items() if name.endswith(case.no_attention or ("?",))}
        row = {
            "library": case.library,
            "version": version(case.library),
            "model": case.name,
            "padding": side,
            "seen": len(seen.layers),
            "unseen": by_reason(seen.unseen),
            "no_attention": sorted(set(excused.values())),
            "named_nowhere": sorted(set(missing) - set(excused)),
            # None where the model by itself does not give the same twice.
            "same_bits": same(plain, mine) if same(plain, again) else None,
            "same_bits_in_training": same(steps[0], steps[1]) if same(steps[0], steps[2]) else None,
            **eager,
        }
        rows.append(row)
        print(line(row), flush=True)
    return rows


def counted(model: nn.Module, ids: Tensor) -> dict[str, Any]:
    """How many calls of torch a pass hands to the trace, and what that costs beyond the calls themselves."""
    follow, calls, x, rounds = dict(function_mode.FOLLOW), [], torch.zeros(2, 2), 20000

    def counts(handle: Any, trace: Any, *call: Any) -> Any:
        calls.append(handle)
        return handle(trace, *call)

    def nothing(*_: Any) -> Tensor:
        return x

    function_mode.FOLLOW.update({func: partial(counts, handle) for func, handle in follow.items()})
    with torch.no_grad(), watch(model):
        model(ids)
    function_mode.FOLLOW.update(follow)
    trace, microseconds = Trace(), 0.0
    for handle in set(calls):
        spent = []
        for _ in range(9):
            times = [time.thread_time()]
            for _ in range(rounds):
                handle(trace, nothing, (x, x), {})
            times.append(time.thread_time())
            for _ in range(rounds):
                nothing(*(x, x))
            times.append(time.thread_time())
            spent.append((times[1] - times[0] - times[2] + times[1]) / rounds * 1e6)
        microseconds += calls.count(handle) * statistics.median(spent)
    return {"followed_calls": len(calls), "followed_microseconds": microseconds}


def looking(repeats: int = 301) -> list[dict]:
    """What looking for attention written by hand costs a watched model that has none, at 64 tokens, on one thread.

    Beside the same watch without it, and that once more, which says how far such a ratio can be trusted: what is
    compared is a hundredth. `counted` adds up the calls instead. All times are the processor's.
    """
    from transformers import LlamaConfig, LlamaModel

    follow, rows, threads = dict(function_mode.FOLLOW), [], torch.get_num_threads()
    torch.set_num_threads(1)
    for layers, dim in ((12, 256), (4, 64)):
        shape = {"hidden_size": dim, "num_hidden_layers": layers, "intermediate_size": 2 * dim, "vocab_size": 97}
        model = LlamaModel(LlamaConfig(**shape, num_attention_heads=8, num_key_value_heads=4)).eval()
        ids = torch.randint(2, 97, (1, 64))
        looks = {"looking": True, "not looking": False, "not looking, again": False}
        spent: dict[str, list[float]] = {name: [] for name in looks}
        order, shuffle = list(looks), random.Random(0)
        for turn in range(repeats + 5):
            shuffle.shuffle(order)
            for name in order:
                function_mode.FOLLOW.clear()
                function_mode.FOLLOW.update(follow if looks[name] else {})
                before = time.process_time()
                with torch.no_grad(), watch(model):
                    model(ids)
                if turn >= 5:
                    spent[name].append((time.process_time() - before) * 1e3)
        found = Rounds.of(spent)
        ratios = {name: ratio(found, name, "not looking") for name in looks}
        function_mode.FOLLOW.update(follow)
        more = counted(model, ids)
        share = more["followed_microseconds"] / 1e3 / found["not looking"]["median_ms"]
        row = {"call": f"looking, {layers} layers of {dim}", "tokens": 64, "of_not_looking": ratios, **found, **more}
        rows.append(row | {"counted_share": share})
        print(row["call"], {name: round(value, 4) for name, value in ratios.items()}, more, f"{share:.4f}", flush=True)
    torch.set_num_threads(threads)
    return rows


def line(row: dict) -> str:
    unseen = sum(map(len, row["unseen"].values()))
    about = f"{row['library']:21} {row['model']:38} {row['padding'] or '':5} {row['seen']:3} seen {unseen:3} unseen"
    bits = f"bits {row['same_bits']}, {row['same_bits_in_training']}"
    return f"{about}   {bits}   nowhere {row['named_nowhere']}   {row.get('to_eager')} {row.get('eager')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the results")
    parser.add_argument("--quick", action="store_true", help="every tenth model")
    parser.add_argument("--only", nargs="*", default=[""], help="models whose library or name has one of these in it")
    parser.add_argument("--cost", action="store_true", help="measure the cost alone, and keep what is known of models")
    options = parser.parse_args()
    declare()
    rows: list[dict] = []
    absent: set[str] = set()
    cases = [*zoo_transformers.CASES, *zoo_vision.CASES, *zoo_others.CASES]
    if options.cost:
        cases, rows = [], kept("watch_models", "library", [], options.out)
    for case in cases[::10] if options.quick else cases:
        if any(part.lower() in f"{case.library} {case.name}".lower() for part in options.only):
            try:
                version(case.library)
            except PackageNotFoundError:
                absent.add(case.library)
            else:
                rows += one(case)
    if options.only == [""]:
        rows += looking()
    if absent:
        print("not installed, and left out:", ", ".join(sorted(absent)))
    print("written:", write("watch_models", rows, options.out))


if __name__ == "__main__":
    main()
