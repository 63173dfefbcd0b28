"""SentencePiece tokenizer: round trips, special tokens, any input, and wrong files."""

import re
import sys
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from jumok_serve.tokenizers import load_tokenizer
from jumok_serve.tokenizers.input_processor import check_text
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from jumok_serve.tokenizers.tokenizer_json import MAX_LOCKED, TokenizerJson
from tests.support.refusals import refused

PAD, UNK, START, EOS = range(4)
SEEN = "a little girl is standing on a blue ladder ."


@pytest.fixture(scope="module")
def tokenizer(shared_model: Path) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(shared_model)


def normalized(text: str) -> str:
    """Normalize printable text as SentencePiece does by default: NFKC, and single spaces inside."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()


@pytest.mark.parametrize(
    "text",
    [SEEN, "ein Mädchen in der Nähe", "  a   man\tin\n a  shirt ", "ﬁne", "Ma\u0308nner", "ａ　ｍａｎ"],  # noqa: RUF001
)
def test_seen_text_comes_back_normalized(tokenizer: SentencePieceTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == normalized(text)


def test_encode_gives_nothing_special(tokenizer: SentencePieceTokenizer) -> None:
    """Special tokens that are spelled out are text."""
    assert tokenizer.encode(SEEN)
    assert not {PAD, UNK, START, EOS} & set(tokenizer.encode(SEEN))
    assert not {PAD, START, EOS} & set(tokenizer.encode("</s> <s> <pad>"))
    assert tokenizer.encode_target(SEEN) == tokenizer.encode(SEEN)


@pytest.mark.parametrize("text", ["", " ", "\t \n\r", "\u00a0\u3000", "\u200b"])
def test_white_space_alone_is_an_empty_sentence(tokenizer: SentencePieceTokenizer, text: str) -> None:
    assert tokenizer.encode(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "a man 😀 on a ladder",
        "👩‍👩‍👧‍👦🏳️‍🌈",
        "日本語のテキスト",
        "שלום עולם",
        "கணினி ไทย አማርኛ",
        "\x01\x02\x1b[31m\x7f\x85",
        "\u202e\ufeff\ufffd\U0010ffff\uffff",
        "Donaudampfschifffahrt" * 500,
        "x" * 50_000,
    ],
    ids=["emoji", "joined emoji", "japanese", "hebrew", "scripts", "control", "odd", "long word", "long unseen"],
)
def test_anything_can_be_encoded_and_decoded(tokenizer: SentencePieceTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    assert isinstance(tokenizer.decode(ids), str)


def test_unseen_character_is_one_unknown_token_and_decodes_visibly(tokenizer: SentencePieceTokenizer) -> None:
    ids = tokenizer.encode("a man 😀 on a ladder")
    assert ids.count(UNK) == 1
    assert tokenizer.decode(ids).split() == ["a", "man", "⁇", "on", "a", "ladder"]
    assert tokenizer.decode([UNK]) == " ⁇ "


def test_decode_leaves_special_tokens_out(tokenizer: SentencePieceTokenizer) -> None:
    ids = tokenizer.encode(SEEN)
    assert tokenizer.decode([START, *ids[:3], PAD, *ids[3:], EOS, PAD, PAD]) == SEEN
    assert tokenizer.decode([PAD, START, EOS]) == ""
    assert tokenizer.decode([]) == ""


def test_tokens_are_the_pieces_of_the_ids(tokenizer: SentencePieceTokenizer) -> None:
    ids = tokenizer.encode(SEEN)
    pieces = tokenizer.tokens(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces).replace("▁", " ").strip() == SEEN
    assert tokenizer.tokens([PAD, UNK, START, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokenizer.source_tokens(ids) == pieces
    assert tokenizer.tokens([]) == []
    array = list(np.asarray(ids, dtype=np.int64))
    assert tokenizer.decode(array) == tokenizer.decode(ids)
    assert tokenizer.tokens(array) == pieces


@pytest.mark.parametrize("token", [-1, 10_000])
def test_id_beyond_the_vocabulary_is_named(tokenizer: SentencePieceTokenizer, token: int) -> None:
    for read in (tokenizer.decode, tokenizer.tokens, tokenizer.source_tokens):
        with pytest.raises(IndexError, match=f"token {token} lies beyond the vocabulary of {tokenizer.vocab_size}"):
            read([EOS, token])


def test_source_and_target_models_are_kept_apart(english_model: Path, german_model: Path, tmp_path: Path) -> None:
    source, target = SentencePieceTokenizer(english_model), SentencePieceTokenizer(german_model)
    assert source.vocab_size != target.vocab_size
    pair = SentencePieceTokenizer(english_model, german_model)
    german = "ein kleines Mädchen"
    assert pair.encode(SEEN) == source.encode(SEEN)
    assert pair.encode_target(german) == target.encode(german)
    assert pair.decode(target.encode(german)) == german
    assert pair.source_tokens(pair.encode(SEEN)) == source.tokens(source.encode(SEEN))
    assert pair.tokens(target.encode(german)) == target.tokens(target.encode(german))
    assert (pair.source_vocab_size, pair.vocab_size) == (source.vocab_size, target.vocab_size)
    description = pair.save(tmp_path)
    assert description.files == ("source.model", "target.model")
    loaded = load_tokenizer(description, tmp_path)
    assert loaded.encode(SEEN) == pair.encode(SEEN)
    assert loaded.decode(target.encode(german)) == german


def test_saved_shared_model_is_stored_once_and_loads_alike(
    tokenizer: SentencePieceTokenizer, shared_model: Path, tmp_path: Path
) -> None:
    """Whether it was given by its path or by its content."""
    for name, given in (("path", tokenizer), ("content", SentencePieceTokenizer(shared_model.read_bytes()))):
        folder = tmp_path / name
        folder.mkdir()
        description = given.save(folder)
        assert [path.name for path in folder.iterdir()] == ["tokenizer.model"]
        assert description.files == ("tokenizer.model",)
        assert (folder / "tokenizer.model").read_bytes() == shared_model.read_bytes()
        assert load_tokenizer(description, folder).encode(SEEN) == given.encode(SEEN) == tokenizer.encode(SEEN)


JSON = r"is not a tokenizer\.json that tokenizers [\d.]+ reads: "


@pytest.mark.parametrize(
    ("tokenizer_type", "content", "message"),
    [
        *((SentencePieceTokenizer, content, "is not a SentencePiece model") for content in (b"", b"no", b"\x00" * 64)),
        *((TokenizerJson, content, JSON) for content in (b"", b"{}", b"[]", b'{"added_tokens": [], "model": {}}')),
    ],
)
def test_file_that_is_no_model_is_refused(tmp_path: Path, tokenizer_type: Any, content: bytes, message: str) -> None:
    path = tmp_path / "broken"
    path.write_bytes(content)
    for given, name in ((path, "broken"), (content, "")):
        with pytest.raises(ValueError, match=f"{name} {message}"):
            tokenizer_type(given)


def test_tokenizer_json_has_its_own_size_where_none_is_given() -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "cat": 1, "</s>": 2}, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    ours = TokenizerJson(tokenizer.to_str().encode())
    assert (ours.source_vocab_size, ours.vocab_size) == (3, 3)
    assert ours.encode("cat") == [1]
    assert ours.encode("</s>") == ours.encode("dog") == [0]
    assert ours.tokens([0, 1, 2]) == ["<unk>", "cat", "</s>"]


def test_a_long_text_is_encoded_as_a_short_one() -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([SEEN] * 9, trainer)
    ours = TokenizerJson(tokenizer.to_str().encode())
    for text in (f"{SEEN} " * 500, "\u201c" * 100_000, "x" * (MAX_LOCKED + 1), "x" * MAX_LOCKED):
        assert ours.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_a_long_text_is_encoded_without_the_lock_of_python() -> None:
    words = tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>")
    ours = TokenizerJson(tokenizers.Tokenizer(words).to_str().encode())
    turns = 0
    ended = threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            time.sleep(0)  # gives the lock away

    def turns_during(text: str) -> int:
        before = turns
        ours.encode(text)
        return turns - before

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # so that nothing but a library takes the lock from a thread
    try:
        other = threading.Thread(target=take_turns)
        other.start()
        assert not any(turns_during("x" * MAX_LOCKED) for _ in range(1000))
        assert any(turns_during("x" * 100 * MAX_LOCKED) for _ in range(100_000))
    finally:
        ended.set()
        sys.setswitchinterval(interval)
    other.join()


def test_many_at_once_are_what_each_is_alone(tokenizer: SentencePieceTokenizer) -> None:
    some = ["", SEEN, " ", "日本語 😀", "\u200b", "</s> <pad>", "x" * 300, "\x01\x7f", "ein Mädchen in der Nähe"]
    for texts in (some, [some[number % len(some)] + str(number) * (number % 3) for number in range(1000)]):
        ids = [tokenizer.encode(text) for text in texts]
        assert tokenizer.encode_all(texts) == ids
        assert tokenizer.decode_all(ids) == [tokenizer.decode(of_one) for of_one in ids]
    with pytest.raises(IndexError, match="70000"):
        tokenizer.decode_all([*ids, [70000]])


def test_threads_share_a_tokenizer(tokenizer: SentencePieceTokenizer) -> None:
    words = SEEN.split()
    texts = [" ".join(words[start:] + words[:start]) * (1 + start % 3) for start in range(len(words))] * 40
    alone = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == alone
        assert list(pool.map(tokenizer.decode, alone)) == [tokenizer.decode(ids) for ids in alone]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ab\x00c", r"contents\[3\]: character 2 is U\+0000, the NUL character"),
        ("\ud83d", r"contents\[3\]: character 0 is U\+D83D, a lone surrogate"),
        ("ab\udfff\x00", r"contents\[3\]: character 2 is U\+DFFF, a lone surrogate"),
        (b"text", r"contents\[3\] must be a string, got bytes"),
    ],
)
def test_unusable_texts_are_named_with_their_place(text: Any, message: str) -> None:
    with refused("contents[3]", message):
        check_text(text, "contents[3]")


@pytest.mark.parametrize("text", ["", " ", "😀", "\x01", "\U0010ffff", "\ufffd"])
def test_other_characters_are_usable(text: str) -> None:
    check_text(text, "contents[0]")
