"""Tokenizer of plain lists: characters and words, known and unknown."""

from pathlib import Path

import pytest

from jumok_serve.tokenizers import load_tokenizer
from jumok_serve.tokenizers.word_list import WordListTokenizer, read_tokens

SPECIAL = ["<pad>", "<s>", "</s>"]
ONE = [*SPECIAL, "<unk>", *"abc ▁é"]
"""Characters; the ids of a, b, c, space, ▁ and é are 4 to 9."""


def reloaded(tokenizer: WordListTokenizer, folder: Path) -> WordListTokenizer:
    """A tokenizer from the files of a bundle."""
    description = tokenizer.save(folder)
    assert sorted(description.files) == sorted(path.name for path in folder.iterdir())
    loaded = load_tokenizer(description, folder)
    assert isinstance(loaded, WordListTokenizer)
    assert (loaded.vocab_size, loaded.source_vocab_size) == (tokenizer.vocab_size, tokenizer.source_vocab_size)
    return loaded


def test_characters_are_read_and_joined(tmp_path: Path) -> None:
    ours = reloaded(WordListTokenizer("character", ONE, unknown="<unk>", special_tokens=SPECIAL), tmp_path)
    assert ours.encode("a  cab") == [4, 7, 7, 6, 4, 5]
    assert ours.decode([1, 4, 7, 7, 6, 2, 0]) == "a  c"
    assert ours.encode("▁é") == ours.encode_target("▁é") == [8, 9]
    assert ours.encode("") == []
    assert ours.encode_all(["a", "b"]) == [[4], [5]]
    assert ours.decode_all([[4], [5]]) == ["a", "b"]
    assert ours.source_tokens([1, 4, 7]) == ours.tokens([1, 4, 7]) == ["<s>", "a", " "]


def test_unknown_characters_are_one_token_each_or_left_out(tmp_path: Path) -> None:
    kept = WordListTokenizer("character", ONE, unknown="<unk>", special_tokens=SPECIAL)
    assert kept.encode("a😀e\u0301\n") == [4, 3, 3, 3, 3]
    assert kept.pieces("a😀e\u0301\n") == ["a", "😀", "e", "\u0301", "\n"]
    assert kept.encode("</s>") == [3] * 4
    assert kept.decode([4, 3, 5]) == "ab"
    dropped = reloaded(WordListTokenizer("character", ONE[:3] + ONE[4:], special_tokens=SPECIAL), tmp_path)
    assert dropped.encode("a😀b") == [3, 4]
    assert dropped.pieces("a😀b") == ["a", "b"]


def test_words_of_two_languages_are_read_and_joined(tmp_path: Path) -> None:
    english, german = [*SPECIAL, "?", "cold", "night"], ["?", *SPECIAL, "kalte", "Nacht", "Tag"]
    ours = reloaded(WordListTokenizer("word", english, german, unknown="?", special_tokens=SPECIAL), tmp_path)
    assert (ours.source_vocab_size, ours.vocab_size) == (6, 7)
    assert ours.encode(" cold\tnight\u00a0day </s>") == [4, 5, 3, 3]
    assert ours.pieces(" cold day </s>") == ["cold", "day", "</s>"]
    assert ours.encode_target("kalte Nacht Night") == [4, 5, 0]
    assert (ours.source_unknown, ours.target_unknown) == (3, 0)
    assert ours.decode([1, 4, 0, 6, 3]) == "kalte Tag"
    for end in range(4):
        assert ours.decode([4, 5, 6]).startswith(ours.decode_stable([4, 5, 6][:end]))
    for outside in (-1, 7):
        with pytest.raises(IndexError, match=f"token {outside} lies beyond the vocabulary of 7"):
            ours.decode([outside])
    with pytest.raises(IndexError, match="token 6 lies beyond the vocabulary of 6"):
        ours.source_tokens([6])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["<unk>", "a", "b", "a"], "the source vocabulary has 'a' twice: remove one"),
        (["a"], "the source vocabulary has no '<unk>', the token of unknown parts"),
        (["<unk>", "a\n"], r"has 'a\\n', which is no line of a file"),
        (["<unk>", ""], "has '', which is no line of a file"),
    ],
)
def test_unusable_lists_are_refused(tokens: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WordListTokenizer("word", tokens, unknown="<unk>")


def test_letters_become_words_with_special_tokens_of_one_side(tmp_path: Path) -> None:
    """As in a model of pronunciations: no start token among the letters, no letter behind a special token's id."""
    letters, sounds = ["<pad>", "<unk>", "</s>", *"abc"], ["<pad>", "<s>", "</s>", "AE1", "B", "K"]
    special = ["<pad>", "<s>", "</s>"]
    made = WordListTokenizer("character", letters, sounds, target_unit="word", unknown="<unk>", special_tokens=special)
    for ours in (made, reloaded(made, tmp_path)):
        assert ours.encode("cab-") == [5, 3, 4, 1]
        assert ours.encode_target("K AE1 B X") == [5, 3, 4]  # no unknown token: left out
        assert ours.target_unknown is None
        assert ours.decode([1, 5, 3, 4, 2]) == "K AE1 B"
    with pytest.raises(ValueError, match="no vocabulary has '<mask>', which is a special token"):
        WordListTokenizer("character", letters, sounds, special_tokens=["<mask>"])


def test_files_are_read_by_line(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes("a\n \n\u2028\n\u0085".encode())
    assert read_tokens(tmp_path / "list.txt") == ["a", " ", "\u2028", "\u0085"]
    (tmp_path / "latin.txt").write_bytes(b"\xe4")
    with pytest.raises(ValueError, match=r"latin\.txt is not UTF-8"):
        read_tokens(tmp_path / "latin.txt")
