"""The same question asked of Sightline and of what one would use otherwise, on one small model with random weights.

    make peers    # installs the peers into .venv-peers and measures, each in the environment that it needs
    python benchmarks/peers.py [--part heads edges edits effects inseq lxt] [--threads 2] [--rounds 5]

`heads`: the influence of every head on a difference of two logits, by `sl.watch` and `seen.backward`, by captum's
LayerGradientXActivation, by hooks of TransformerLens and by torch alone. `edges`: the eight strongest edges of every
row of every head, beside eager attention and the gradients of its maps. `edits`: one head taken out, one edge cut.
`effects`: every head taken out in turn. All of these are checked against torch by hand in float64. `inseq` and `lxt`
attribute to inputs, which is another quantity: their time alone stands beside that of `heads`.

A part whose peer is not there is kept as it was. All candidates of a line are interleaved in one process. Memory is
what a call takes at its peak beyond the model and what else was there.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from growth import DEVICE, peak
from harness import QUICK, compare, kept, ratio, write
from torch import Tensor, nn

import sightline as sl

LAYERS, HEADS, WORDS, STRONGEST = 4, 8, 1024, 8
SHAPE = {"vocab_size": WORDS, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": LAYERS,
         "num_attention_heads": HEADS, "num_key_value_heads": 4, "max_position_embeddings": 4096,
         "initializer_range": 0.05, "use_cache": False}  # fmt: skip
TARGET = sl.targets.logit(7, than=3)
OURS, HAND = "Sightline", "torch by hand"
ROUNDS = 5
SAME = 1e-5  # of the largest number there is
Runs = dict[str, Callable[[], Any]]


def llama(attention: str = "sdpa", library: Any = None) -> Any:
    """A small Llama of transformers, the same weights each time; large enough for attention to look somewhere."""
    if library is None:
        from transformers.models.llama import modeling_llama as library
    from transformers import LlamaConfig

    torch.manual_seed(0)
    return library.LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation=attention)).eval().to(DEVICE)


def text(tokens: int) -> Tensor:
    """Random words; the first three are left out, which a tokenizer takes for more than words."""
    return torch.randint(3, WORDS, (1, tokens), generator=torch.Generator().manual_seed(1)).to(DEVICE)


def bridge() -> Any:
    """The same weights in TransformerLens, which writes attention out by hand."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model = llama("eager")
    return build_bridge_from_module(model, "LlamaForCausalLM", hf_config=model.config).eval()


def measured(
    part: str,
    call: str,
    tokens: int,
    runs: Runs,
    error: Callable[[Any], float | None] = lambda _: None,
) -> list[dict]:
    """A row for each candidate: time and memory, and how far its numbers are from those in float64."""
    apart = {name: error(run()) for name, run in runs.items()}
    wrong = {name: far for name, far in apart.items() if far is not None and not far <= SAME}
    assert not wrong, f"{call}, {tokens} tokens: not the numbers of float64, {wrong}"
    memory = {name: peak(run, torch.empty(0)) for name, run in runs.items()}
    result = compare(runs, ROUNDS, warmups=0)  # each ran twice by now
    rows = []
    for name in runs:
        row = {"part": part, "call": call, "by": name, "tokens": tokens, "of_ours": ratio(result, name, OURS)}
        row |= {"mebibytes": memory[name], "apart": apart[name], **result[name]}
        rows.append(row)
        print(f"{call}, {tokens:,} tokens, {name}: {row['of_ours']:.2f} of ours, {memory[name]:.0f} MiB, "
              f"{result[name]['median_ms']:.0f} ms, apart {row['apart']}", flush=True)  # fmt: skip
    return rows


def named(name: str, package: str, *others: str) -> str:
    """A peer with its version, and those of what it runs on where that is not what all others run on."""
    return ", ".join([f"{name} {version(package)}", *(f"{other} {version(other)}" for other in others)])


def relative(one: Tensor, other: Tensor) -> float:
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).abs().max() / other.abs().max())


def influence(model: nn.Module, ids: Tensor) -> Tensor:
    with sl.watch(model, stats=(), influence=True) as seen:
        seen.backward(TARGET(model(ids)))
    return seen.by_head()[0]


def heads(tokens: int) -> list[dict]:
    """[layers, heads]: gradient x what the head gave, summed over the text."""
    from captum.attr import LayerGradientXActivation

    model, bridged, ids = llama(), bridge(), text(tokens)
    places = [layer.self_attn.o_proj for layer in model.model.layers]
    method = LayerGradientXActivation(lambda x: TARGET(model(inputs_embeds=x)), places)
    embedded = model.model.embed_tokens(ids).detach()

    def by_captum() -> Tensor:
        found = method.attribute(embedded, attribute_to_layer_input=True)
        return torch.stack([part[0].unflatten(-1, (HEADS, -1)).sum((0, 2)) for part in found])

    def totals(taken: list[Tensor], value: Tensor) -> Tensor:
        gradients = torch.autograd.grad(value.sum(), taken)
        parts = [(x * g).detach()[0].reshape(tokens, HEADS, -1) for x, g in zip(taken, gradients, strict=True)]
        return torch.stack(parts).sum((1, 3))

    def by_hooks() -> Tensor:
        taken: list[Tensor] = []
        hooks = [(f"blocks.{i}.attn.hook_z", lambda z, hook: taken.append(z) or z) for i in range(LAYERS)]
        with bridged.hooks(fwd_hooks=hooks):
            return totals(taken, TARGET(bridged(ids)))

    def by_hand(model: Any = model) -> Tensor:
        taken: list[Tensor] = []
        places = [layer.self_attn.o_proj for layer in model.model.layers]
        hooks = [place.register_forward_pre_hook(lambda _, args: taken.append(args[0])) for place in places]
        value = TARGET(model(ids))
        for hook in hooks:
            hook.remove()
        return totals(taken, value)

    runs = {OURS: lambda: influence(model, ids), HAND: by_hand, named("captum", "captum"): by_captum,
            named("TransformerLens", "transformer-lens"): by_hooks}  # fmt: skip
    exact = by_hand(llama().double())
    return measured("heads", "influence of every head", tokens, runs, lambda found: relative(found, exact))


def edges(tokens: int) -> list[dict]:
    """The strongest edges of every row of every head: of equal magnitudes either may come first."""
    model, eager, ids = llama(), llama("eager"), text(tokens)

    def ours() -> list[Tensor]:
        with sl.watch(model, stats=(sl.Top(STRONGEST, of="influence"),), influence=True) as seen:
            seen.backward(TARGET(model(ids)))
        return [seen[i].top(STRONGEST, of="influence").weights for i in range(LAYERS)]

    def by_hand(eager: Any = eager) -> list[Tensor]:
        output = eager(ids, output_attentions=True)
        found = []
        for weights, gradient in zip(output.attentions, torch.autograd.grad(TARGET(output).sum(), output.attentions)):
            cells = (weights * gradient).detach()
            found.append(cells.gather(-1, cells.abs().topk(STRONGEST).indices))
        return found

    exact = by_hand(llama("eager").double())

    def error(found: list[Tensor]) -> float:
        return max(relative(x.abs(), y.abs()) for x, y in zip(found, exact, strict=True))

    runs = {OURS: ours, "eager, gradients of its maps": by_hand}
    return measured("edges", "strongest edges of every row", tokens, runs, error)


def without_head(model: Any, ids: Tensor, layer: int, head: int) -> Any:
    """By a hook of torch, before the output projection."""

    def hook(_: nn.Module, args: tuple) -> tuple:
        x = args[0].unflatten(-1, (HEADS, -1)).clone()
        x[..., head, :] = 0
        return (x.flatten(-2),)

    handle = model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(hook)
    try:
        return model(ids)
    finally:
        handle.remove()


def without_head_in_lens(bridged: Any, ids: Tensor, layer: int, head: int) -> Tensor:
    def hook(z: Tensor, hook: Any) -> Tensor:
        z[:, :, head] = 0
        return z

    return bridged.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", hook)])


def without_edge(model: Any, ids: Tensor, layer: int, head: int, key: int) -> Any:
    """By a mask of one layer, written out for all of its heads."""

    def hook(_: nn.Module, args: tuple, given: dict) -> tuple:
        mask = given["attention_mask"].repeat(1, HEADS, 1, 1)
        mask[:, head, -1, key] = torch.finfo(mask.dtype).min
        return args, given | {"attention_mask": mask}

    handle = model.model.layers[layer].self_attn.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        return model(ids)
    finally:
        handle.remove()


def without_edge_in_lens(bridged: Any, ids: Tensor, layer: int, head: int, key: int) -> Tensor:
    def hook(scores: Tensor, hook: Any) -> Tensor:
        scores[:, head, -1, key] = -torch.inf
        return scores

    return bridged.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_attn_scores", hook)])


@torch.no_grad()
def edits(tokens: int) -> list[dict]:
    """A head taken out, or the strongest edge of its last row cut, the rest of the row growing: all logits."""
    model, eager, bridged, ids = llama(), llama("eager"), bridge(), text(tokens)
    lens, double = named("TransformerLens", "transformer-lens"), llama("eager").double()
    layer, head = 2, 3
    key = int(eager(ids, output_attentions=True).attentions[layer][0, head, -1].argmax())

    def ours(kind: str, **where: Any) -> Tensor:
        with sl.edit(model) as edits:
            getattr(edits, kind)(heads=[(layer, head)], **where)
            return model(ids).logits

    ablated = {
        OURS: lambda: ours("ablate"),
        HAND: lambda: without_head(model, ids, layer, head).logits,
        lens: lambda: without_head_in_lens(bridged, ids, layer, head),
    }
    cut = {
        OURS: lambda: ours("cut", queries=-1, keys=key),
        "eager, a dense mask": lambda: without_edge(eager, ids, layer, head, key).logits,
        lens: lambda: without_edge_in_lens(bridged, ids, layer, head, key),
    }
    rows = []
    for call, runs, exact in (
        ("one head taken out", ablated, without_head(double, ids, layer, head).logits),
        ("one edge cut", cut, without_edge(double, ids, layer, head, key).logits),
    ):
        assert relative(model(ids).logits, exact) > 100 * SAME, f"{call}: it changes too little to be seen"
        rows += measured("edits", call, tokens, runs, lambda found, exact=exact: relative(found, exact))
    return rows


def effects(tokens: int) -> list[dict]:
    """Every head taken out, one after the other: [layers, heads], of which the error is beside the largest logit."""
    model, bridged, ids = llama(), bridge(), text(tokens)

    @torch.no_grad()
    def one_by_one(run: Callable[..., Any], model: Any) -> Tensor:
        plain = TARGET(model(ids))
        found = [[plain - TARGET(run(model, ids, i, j)) for j in range(HEADS)] for i in range(LAYERS)]
        return torch.tensor(found, device=DEVICE, dtype=plain.dtype)

    double = llama().double()
    exact, largest = one_by_one(without_head, double), float(double(ids).logits.detach().abs().max())

    def error(found: Tensor) -> float:
        return float((found.double() - exact).abs().max()) / largest

    runs = {
        OURS: lambda: sl.effects(model, ids, TARGET).exact[0],
        HAND: lambda: one_by_one(without_head, model),
        named("TransformerLens", "transformer-lens"): lambda: one_by_one(without_head_in_lens, bridged),
    }
    return measured("effects", "every head taken out in turn", tokens, runs, error)


def inseq(tokens: int) -> list[dict]:
    """Saliency of the inputs for one more token: forward, backward, and its tables."""
    import inseq
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model, ids = llama(), text(tokens)
    special = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), ("<unk>", "<s>", "</s>", "</s>")))
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    said = " ".join(f"w{i}" for i in ids[0].tolist())
    attributed = inseq.load_model(copy.deepcopy(model), "saliency", tokenizer=tokenizer, device=DEVICE)

    def theirs() -> object:
        return attributed.attribute(said, f"{said} w7", attributed_fn="logit", show_progress=False)

    given = theirs().sequence_attributions[0].target_attributions
    assert given.shape[0] == tokens + 1, f"inseq saw {given.shape[0]} places, and not {tokens + 1}"
    runs = {OURS: lambda: influence(model, ids), named("inseq", "inseq"): theirs}
    return measured("inseq", "saliency of inputs (ours: influence of heads)", tokens, runs)


def lxt(tokens: int) -> list[dict]:
    """Relevance of the inputs. LXT changes the module of transformers, so ours runs on a second copy of that."""
    from watch_models import declare

    declare()
    from transformers.models.llama import modeling_llama

    name = "transformers.models.llama.plain"
    spec = importlib.util.spec_from_file_location(name, modeling_llama.__file__)
    sys.modules[name] = plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    from lxt.efficient import monkey_patch

    if not hasattr(modeling_llama, "patched"):
        monkey_patch(modeling_llama)
        modeling_llama.patched = True
    model, changed, ids = llama(library=plain), llama(), text(tokens)

    def theirs() -> Tensor:
        x = changed.model.embed_tokens(ids).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(TARGET(changed(inputs_embeds=x)).sum(), x)
        return (x * gradient).sum(-1)

    x = model.model.embed_tokens(ids).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(TARGET(model(inputs_embeds=x)).sum(), x)
    assert relative(theirs(), (x * gradient).sum(-1)) > 0.01, "LXT changed nothing"
    runs = {OURS: lambda: influence(model, ids), named("LXT", "lxt", "transformers"): theirs}
    return measured("lxt", "relevance of inputs (ours: influence of heads)", tokens, runs)


LENGTHS = (256,) if QUICK else (256, 1024)
# What measures a part, the lengths, and the peers that must be there.
PARTS: dict[str, tuple[Callable[[int], list[dict]], tuple[int, ...], tuple[str, ...]]] = {
    "heads": (heads, LENGTHS, ("captum", "transformer_lens")),
    "edges": (edges, LENGTHS if QUICK else (*LENGTHS, 2048), ("transformers",)),
    "edits": (edits, LENGTHS, ("transformer_lens",)),
    "effects": (effects, (64,) if QUICK else (64, 256), ("transformer_lens",)),
    "inseq": (inseq, LENGTHS, ("inseq",)),
    "lxt": (lxt, LENGTHS, ("lxt",)),
}


def main() -> None:
    global ROUNDS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is timed; fewer on a busy machine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ROUNDS = options.rounds
    torch.set_num_threads(options.threads)
    there = [part for part in options.part if all(importlib.util.find_spec(name) for name in PARTS[part][2])]
    for part in options.part:
        if part not in there:
            print(f"{part}: kept as it was, because {' or '.join(PARTS[part][2])} is not installed here")
    rows = kept("peers", "part", there, options.out)
    for part in there:
        run, lengths, _ = PARTS[part]
        for tokens in lengths:
            rows += run(tokens)
    order = list(PARTS)
    print("written:", write("peers", sorted(rows, key=lambda row: order.index(row["part"])), options.out))


if __name__ == "__main__":
    main()
