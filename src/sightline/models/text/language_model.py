"""A decoder of text: logits for the next token, and texts that go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sightline.errors import InputError, InputTypeError
from sightline.models.checkpoints.base import SpecialTokens
from sightline.models.text.base import TextModel, as_padding
from sightline.models.text.generate import new_tokens
from sightline.models.text.sampling import Sampler
from sightline.models.text.stream import TextStream
from sightline.nn import Decoder, DecoderCache, MultiHeadAttention
from sightline.nn.intact import TakesCache
from sightline.positions.base import whole

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from sightline.backends.call import MaskLike


class LanguageModel(TakesCache, TextModel):
    """A decoder of text such as GPT-2 or Llama: `model(ids)` gives logits, `model.generate(prompt)` goes on writing.

    Made by `sl.models.load`. `model.observe(text)` gives the logits and the sights of all layers.

    >>> from sightline.models import load
    >>> model, tokenizer = load("smollm2")
    >>> model.generate("The capital of France is", max_new_tokens=2)
    ' Paris.'
    >>> model.generate(["1, 2, 3, 4,", "The opposite of hot is"], max_new_tokens=8, stop=[",", "."])
    [' 5', ' cold']
    >>> for piece in model.stream("Once upon a", max_new_tokens=2):
    ...     print(repr(piece))
    ' time'
    ','
    """

    special = SpecialTokens()

    def __init__(self, embedding: nn.Embedding, decoder: Decoder, *, tied: bool, context: int | None = None) -> None:
        super().__init__()
        self.embedding, self.decoder, self.context = embedding, decoder, context
        self.head = nn.Linear(decoder.width, embedding.num_embeddings, bias=False)
        if tied:
            self.head.weight = embedding.weight

    @property
    def table(self) -> nn.Embedding:
        return self.embedding

    @property
    def cache_bytes_per_token(self) -> int:
        """The memory of one more token in a cache: its keys and values in all layers."""
        parts = [part for part in self.decoder.modules() if isinstance(part, MultiHeadAttention)]
        numbers = sum(part.kv_heads * (part.head_dim + part.value_dim) for part in parts)
        return numbers * self.embedding.weight.element_size()

    def forward(
        self,
        ids: Int[Tensor, "*batch time"],
        *,
        padding: MaskLike | Sequence = None,
        at: int | Int[Tensor, "*batch time"] | None = None,
        cache: DecoderCache | None = None,
        last: int | None = None,
    ) -> Float[Tensor, "*batch time vocabulary"]:
        """The logits of the token that follows each token.

        Args:
            ids: `[*batch, time]`; with a cache those that come next.
            padding: which tokens so far are real: their number in each row, booleans (True = real), or a mask.
            at: where the tokens stand; 0, 1, 2, ... or where the cache ends if not given.
            cache: from `model.decoder.new_cache()`; ids are added to it.
            last: logits of the last so many tokens only: after a long prompt those of one are all it takes.
        """
        x = self.decoder(self._embed(ids), mask=as_padding(padding), at=at, cache=cache)
        logits: Tensor = self.head(x if last is None else x[..., -last:, :])
        return logits

    def generate(
        self,
        prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Tensor,
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        eos: int | Sequence[int] | None = None,
    ) -> Any:
        """What comes after a prompt: a text for a text, ids for ids, a list for a list of prompts.

        Only what is new is returned. Each row of a batch is what the prompt would give alone (drawn with seed + its
        number in the batch). A text ends with a token that ends texts, with a stop string, or after so many tokens.

        Args:
            prompt: a text, or the ids of one, or a list of either.
            max_new_tokens: at most so many.
            temperature: 0 always takes the likeliest token; 1 draws by the model's own probabilities.
            top_k, top_p: draw only among the likeliest `top_k`, or among the fewest that have probability `top_p`.
            seed: the same seed draws the same text.
            stop: a string, or several, before which the text ends.
            eos: the ids that end a text; those of the model if not given, `()` for none.
        """
        prompts, is_text, single = self._prompts(prompt)
        stops, ends = self._stops(stop, is_text), self._ends(eos)
        sampler = Sampler(len(prompts), temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        streams = [TextStream(self._tokenizer, row, stops) for row in prompts] if is_text else []
        texts, open_rows = [""] * len(prompts), set(range(len(prompts)))
        ids: list[list[int]] = [[] for _ in prompts]
        for tokens in new_tokens(self, prompts, sampler, whole("max_new_tokens", max_new_tokens)):
            for row in sorted(open_rows):
                if tokens[row] in ends:
                    open_rows.discard(row)
                    continue
                ids[row].append(tokens[row])
                if is_text:
                    texts[row] += streams[row].add(tokens[row])
                    if streams[row].stopped:
                        open_rows.discard(row)
            if not open_rows:
                break
        made: list[Any] = [text + s.end() for text, s in zip(texts, streams, strict=True)] if is_text else ids
        return made[0] if single else made

    def stream(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        eos: int | Sequence[int] | None = None,
    ) -> Iterator[str]:
        """The text of `generate` in pieces, each as soon as it is certain; together they are the same text.

        A piece never breaks a character. Arguments are checked at once, work begins with the first piece.
        """
        if not isinstance(prompt, str):
            raise InputTypeError(
                "one text is streamed at a time",
                expected="a string",
                got=type(prompt).__name__,
                hint="model.generate(prompts) for several",
            )
        prompts, _, _ = self._prompts(prompt)
        stops, ends = self._stops(stop, True), self._ends(eos)
        sampler = Sampler(1, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        steps = new_tokens(self, prompts, sampler, whole("max_new_tokens", max_new_tokens))
        return _pieces(steps, TextStream(self._tokenizer, prompts[0], stops), ends)

    def _prompts(self, prompt: Any) -> tuple[list[list[int]], bool, bool]:
        """Prompts as lists of ids; whether they were text, and whether there was only one."""
        if isinstance(prompt, Tensor):
            self._check_ids(prompt)
            prompt = prompt.tolist()
        single = isinstance(prompt, str) or (bool(prompt) and all(isinstance(one, int) for one in prompt))
        listed = [prompt] if single else list(prompt)
        is_text = bool(listed) and all(isinstance(one, str) for one in listed)
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(listed)] if is_text else listed
        rows = [list(row) or [*([] if self.special.bos is None else [self.special.bos])] for row in rows]
        top = self.embedding.num_embeddings
        if not rows or not all(row and all(type(n) is int and 0 <= n < top for n in row) for row in rows):
            raise InputError(
                "this prompt cannot be continued",
                expected=f"text, or ids from 0 to {top - 1}; one or more of either, none of them empty",
                got=repr(prompt)[:80],
                hint='model.generate("Once upon a time")',
            )
        return rows, is_text, single

    def _stops(self, stop: str | Sequence[str], is_text: bool) -> tuple[str, ...]:
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(isinstance(one, str) and one for one in stops) or (stops and not is_text):
            raise InputError(
                "this cannot stop a text",
                expected="strings that are not empty, and a prompt that is text",
                got=repr(stop)[:80],
                hint='stop="\\n"; eos=… for ids',
            )
        return stops

    def _ends(self, eos: int | Sequence[int] | None) -> frozenset[int]:
        if eos is None:
            return frozenset(self.special.eos)
        return frozenset([eos] if isinstance(eos, int) else eos)


def _pieces(steps: Iterator[list[int]], stream: TextStream, ends: frozenset[int]) -> Iterator[str]:
    for (token,) in steps:
        if token in ends:
            break
        piece = stream.add(token)
        if piece:
            yield piece
        if stream.stopped:
            return
    rest = stream.end()
    if rest:
        yield rest
