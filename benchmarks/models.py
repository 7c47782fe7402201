"""Trained models on Sightline's modules beside transformers with SDPA: the same weights, the same texts, one run.

    python benchmarks/models.py [--out FOLDER] [--threads 2]

Figures: 128 tokens of smollm2 (greedy, one prompt, a cache), 64 sentences of minilm from text to vector, and the peak
of memory of each in a process of its own. Both compute in float32, and must give the same tokens and vectors.

On a GPU, where no models may lie: random weights in the shapes of both, in bfloat16, saved by transformers, loaded by
each; 128 tokens after one prompt and after 16, and 64 texts of unequal length. Half precision may part over a token, so
what is compared before is how far the first logits and the vectors are from float64: ours at most twice as far.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from harness import QUICK, compare, ratio, write

NEW_TOKENS = 128
PROMPT = "Once upon a time, there was a little fox who lived in the forest."
RUNS = {"generate": ("sightline", "transformers"), "encode": ("sightline", "transformers")}


def sentences(count: int = 64) -> list[str]:
    """Sentences of unequal length out of Python's own documentation, from 4 to 40 words."""
    text = " ".join(topics[name] for name in sorted(topics))
    found = re.findall(r"(?<=\. )[A-Z][^.*`|]+\.", text.replace("\n", " "))
    fitting = [re.sub(r"\s+", " ", one) for one in found if 4 <= len(one.split()) <= 40]
    return fitting[:: len(fitting) // count][:count]


def folder_of(name: str) -> Path:
    """Where the weights lie that both libraries load."""
    from sightline.models import open_checkpoint

    return open_checkpoint(name)._folder  # type: ignore[attr-defined]


def our_generator() -> Callable[[], list[int]]:
    from sightline.models import load

    model, tokenizer = load("smollm2")
    prompt = tokenizer.encode(PROMPT).ids
    return lambda: model.generate(prompt, max_new_tokens=NEW_TOKENS, eos=())


def their_generator() -> Callable[[], list[int]]:
    from transformers import LlamaForCausalLM

    from sightline.models import open_checkpoint

    model = LlamaForCausalLM.from_pretrained(folder_of("smollm2"), dtype=torch.float32, attn_implementation="sdpa")
    model.eval().generation_config.eos_token_id = None
    prompt = torch.tensor([open_checkpoint("smollm2").tokenizer.encode(PROMPT).ids])
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
    return lambda: model.generate(prompt, **options)[0, prompt.shape[1] :].tolist()


def our_encoder() -> Callable[[], torch.Tensor]:
    from sightline.models import load

    model, _ = load("minilm")
    texts = sentences()
    return lambda: model.encode(texts)


def their_encoder() -> Callable[[], torch.Tensor]:
    """As its model card says: tokens padded to the longest text, the mean of the real ones, length 1."""
    from tokenizers import Tokenizer
    from transformers import BertModel

    folder, texts = folder_of("minilm"), sentences()
    model = BertModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()

    @torch.inference_mode()
    def run() -> torch.Tensor:
        encodings = tokenizer.encode_batch(texts)
        ids = torch.tensor([encoding.ids for encoding in encodings])
        real = torch.tensor([encoding.attention_mask for encoding in encodings])
        states = model(input_ids=ids, attention_mask=real).last_hidden_state
        return F.normalize((states * real[..., None]).sum(1) / real.sum(1, keepdim=True), dim=-1)

    return run


MAKERS: dict[tuple[str, str], Callable[[], Callable[[], object]]] = {
    ("generate", "sightline"): our_generator,
    ("generate", "transformers"): their_generator,
    ("encode", "sightline"): our_encoder,
    ("encode", "transformers"): their_encoder,
}


def speed() -> list[dict]:
    rows = []
    for call, repeats in (("generate", 5), ("encode", 15)):
        runs = {who: MAKERS[call, who]() for who in RUNS[call]}
        ours, theirs = (runs[who]() for who in RUNS[call])
        same = ours == theirs if call == "generate" else torch.allclose(ours, theirs, atol=1e-5)
        if not same:
            raise SystemExit(f"{call}: the two libraries do not give the same")
        result = compare(runs, repeats=repeats, warmups=1)
        size = {"tokens": NEW_TOKENS} if call == "generate" else {"texts": len(sentences())}
        rows.append({"call": call, **size, "ratio": ratio(result, *RUNS[call]), **result})
        print(f"{call}: sightline / transformers = {rows[-1]['ratio']:.3f}", flush=True)
    return rows


# What MiniLM and SmolLM2-135M are made of; weights large enough that attention looks somewhere.
BERT: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
BERT |= {"intermediate_size": 1536, "vocab_size": 30522, "initializer_range": 0.04}
LLAMA: dict[str, Any] = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9}
LLAMA |= {"num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True}
LLAMA |= {"initializer_range": 0.04}
PROMPT_TOKENS, BATCHES = 32, (1, 16)


def random_pair(kind: str, device: str, dtype: torch.dtype, **config: Any) -> tuple[Any, Any]:
    """The same random weights in both libraries: ours, theirs."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    from sightline.models import load

    family = getattr(transformers, kind)
    if QUICK:
        config["num_hidden_layers"] = 2
    with TemporaryDirectory() as place:
        family(family.config_class(**config)).save_pretrained(place)
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(config["vocab_size"])}, unk_token="w0"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        words.save(f"{place}/tokenizer.json")
        ours, _ = load(place, device=device, dtype=dtype)
        theirs = family.from_pretrained(place, dtype=dtype, attn_implementation="sdpa").to(device).eval()
    return ours, theirs


def as_good(call: str, ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    """Refuse to time what is further from float64 than twice as far as transformers."""
    mine, other = (float((x.double() - exact).norm() / exact.norm()) for x in (ours, theirs))
    if not mine <= max(2 * other, 1e-5):
        raise SystemExit(f"{call}: sightline is off by {mine:.2e}, transformers by {other:.2e}")


def written(device: str, dtype: torch.dtype) -> list[dict]:
    """Tokens after prompts of one length, a fixed number of them."""
    ours, theirs = random_pair("LlamaForCausalLM", device, dtype, **LLAMA)
    theirs.generation_config.eos_token_id = None
    rows, new = [], 8 if QUICK else NEW_TOKENS
    for batch in BATCHES:
        prompt = torch.randint(3, LLAMA["vocab_size"], (batch, PROMPT_TOKENS), device=device)
        with torch.no_grad():
            first = [model(prompt)[:, -1] if model is ours else model(prompt).logits[:, -1] for model in (ours, theirs)]
            as_good("generate", *first, copy.deepcopy(theirs).double()(prompt).logits[:, -1].double())
        options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        options["attention_mask"] = torch.ones_like(prompt)
        runs: dict[str, Callable[[], Any]] = {
            "sightline": lambda: ours.generate(prompt, max_new_tokens=new, eos=()),
            "transformers": lambda: theirs.generate(prompt, **options)[:, PROMPT_TOKENS:].tolist(),
        }
        made = {who: run() for who, run in runs.items()}
        if any([len(row) for row in rows_of] != [new] * batch for rows_of in made.values()):
            raise SystemExit("generate: not as many tokens as were asked for")
        pairs = [a == b for one in zip(*made.values(), strict=True) for a, b in zip(*one, strict=True)]
        result = compare(runs, repeats=5, warmups=1, in_a_row=True)
        row = {"call": "generate", "batch": batch, "tokens": new, "same_tokens": sum(pairs) / len(pairs)}
        rows.append({**row, "ratio": ratio(result, *RUNS["generate"]), **result})
        print(f"generate, {batch}: sightline / transformers = {rows[-1]['ratio']:.3f}", flush=True)
    return rows


def encoded(device: str, dtype: torch.dtype, count: int = 64) -> list[dict]:
    """Texts of 4 to 40 words, drawn; from text to the mean of their tokens, of length 1."""
    ours, theirs = random_pair("BertModel", device, dtype, **BERT)
    tokenizer, draw = copy.deepcopy(ours.tokenizer), random.Random(0)
    tokenizer.enable_padding()
    texts = [" ".join(f"w{draw.randrange(3, 30522)}" for _ in range(draw.randint(4, 40))) for _ in range(count)]

    @torch.inference_mode()
    def vectors(model: Any) -> torch.Tensor:
        encodings = tokenizer.encode_batch(texts)
        ids = torch.tensor([encoding.ids for encoding in encodings], device=device)
        real = torch.tensor([encoding.attention_mask for encoding in encodings], device=device)
        states = model(input_ids=ids, attention_mask=real).last_hidden_state
        return F.normalize((states * real[..., None]).sum(1) / real.sum(1, keepdim=True), dim=-1)

    runs: dict[str, Callable[[], Any]] = {
        "sightline": lambda: ours.encode(texts, normalize=True),
        "transformers": lambda: vectors(theirs),
    }
    as_good("encode", *(run() for run in runs.values()), vectors(copy.deepcopy(theirs).double()).double())
    result = compare(runs, repeats=15, warmups=2, in_a_row=True)
    rows = [{"call": "encode", "texts": count, "ratio": ratio(result, *RUNS["encode"]), **result}]
    print(f"encode: sightline / transformers = {rows[-1]['ratio']:.3f}", flush=True)
    return rows


def peak(call: str, who: str) -> None:
    """In a process of its own: load, run once, and print how far memory rose above what the imports took."""
    import transformers  # noqa: F401  # both processes, so that the difference is the models'

    from sightline.models import load  # noqa: F401

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    run = MAKERS[call, who]()
    seconds = time.perf_counter() - start
    run()
    rise = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"peak_mib": round(rise, 1), "load_s": round(seconds, 2)}))


def memory(threads: int) -> list[dict]:
    rows = []
    for call, libraries in RUNS.items():
        found = {}
        for who in libraries:
            command = [sys.executable, __file__, "--threads", str(threads), "--peak", call, who]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[who] = json.loads(done.stdout.splitlines()[-1])
        share = found["sightline"]["peak_mib"] / found["transformers"]["peak_mib"]
        rows.append({"call": f"memory of {call}", "ratio": share, **found})
        print(f"memory of {call}: sightline / transformers = {share:.3f}   {found}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the results")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        peak(*options.peak)
        return
    if torch.cuda.is_available():
        torch.manual_seed(0)
        rows = written("cuda", torch.bfloat16) + encoded("cuda", torch.bfloat16)
    else:
        rows = memory(options.threads) + speed()
    print("written:", write("models", rows, options.out))


if __name__ == "__main__":
    main()
