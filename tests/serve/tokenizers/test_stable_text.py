"""Stable text of decoded tokens: incomplete characters, spaces, and all kinds of decoders."""

import io
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer, clean_up_spaces, stable_text
from jumok_serve.tokenizers.tokenizer import Tokenizer
from jumok_serve.tokenizers.tokenizer_json import TokenizerJson

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def check(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return the stable text after each token, and assert that later tokens keep it."""
    steps = [tokenizer.decode_stable(ids[:end]) for end in range(len(ids) + 1)]
    assert all(after.startswith(before) for before, after in pairwise(steps))
    assert tokenizer.decode(ids).startswith(steps[-1])
    return steps


@pytest.fixture(scope="module")
def with_bytes() -> SentencePieceTokenizer:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ein Mann in einem blauen Hemd steht auf einer Leiter ."] * 4),
        model_writer=model,
        vocab_size=300,
        hard_vocab_limit=False,
        byte_fallback=True,
        minloglevel=2,
        num_threads=1,
    )
    return SentencePieceTokenizer(model.getvalue())


def test_a_character_in_pieces_is_held_back(with_bytes: SentencePieceTokenizer) -> None:
    steps = check(with_bytes, with_bytes.encode_target("ein \u5973\U0001f600 Mann"))
    assert not any("\ufffd" in step for step in steps)
    assert {"ein", "ein \u5973", "ein \u5973\U0001f600"} <= {*steps}
    assert steps[-1] == "ein \u5973\U0001f600 Mann"


def test_any_pieces_in_any_order(with_bytes: SentencePieceTokenizer) -> None:
    generator = np.random.default_rng(1)
    for _ in range(500):
        check(with_bytes, generator.integers(0, with_bytes.vocab_size, size=20).tolist())


def word_level(decoder: Any) -> TokenizerJson:
    """Return a tokenizer of bytes, words and characters that stand for spaces."""
    spelled = ["[UNK]", *BYTES, "a", "▁b", "##c", "d</w>", " ", "▁", ".", "n", "'t", "Ġe", "Ã", "¤", "é"]
    library = Library(models.WordLevel({token: number for number, token in enumerate(spelled)}, unk_token="[UNK]"))
    if decoder is not None:
        library.decoder = decoder
    return TokenizerJson(library.to_str().encode(), clean_up_spaces=True)


DECODERS = {
    "none": None,
    "bpe": decoders.BPEDecoder(),
    "byte level": decoders.ByteLevel(),
    "metaspace": decoders.Metaspace(),
    "word piece": decoders.WordPiece(),
    "llama": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
}


@pytest.mark.parametrize("kind", DECODERS)
def test_decoders_that_append(kind: str) -> None:
    tokenizer = word_level(DECODERS[kind])
    generator = np.random.default_rng(1)
    written = 0
    for size in [4, 24] * 300:
        ids = generator.integers(0 if size == 4 else 257, tokenizer.vocab_size, size=size).tolist()
        ids[:2] = generator.integers(0xC0, 0x100, size=2).tolist() if size == 4 else ids[:2]
        written += len(check(tokenizer, ids)[-2])
    assert written > 3000


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.CTC(),
        decoders.Strip(" ", 0, 1),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "x")]),
    ],
)
def test_other_decoders_have_no_stable_text(decoder: Any) -> None:
    tokenizer = word_level(decoder)
    assert tokenizer.decode_stable([257, 258, 264]) == ""


def test_text_that_clean_up_can_change_is_held_back() -> None:
    generator = np.random.default_rng(1)
    parts = [" ", "n", "'", "t", "'t", ".", "!", "s", "ve", "re", "a", " '", "  "]
    for _ in range(4000):
        text = ""
        shown = ""
        for part in generator.choice(parts, size=12):
            text += part
            before, shown = shown, stable_text(text, clean_up=True)
            assert shown.startswith(before), text
        assert clean_up_spaces(text).startswith(shown)
    assert stable_text("I do n", clean_up=False) == "I do n"
    assert stable_text("I do n", clean_up=True) == "I do"
    assert stable_text("x \ufffd \ufffd\ufffd", clean_up=False) == "x"
