"""Which families of models `sl.watch` sees, and how exactly: docs/reference/families.md is made from the results.

    python benchmarks/families.py [--out FOLDER] [--only NAME …]    # runs the models, writes the results and the page
    python benchmarks/families.py --page                             # writes the page alone, from the results

The models of `watch_models.py`, built small from their configurations, at odd lengths and padded on both sides. Seen
weights are compared with those that the model writes down itself: what its modules return in eager mode, where they
do, else what its softmax gives, or what torch's attention is by definition. `make families` has an environment for it.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import zoo_others
import zoo_transformers
import zoo_vision
from harness import place, write
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from watch_models import call, declare, evaluated, from_eager, same
from zoo_transformers import Case

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "families.md"
SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax}


class Written(TorchFunctionMode):
    """Every map that a model writes down: the results of softmax, and of attention by its definition."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            found = func(*args, **kwargs | {"need_weights": True, "average_attn_weights": False, "training": False})
            self.maps.append(found[1].detach())
        if func is F.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            given = dict(zip(names, args)) | kwargs
            scale, grouped = given.pop("scale", None), given.pop("enable_gqa", False)
            given["dropout_p"] = 0.0
            mask = given.get("attn_mask")
            if mask is not None and mask.dtype == torch.bool:
                given["attn_mask"] = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
            if grouped:
                repeats = given["query"].shape[-3] // given["key"].shape[-3]
                given["key"], given["value"] = (given[name].repeat_interleave(repeats, -3) for name in ("key", "value"))
            four = {n: x if not isinstance(x, Tensor) or x.dim() > 3 else x[None] for n, x in given.items()}
            self.maps.append(torch.ops.aten._scaled_dot_product_attention_math(**four, scale=scale)[1])
        found = func(*args, **kwargs)
        if func in SOFTMAX:
            self.maps.append(found.detach())
        return found


def written(model: nn.Module, given: dict) -> list[Tensor]:
    """The maps that a model writes down."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), Written() as mode:
            call(model, given)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    return mode.maps


def whole(maps: list[Tensor], numel: int, shape: tuple[int, int]) -> Iterator[Tensor]:
    """The maps that have so many numbers, and those that do together, one after another: slices of a layer."""
    for i in range(len(maps)):
        found, count = [], 0
        for one in maps[i:]:
            if one.shape[-2:] != shape or count >= numel:
                break
            found.append(one.reshape(-1, *shape))
            count += one.numel()
        if count == numel:
            yield torch.cat(found)


def nearest(seen: Any, maps: list[Tensor]) -> dict[str, Any] | None:
    """The largest difference of a layer to the map that is nearest to it, over rows that see something."""
    worst, count = 0.0, 0
    for name in seen.layers:
        sight = seen[name]
        queries, keys = sight.shape[-2:]
        tile = sight.tile(slice(0, queries), slice(0, keys))
        sees = (sight.lse > -torch.inf)[..., None]
        distances = [
            float(((tile - one.reshape(tile.shape).float()) * sees).nan_to_num(0.0).abs().max())
            for one in whole(maps, tile.numel(), (queries, keys))
        ]
        if distances:
            worst, count = max(worst, min(distances)), count + 1
    return {"largest": worst, "layers": count} if count else None


def one(case: Case) -> dict:
    """All sides of one family in a row."""
    torch.manual_seed(5)
    model = case.make().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # attention far from even
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    worst, compared, by, unseen, bits, seen_layers, joint = 0.0, 0, set(), {}, True, 0, 0
    for side in case.sides:
        torch.manual_seed(3)
        given = case.inputs(side)
        with warnings.catch_warnings(action="ignore"):
            plain, again = (evaluated(model, given, False)[0] for _ in range(2))
            mine, seen = evaluated(model, given, True)
            eager = from_eager(model, given, seen, plain).get("to_eager")
            torch.manual_seed(11)  # as when it was evaluated: ViLT draws the order of its patches
            how = "eager mode" if isinstance(eager, dict) else "its softmax"
            found = eager if isinstance(eager, dict) else nearest(seen, written(model, given))
        bits = bits and (same(plain, mine) or not same(plain, again))
        unseen |= seen.unseen
        seen_layers, joint = len(seen.layers), len(seen.joint)
        if found is not None:
            worst, compared = max(worst, found["largest"]), max(compared, found["layers"])
            by.add(how)
    return {
        "library": case.library,
        "version": version(case.library),
        "family": case.name,
        "sides": [side or "none" for side in case.sides],
        "seen": seen_layers,
        "joint": joint,
        "unseen": len(unseen),
        "reasons": sorted(set(unseen.values())),
        "same_bits": bits,
        "compared": compared,
        "compared_with": sorted(by),
        "largest_difference": worst if compared else None,
    }


# The page.

HEAD = """# Families

Which models `sl.watch` sees, and how exactly. Each was built small from its configuration with random weights, and run
at an odd length, padded on the left and on the right where it takes padding. The model's output had the same bits with
and without the watch. The difference is the largest one of any seen weight to the weight that the model itself has:
what its modules return in eager mode, or what its softmax gave.

What is not seen is named in `seen.unseen`, with the reason given here. `make families` makes the results and this page.
"""


def page(results: dict) -> str:
    """docs/reference/families.md, from the results."""
    machine, rows = results["machine"], results["results"]
    lines = [HEAD, f"Run with torch {machine['torch']} on a CPU.", ""]
    for library in dict.fromkeys(row["library"] for row in rows):
        own = [row for row in rows if row["library"] == library]
        lines += [f"## {library} {own[0]['version']}", ""]
        lines += [
            "| family | layers seen | not seen | padded | largest difference |",
            "| --- | --- | --- | --- | --- |",
        ]
        for row in own:
            largest = row["largest_difference"]
            difference = "–" if largest is None else f"{largest:.0e}" if largest else "0"
            if largest is not None and row["compared"] < row["seen"]:
                difference += f" ({row['compared']} compared)"
            why = f"{row['unseen']}: {'; '.join(row['reasons'])}" if row["unseen"] else "–"
            padded = "left, right" if "left" in row["sides"] else "–"
            bits = "" if row["same_bits"] else " (other bits)"
            both = f" ({row['joint']} of text and image)" if row.get("joint") else ""
            lines.append(f"| {row['family']}{bits} | {row['seen']}{both} | {why} | {padded} | {difference} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the results; the page is left as it is then")
    parser.add_argument("--only", nargs="*", default=[""], help="families whose library or name has one of these in it")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    options = parser.parse_args()
    if not options.page:
        declare()
        rows, absent = [], set()
        for case in [*zoo_transformers.CASES, *zoo_vision.CASES, *zoo_others.CASES]:
            if not any(part.lower() in f"{case.library} {case.name}".lower() for part in options.only):
                continue
            try:
                version(case.library)
            except PackageNotFoundError:
                absent.add(case.library)
                continue
            rows.append(one(case))
            print({k: v for k, v in rows[-1].items() if k not in ("version", "sides")}, flush=True)
        if absent:
            print("not installed, and left out:", ", ".join(sorted(absent)))
        print("written:", write("families", rows, options.out))
        if options.out is not None:
            return
    PAGE.write_text(page(json.loads(place("families", None).read_text("utf-8"))), "utf-8")
    print("written:", PAGE)


if __name__ == "__main__":
    main()
