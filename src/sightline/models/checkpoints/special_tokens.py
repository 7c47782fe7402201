"""Which tokens begin, end and pad a text: said in up to four files, read in the order in which they are trusted."""

from __future__ import annotations

from typing import Any

from sightline.models.checkpoints.base import Checkpoint, SpecialTokens

# For each role the words a tokenizer's files use for it; an encoder's [SEP] is not an end.
NAMES = {"bos": "bos_token", "eos": "eos_token", "pad": "pad_token", "unk": "unk_token"}


def special_tokens(checkpoint: Checkpoint, template: str | None = None) -> SpecialTokens:
    """From generation_config.json, then config.json, then the tokens that the tokenizer's own files name."""
    generation = _object(checkpoint, "generation_config.json")
    tokenizer_config = _object(checkpoint, "tokenizer_config.json")
    named = {**_object(checkpoint, "special_tokens_map.json"), **tokenizer_config}

    def ids(role: str) -> tuple[int, ...]:
        for said in (generation.get(f"{NAMES[role]}_id"), checkpoint.config.get(f"{NAMES[role]}_id")):
            found = _ids(said, checkpoint.config.get("vocab_size"))
            if found:
                return found
        token: Any = named.get(NAMES[role])
        token = token.get("content") if isinstance(token, dict) else token
        tokenizer = checkpoint.tokenizer if isinstance(token, str) else None
        number = tokenizer.token_to_id(token) if tokenizer is not None else None
        return () if number is None else (number,)

    first = {role: next(iter(ids(role)), None) for role in ("bos", "pad", "unk")}
    return SpecialTokens(**first, eos=ids("eos"), chat_template=template or _template(tokenizer_config))


def _object(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    said = checkpoint.beside(name)
    return said if isinstance(said, dict) else {}


def _ids(said: Any, vocabulary: Any) -> tuple[int, ...]:
    """Token ids out of a number or a list of them; what cannot be one is left out."""
    top = vocabulary if isinstance(vocabulary, int) else 1 << 31
    return tuple(n for n in (said if isinstance(said, list) else [said]) if type(n) is int and 0 <= n < top)


def _template(tokenizer_config: dict[str, Any]) -> str | None:
    """The chat template; of several the one called default."""
    said = tokenizer_config.get("chat_template")
    if isinstance(said, list):
        named = {entry.get("name"): entry.get("template") for entry in said if isinstance(entry, dict)}
        said = named.get("default")
    return said if isinstance(said, str) else None
