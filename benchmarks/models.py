"""Trained models on Sightline's modules beside transformers with SDPA: the same weights, the same texts, one run.

    python benchmarks/models.py [--out FOLDER] [--threads 2]

Figures: 128 tokens of smollm2 (greedy, one prompt, a cache), 64 sentences of minilm from text to vector, and the peak
of memory of each in a process of its own. Both libraries compute in float32, and must give the same tokens and vectors.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from harness import compare, ratio, write

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
    print("written:", write("models", memory(options.threads) + speed(), options.out))


if __name__ == "__main__":
    main()
