"""A tokenizer from the settings of a GGUF file, which hold its vocabulary but no tokenizer.json.

Two kinds: `gpt2` merges bytes, after the text was split by a rule that the file only names (`tokenizer.ggml.pre`);
`llama` merges characters as SentencePiece does, in the order of the tokens' scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sightline.models.checkpoints.base import CheckpointError, refused
from sightline.models.checkpoints.gguf.header import GGUFHeader
from sightline.models.checkpoints.tokenizer import tokenizers_library

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# What a token is, as GGUF counts.
CONTROL, USER_DEFINED = 3, 4

WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT_FORMS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def tokenizer_from_gguf(header: GGUFHeader, source: str) -> Tokenizer:
    """The tokenizer that the settings describe, or an error that says which part is not known."""
    kind = header.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in KINDS:
        raise _unknown(source, f"the kind {kind!r}", ", ".join(KINDS))
    tokens = _list(header, "tokens", str, source)
    types = _list(header, "token_type", int, source, len(tokens))
    try:
        tokenizer = KINDS[kind](header, tokens, source)
        _add_special(tokenizer, tokens, types)
        _add_bos(tokenizer, header, tokens, by_default=kind == "llama")
    # The library raises plain exceptions, and panics that are not even that.
    except BaseException as error:
        if isinstance(error, CheckpointError | KeyboardInterrupt | SystemExit | MemoryError | ImportError):
            raise
        raise refused(
            f"the tokenizer of {source} cannot be understood",
            expected="tokens, and merges made of them",
            got=str(error)[:200],
            hint="convert the model again with a current llama.cpp",
        ) from error
    return tokenizer


def _bytes(header: GGUFHeader, tokens: list[str], source: str) -> Tokenizer:
    """Byte-level merges, as GPT-2 began them."""
    library = tokenizers_library()
    rule = header.get("tokenizer.ggml.pre", "default")
    if not isinstance(rule, str) or rule not in SPLITS:
        raise _unknown(source, f"the rule {rule!r} for splitting a text", ", ".join(SPLITS))
    merges = [tuple(merge.split(" ")) for merge in _list(header, "merges", str, source)]
    model = library.models.BPE(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=merges,
        # Llama 3 takes a whole word that is a token as it is, even where no merges lead to it.
        ignore_merges=rule == "llama-bpe",
    )
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = SPLITS[rule](library.pre_tokenizers, library.Regex)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def _pieces(header: GGUFHeader, tokens: list[str], source: str) -> Tokenizer:
    """SentencePiece: spaces are a visible sign, unknown characters become their bytes."""
    library = tokenizers_library()
    scores = _list(header, "scores", float, source, len(tokens))
    vocab = {token: number for number, token in enumerate(tokens)}
    model = library.models.BPE(
        vocab=vocab,
        merges=_merges(vocab, dict(zip(tokens, scores, strict=True))),
        unk_token=_token(header, "unknown", tokens),
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = library.Tokenizer(model)
    prefix = bool(header.get("tokenizer.ggml.add_space_prefix", True))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first" if prefix else "never", split=False
    )
    decoders = library.decoders
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if prefix else steps)
    return tokenizer


def _merges(vocab: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others: higher scores first, then longer and earlier parts."""
    found = []
    for token, score in scores.items():
        # A token of many characters has as many ways to be cut; no piece a trainer made is longer than this.
        cuts = [(token[:i], token[i:]) for i in range(1, min(len(token), 256))]
        cuts = [(left, right) for left, right in cuts if left in vocab and right in vocab]
        cuts.sort(key=lambda cut: (vocab[cut[0]], vocab[cut[1]]))
        found += [(score, len(left), len(right), left, right) for left, right in cuts]
    # Sorted in place of equals: the sign makes the higher first and keeps what is equal in its order.
    found.sort(key=lambda merge: (-merge[0], -merge[1], -merge[2]))
    return [(left, right) for *_, left, right in found]


def _add_special(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Control tokens are never cut and are left out of decoded text; user-defined ones are never cut."""
    added = tokenizers_library().AddedToken
    kinds = {CONTROL: tokenizer.add_special_tokens, USER_DEFINED: tokenizer.add_tokens}
    for kind, add in kinds.items():
        chosen = [token for token, its in zip(tokens, types, strict=True) if its == kind and token]
        add([added(token, normalized=False, special=kind == CONTROL) for token in chosen])


def _add_bos(tokenizer: Tokenizer, header: GGUFHeader, tokens: list[str], by_default: bool) -> None:
    bos = _token(header, "bos", tokens)
    if bos is None or not header.get("tokenizer.ggml.add_bos_token", by_default):
        return
    number = header.get("tokenizer.ggml.bos_token_id")
    tokenizer.post_processor = tokenizers_library().processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", f"{bos}:1", "$B:1"], special_tokens=[(bos, number)]
    )


def _token(header: GGUFHeader, role: str, tokens: list[str]) -> str | None:
    number = header.get(f"tokenizer.ggml.{role}_token_id")
    if number is None:
        return None
    if type(number) is not int or not 0 <= number < len(tokens):
        raise ValueError(f"{role}_token_id {str(number)[:40]}, of {len(tokens)} tokens")
    return tokens[number]


def _list(header: GGUFHeader, key: str, kind: type, source: str, length: int | None = None) -> list[Any]:
    values = header.get(f"tokenizer.ggml.{key}")
    if values is None and key == "token_type" and length is not None:
        return [1] * length
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise _unknown(source, f"tokenizer.ggml.{key}: {str(values)[:60]}", f"a list of {kind.__name__}")
    if length is not None and len(values) != length:
        raise _unknown(source, f"{len(values)} of tokenizer.ggml.{key}", f"{length}, one for each token")
    return values


def _unknown(source: str, got: str, expected: str) -> CheckpointError:
    return refused(
        f"the tokenizer of {source} is not one that Sightline knows",
        expected=expected,
        got=got,
        hint="load a folder with the model's tokenizer.json",
    )


def _gpt2(split: Any, regex: Any) -> Any:
    return split.ByteLevel(add_prefix_space=False)


def _digits_apart(split: Any, regex: Any) -> Any:
    return split.Sequence([split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)])


def _by(pattern: str) -> Any:
    def rule(split: Any, regex: Any) -> Any:
        cut = split.Split(regex(pattern), behavior="isolated")
        return split.Sequence([cut, split.ByteLevel(add_prefix_space=False, use_regex=False)])

    return rule


# How a text is split before merging. Only what the families here were published with; a wrong rule would go unnoticed.
SPLITS = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _digits_apart,
    "llama-bpe": _by(f"{SHORT_FORMS}|{WORDS}|\\p{{N}}{{1,3}}|{MARKS}|{SPACES}"),
    "qwen2": _by(f"{SHORT_FORMS}|{WORDS}|\\p{{N}}|{MARKS}|{SPACES}"),
}
KINDS = {"gpt2": _bytes, "llama": _pieces}
