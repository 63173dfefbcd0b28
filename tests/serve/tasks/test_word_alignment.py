"""Alignment of words by attention, and the text that tokens spell."""

import numpy as np
import pytest

from jumok_proto.errors import DeadlineExceededError
from jumok_serve.interrupts import Deadline
from jumok_serve.tasks.word_alignment import MAX_WORDS, Pair, Place, TokenAlignment, align_words, token_places, words
from tests.support.growth import calls_made, lines_run
from tests.support.memory import memory_of


def test_words_and_signs_are_apart() -> None:
    assert [text[slice(*place)] for text in ["Don't, 3.5 a_b!"] for place in words(text)] == [
        *("Don", "'", "t", ",", "3", ".", "5", "a_b", "!")
    ]
    assert [("猫が sit ไป")[slice(*place)] for place in words("猫が sit ไป")] == ["猫", "が", "sit", "ไ", "ป"]


def test_korean_particles_are_no_words() -> None:
    text = "파일을 이미지로 서울로 Basic에서 값을 도구는 창과 IDE의 2개를"
    assert [text[slice(*place)] for place in words(text)] == "파일 이미지 서울 Basic 값 도구 창과 IDE 2개".split()  # noqa: SIM905
    text = "파일을(를) {x}은(는) 셀(으)로 표(가) (이)"
    assert [text[slice(*place)] for place in words(text)] == [
        *("파일", "{", "x", "}", "셀", "표", "(", "가", ")"),
        *"(이)",
    ]
    # Nouns that end like a particle, after a syllable that no such particle follows, or after one alone.
    text = "마을 사이 정도 주의 결과 추가 차이 을 에서"
    assert [text[slice(*place)] for place in words(text)] == text.split()


@pytest.mark.parametrize(
    ("tokens", "text", "spelled"),
    [
        (["\u2581The", "\u2581ca", "ts", "."], "The cats.", ["The", "ca", "ts", "."]),
        (["\u2581", "The", "\u2581 ", ""], "The", ["", "The", "", ""]),
        # Normalization and letters that a tokenizer changes.
        (["\u2581fi", "sh"], "\ufb01sh", ["\ufb01", "sh"]),
        (["\u2581the", "\u2581CAT"], "The cat", ["The", "cat"]),
        # Tokens that are not in the text, and text without tokens.
        (["<2de>", "\u2581The", "\u2581?", "\u2581cat"], "The 😀 cat", ["", "The", "", "cat"]),
        (["\u2581a", "b", "\u2581a"], "a\u200bb\x07 a", ["a", "b", "a"]),
        (["\u2581red", "\u2581", "rest" * 20, "\u2581cats"], "red cats", ["red", "", "", "cats"]),
        # Composed characters, and several for one.
        (["\u2581caf", "é", "\u2581½", "\u2581ガス"], "cafe\u0301 1\u20442 ｶﾞｽ", ["caf", "e\u0301", "1\u20442", "ｶﾞｽ"]),
        (["\u2581e", "\u2581\u1112\u1161"], "e\u0301 하", ["e", "하"]),
        # Tokens of a part of the text.
        (["\u2581The", "\u2581c"], "The cats sleep. The cats sleep.", ["The", "c"]),
        (["\u2581The", "\u2581c"], "The\u200b cats sleep. The cats sleep.", ["The", "c"]),
    ],
)
def test_tokens_have_their_part_of_a_text(tokens: list[str], text: str, spelled: list[str]) -> None:
    assert [text[slice(*place)] for place in token_places(tokens, text)] == spelled


@pytest.mark.parametrize(
    ("of_tokens", "of_text"),
    [("a", "a\u200b"), ("b", "ab"), ("ab", "ba"), ("aaab", "aaac"), ("aab", "abba"), ("abcd", "dcba")],
)
@pytest.mark.parametrize("rest", ["", "abcd"])
def test_work_grows_in_proportion_to_the_characters(of_tokens: str, of_text: str, rest: str) -> None:
    def work(size: int) -> int:
        tokens, text = [*of_tokens * size, rest], of_text * size + rest
        return lines_run(lambda: token_places(tokens, text)) + calls_made(lambda: token_places(tokens, text))

    assert work(1600) < 2.5 * work(800)


def test_random_letters_take_work_in_proportion() -> None:
    chosen = np.random.default_rng(11)

    def work(size: int) -> int:
        tokens, text = ("".join(chosen.choice([*"abc"], size)) for _ in range(2))
        return lines_run(lambda: token_places([*tokens], text))

    assert work(4000) < 2.5 * work(2000)


def test_a_batch_is_not_aligned_after_the_deadline() -> None:
    sentence = TokenAlignment(np.ones((1, 1)), "cat", [(0, 3)], "Katze", [(0, 5)])
    with pytest.raises(DeadlineExceededError, match="while words were aligned"):
        align_words([sentence], Deadline(0).check)


def peak_bytes(source: str, target: str, places: list[Place]) -> int:
    """Return the most memory that aligning two texts takes; both have the same tokens."""
    sentence = TokenAlignment(np.full((len(places),) * 2, 1 / len(places), np.float32), source, places, target, places)
    return memory_of(lambda: align_words([sentence]))[1]


def test_a_truncated_text_takes_the_memory_of_what_is_read() -> None:
    places = words("ab " * 64)
    assert peak_bytes("ab " * 6400, "ab " * 64, places) < 2 * peak_bytes("ab " * 64, "ab " * 64, places)


def test_words_that_a_token_covers_in_part_are_whole() -> None:
    rows, target = np.array([[0.1, 0.9], [0.9, 0.1]]), "Katzen rote"
    found = align_words([TokenAlignment(rows, "red cats sleep", [(0, 3), (4, 6)], target, words(target))])
    assert [[pair[:2] for pair in of_one] for of_one in found] == [[((0, 6), (4, 8)), ((7, 11), (0, 3))]]


def test_tokens_of_many_signs_take_bounded_memory() -> None:
    def dashes(tokens: int) -> int:
        text = "-" * 16 * tokens
        return peak_bytes(text, text, [(start, start + 16) for start in range(0, len(text), 16)])

    assert dashes(MAX_WORDS // 4) < 1.5 * dashes(MAX_WORDS // 8)


@pytest.mark.parametrize(
    ("rows", "source", "target", "found"),
    [
        ([[0.8, 0.2], [0.3, 0.7]], "red cat", "rote Katze", ["red", "cat"]),
        ([[0.1, 0.9], [0.6, 0.4]], "red cat", "Katze rote", ["cat", "red"]),
        # A full stop that all attend to is no evidence.
        ([[0.3, 0.1, 0.6], [0.1, 0.3, 0.6], [0.1, 0.1, 0.8]], "red cat.", "rote Katze.", ["red", "cat", "."]),
        # Equal words go together.
        ([[0.6, 0.4], [0.7, 0.3]], "see LibreOffice", "LibreOffice sehen", ["LibreOffice", "see"]),
        ([[0.0, 0.0]], "red cat", "rote", [""]),
    ],
)
def test_a_word_goes_with_the_word_that_it_attends_to_most(
    rows: list[list[float]], source: str, target: str, found: list[str]
) -> None:
    (places,) = align_words([TokenAlignment(np.array(rows), source, words(source), target, words(target))])
    assert [pair.place for pair in places] == words(target)
    assert [source[slice(*pair.source)] for pair in places] == found


def test_a_word_has_shares_of_several_words() -> None:
    rows, source = np.array([[0.5, 0.5, 0.0], [0.01, 0.01, 0.98]]), "fire truck red"
    ((both, one),) = align_words(
        [TokenAlignment(rows, source, words(source), "Feuerwehrauto rotes", [(0, 13), (14, 19)])]
    )
    assert both.shares == [((0, 4), 0.5), ((5, 10), 0.5)]
    assert (one.source, one.shares) == ((11, 14), ())


def test_no_words_are_aligned_to_nothing() -> None:
    without = np.zeros((1, 1))
    assert align_words([]) == []
    assert align_words([TokenAlignment(without, "", [(0, 0)], "Haus", [(0, 4)])]) == [[Pair((0, 4), (0, 0))]]
    assert align_words([TokenAlignment(without, "house", [(0, 5)], "", [(0, 0)])]) == [[]]


def test_sentences_have_the_words_that_each_has_alone() -> None:
    chosen = np.random.default_rng(5)

    def side(words_of_side: int) -> tuple[str, list[Place]]:
        """Make a text, and tokens that are parts of words, several words, or nothing."""
        text = " ".join(chosen.choice(["a", "red", "cat.", "e-mail", "3,5"], words_of_side))
        ends = chosen.integers(0, len(text) + 1, (words_of_side + 2, 2))
        return text, [(min(first, after), max(first, after)) for first, after in ends.tolist()]

    def made(source_words: int, target_words: int) -> TokenAlignment:
        (source, source_tokens), (target, target_tokens) = side(source_words), side(target_words)
        weights = chosen.dirichlet(np.ones(len(source_tokens)), len(target_tokens)).astype(np.float32)
        return TokenAlignment(weights, source, source_tokens, target, target_tokens)

    sentences = [made(*chosen.integers(0, 12, 2).tolist()) for _ in range(200)]
    sentences.append(made(200, 150))  # too long for a batch with others
    alone = [found for one in sentences for found in align_words([one])]
    assert align_words(sentences) == alone
    assert sum(map(len, alone)) > 1000
