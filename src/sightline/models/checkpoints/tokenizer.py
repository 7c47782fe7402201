"""The tokenizer that comes with a checkpoint, as the `tokenizers` library runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sightline.errors import MissingExtraError
from sightline.models.checkpoints.base import Checkpoint, refused

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# The tables of token vectors in the families we know, by the end of their names.
EMBEDDINGS = ("embed_tokens.weight", "word_embeddings.weight", "wte.weight")


def tokenizers_library() -> Any:
    """The `tokenizers` package, or an error that names the extra it is in."""
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "tokenizers need the package `tokenizers`",
            expected="the extra `models`",
            got="no module named tokenizers",
            hint="pip install 'sightline[models]'",
        ) from error
    return tokenizers


def tokenizer_from_json(content: bytes, checkpoint: Checkpoint) -> Tokenizer:
    """A tokenizer.json, checked against the model, with padding and truncation turned off.

    Some files ask for both (all-MiniLM's: to 128 tokens, always). How long a batch is, is decided by who makes it.
    """
    library = tokenizers_library()
    try:
        tokenizer = library.Tokenizer.from_str(content.decode("utf-8"))
    # The library raises plain exceptions, and panics that are not even that.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise refused(
            f"the tokenizer of {checkpoint.source} cannot be understood",
            expected="a tokenizer.json as the `tokenizers` library writes it",
            got=str(error)[:200],
            hint="fetch tokenizer.json again; a copy may have been cut short",
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    check_vocabulary(tokenizer, checkpoint)
    return tokenizer


def check_vocabulary(tokenizer: Tokenizer, checkpoint: Checkpoint) -> None:
    """Refuse a tokenizer with ids that the model has no vector for."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    last = max(vocabulary.values(), default=-1)
    rows = embedding_rows(checkpoint)
    if rows is not None and last >= rows:
        token = next(token for token, number in vocabulary.items() if number == last)
        raise refused(
            f"the tokenizer of {checkpoint.source} belongs to another model",
            expected=f"token ids below {rows}, the rows of the model's table",
            got=f"{token[:40]!r} with id {last}",
            hint="take tokenizer.json from where the weights came from",
        )


def embedding_rows(checkpoint: Checkpoint) -> int | None:
    """How many tokens the model has vectors for, as far as its tensors or its config say."""
    rows = [checkpoint.shape(name)[0] for name in checkpoint.names if name.endswith(EMBEDDINGS)]
    said = checkpoint.config.get("vocab_size")
    return min([*rows, *([said] if isinstance(said, int) else [])], default=None)
