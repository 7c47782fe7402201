from __future__ import annotations

from model_cases import minilm_tokenizer, smollm2_tokenizer
from sightline.models.text.labels import labels_of_ids, labels_of_text

TEXT = "The kids weren't  running,\n\tso 🦁 naïve!"


def test_labels_are_the_pieces_of_the_text() -> None:
    tokenizer = smollm2_tokenizer()
    labels = labels_of_text(tokenizer.encode(TEXT), TEXT)
    assert labels[:4] == ["The", "kids", "weren", "'t"]
    assert "Ġ" not in "".join(labels)
    assert "".join(labels).count("🦁") == sum(label == "🦁" for label in labels) >= 1
    assert "⏎" in labels or "⏎⇥" in labels


def test_word_pieces_have_no_signs_and_special_tokens_their_names() -> None:
    text = "The kids embraced tokenization."
    labels = labels_of_text(minilm_tokenizer().encode(text), text)
    assert labels == ["[CLS]", "The", "kids", "embraced", "token", "ization", ".", "[SEP]"]


def test_ids_alone_have_nearly_the_same_labels() -> None:
    tokenizer = smollm2_tokenizer()
    encoding = tokenizer.encode(TEXT)
    assert labels_of_ids(tokenizer, encoding.ids) == labels_of_text(encoding, TEXT)
    encoding = minilm_tokenizer().encode("The kids embraced tokenization.")
    assert labels_of_ids(minilm_tokenizer(), encoding.ids) == [
        "[CLS]", "the", "kids", "embraced", "token", "ization", ".", "[SEP]"
    ]  # its tokens know no capitals  # fmt: skip


def test_half_a_character_has_the_name_of_its_token() -> None:
    tokenizer = smollm2_tokenizer()
    ids = tokenizer.encode("🦁").ids[:1]
    assert labels_of_ids(tokenizer, ids) == [tokenizer.id_to_token(ids[0])]
    assert labels_of_ids(tokenizer, []) == []
