"""Moses words cut by byte-pair codes, with tables worked by hand."""

import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from jumok_serve.manifest.tokenizers import MosesBPEDescription
from jumok_serve.tokenizers import load_tokenizer
from jumok_serve.tokenizers.moses_bpe import MosesBPETokenizer
from tests.support.files import THOROUGH
from tests.support.growth import assert_linear

PIECES = [
    *("<unk>", "</s>", "l@@", "o@@", "w", "lo@@", "low", "low@@", "er", "e@@", "r"),
    *(".", ",", "&quot;", "s", "'s", "&apos;s"),
]
CODES = "#version: 0.2\nl o\nlo w</w>\ne r</w>\nlo w\n"


def make(codes: str = CODES, languages: tuple[str, str] = ("en", "en"), **arguments: object) -> MosesBPETokenizer:
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    defaults = {"source_vocabulary": vocabulary, "source_vocab_size": 20, "target_vocab_size": 20}
    settings = defaults | {"unknown": "<unk>", "special_tokens": ("</s>",)} | arguments
    source, target = languages
    return MosesBPETokenizer(codes.encode(), source_language=source, target_language=target, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("codes", "text", "pieces"),
    [
        (CODES, "low", ["low"]),
        (CODES, "lower", ["low@@", "er"]),
        (CODES, "lo", ["l@@", "<unk>"]),  # the codes merge no o that ends a word
        (CODES, "", []),
        (CODES, "low, lower.", ["low", ",", "low@@", "er", "."]),
        (CODES, "x", ["<unk>"]),
        ("#version: 0.1\nl o\nlo w\nlow </w>\n", "low lower", ["low", "low@@", "e@@", "r"]),
        ("l o\nl o\n", "low", ["lo@@", "w"]),
    ],
)
def test_texts_are_cut_into_pieces(codes: str, text: str, pieces: Sequence[str]) -> None:
    tokenizer = make(codes)
    ids = tokenizer.encode(text)
    assert tokenizer.source_tokens(ids) == list(pieces)
    assert [piece if piece in PIECES else "<unk>" for piece in tokenizer.pieces(text)] == list(pieces)
    assert tokenizer.encode_target(text) == ids
    assert tokenizer.encode_all([text, text]) == [ids, ids]


def test_text_that_spells_a_special_token_is_text() -> None:
    tokenizer = make()
    found = tokenizer.source_tokens(tokenizer.encode("</s>"))
    assert found[0] == "<unk>"  # Moses escapes it
    assert "</s>" not in found


def test_pieces_are_joined_as_moses_does() -> None:
    tokenizer = make()
    text = "low lower, low lower, lower low."
    ids = [*tokenizer.encode(text), 1]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_all([ids, []]) == [tokenizer.decode(ids), ""]
    assert tokenizer.tokens([0, 1, 19]) == ["<unk>", "</s>", ""]
    for end in range(len(ids)):
        assert tokenizer.decode(ids).startswith(tokenizer.decode_stable(ids[:end]))
    assert tokenizer.decode_stable(ids) != ""


def test_a_long_word_is_unknown() -> None:
    assert make().encode("low" * 1000) == [0]


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    other = {piece: number for number, piece in enumerate(reversed(PIECES))}
    tokenizer = make(target_vocabulary=other)
    description = tokenizer.save(tmp_path)
    assert isinstance(description, MosesBPEDescription)
    assert not description.shared
    loaded = load_tokenizer(description, tmp_path)
    assert loaded.encode("lower low.") == tokenizer.encode("lower low.")
    assert loaded.encode_target("lower") == tokenizer.encode_target("lower") == [other["low@@"], other["er"]]
    assert (loaded.source_vocab_size, loaded.vocab_size, loaded.source_unknown) == (20, 20, 0)
    assert loaded.encode_target("x") == [loaded.target_unknown] == [other["<unk>"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"codes": "a b c\n"}, "line 1 of the codes is no pair of symbols"),
        ({"codes": "#version: 0.3\n"}, "the codes have version '0.3'"),
        ({"unknown": "<none>"}, "the source vocabulary has no '<none>'"),
        ({"target_vocab_size": 3}, "the target vocabulary has ids up to 16, but the model's ids end at 2"),
    ],
)
def test_invalid_parts_are_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**arguments)  # type: ignore[arg-type]


def test_without_the_extra_the_error_names_it() -> None:
    program = (
        "import sys; sys.modules['sacremoses'] = None\n"
        "from tests.serve.tokenizers.test_moses_bpe import make\n"
        "try: make()\nexcept ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert "install it with: pip install 'jumok[moses]'" in done.stdout


def merged_one_by_one(codes: Sequence[tuple[str, str]], word: str) -> list[str]:
    """Cut a word as subword-nmt does: merge the first pair of the codes everywhere, again and again."""
    symbols = [*word[:-1], f"{word[-1]}</w>"]
    while present := [pair for pair in codes if pair in pairwise(symbols)]:
        merged, at = [], 0
        while at < len(symbols):
            together = tuple(symbols[at : at + 2]) == present[0]
            merged.append("".join(symbols[at : at + 1 + together]))
            at += 1 + together
        symbols = merged
    return [symbol.removesuffix("</w>") for symbol in symbols]


def random_codes(random: Random) -> list[tuple[str, str]]:
    """Pairs of symbols in any order: some make others possible, some come before those that they need."""
    symbols, pairs = [*"abc", "a</w>", "b</w>"], dict[tuple[str, str], None]()
    for _ in range(random.randrange(30)):
        pair = (random.choice(symbols[:3] + [one for one in symbols if "</w>" not in one]), random.choice(symbols))
        pairs[pair] = None
        symbols.append("".join(pair))
    return random.sample(list(pairs), len(pairs))


def test_words_are_cut_as_subword_nmt_does() -> None:
    random = Random(6)
    for _ in range(400 if THOROUGH else 150):
        codes = random_codes(random)
        lines = "".join(f"{left} {right}\n" for left, right in codes)
        word = "".join(random.choices("abc", k=random.randrange(1, 40)))
        expected = merged_one_by_one(codes, word)
        found = make(f"#version: 0.2\n{lines}").pieces(word)
        assert [piece.removesuffix("@@") for piece in found] == expected, (codes, word)


@pytest.mark.parametrize("language", ["en", "de", "fr", "cs", "zh", "ja", "ko"])
def test_words_are_those_of_moses(language: str) -> None:
    sacremoses: Any = pytest.importorskip("sacremoses")
    moses, normalizer = sacremoses.MosesTokenizer(language), sacremoses.MosesPunctNormalizer(language)
    tokenizer, random = make(languages=(language, language)), Random(8)
    parts = [
        *("U.S.", "z.B.", "No.", "1", "3.", "dr.", "Dr.", "a.", "Á.", "ž.", "ё.", "的.", ".", "..", "...", "word,"),
        *("DOT", "MULTI", "DOTMULTI", "DOTDOTMULTI", "xDOTMULTI", "'tis", '."', '.."', '"', "<"),
        *("\uac00", "\u3042\u2ca30", "\U0002a6d6"),
    ]
    for _ in range(300 if THOROUGH or language == "en" else 100):
        text = "".join(random.choice((part, f"{part} ")) for part in random.choices(parts, k=12)).strip()
        words = " ".join(moses.tokenize(normalizer.normalize(text))).split(" ")
        pieces = " ".join(tokenizer.pieces(text)).replace("@@ ", "").split(" ")
        assert pieces == [word for word in words if word]


def test_time_grows_in_proportion_to_a_word() -> None:
    random = Random(7)
    letters = [chr(ord("a") + number) for number in range(26)]
    tokenizer = make("#version: 0.2\n" + "".join(f"{left} {right}\n" for left in letters for right in letters))

    def word(length: int) -> str:
        return "".join(random.choices(letters, k=length))

    assert_linear(word, tokenizer.pieces, size=100)


@pytest.mark.parametrize("language", ["en", "fr", "zh"])
@pytest.mark.parametrize("unit", ["DOT", "U.S. ", "a. ", "No. 1 ", ".", '."', "' a", "x-", "@a.", "<a b='c' ", "( "])
def test_time_grows_in_proportion_to_a_text(unit: str, language: str) -> None:
    assert_linear(lambda length: unit * (length // len(unit)), make(languages=(language, language)).pieces)
