"""Vocabulary maps become shortlists, with which translations are CTranslate2's."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from jumok_export.importers.ctranslate2.vocabulary_map import VocabularyMap, find_map
from jumok_export.shortlists.sources import ShortlistError
from jumok_export.training.vocabulary import Vocabulary
from jumok_serve.tokenizers.tokenizer import SentencePieceTokenizer


def lists_of(path: Path, tokenizer: SentencePieceTokenizer, sources: Sequence[int]) -> set[int]:
    plan = VocabularyMap(path).plan
    lexicon = plan.lexicon.lexicon(tokenizer, lambda _: None)
    made = lexicon.shortlist(tokenizer, best=plan.best, frequent=plan.frequent, always=(), never=())
    return {*made.of(sources).tolist()}


def test_lists_are_those_of_the_lines(vocabulary: Vocabulary, tmp_path: Path) -> None:
    tokenizer = SentencePieceTokenizer(vocabulary.model)
    names = tokenizer.tokens(range(tokenizer.vocab_size))
    lines = [f"\t{names[9]} {names[12]}", f"{names[20]}\t{names[21]} unknown {names[22]}"]
    lines += [f"{names[23]} {names[24]}\t{names[25]}", f"{names[23]}\t{names[26]}", f"{names[27]}\t"]
    (tmp_path / "vmap.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    found = find_map(tmp_path)
    assert found is not None
    assert found.plan.frequent >= 2
    expected: dict[tuple[int, ...], set[int]] = {
        (20,): {20, 21, 22},
        (23,): {23, 25, 26},  # the phrase is listed for its first token
        (24,): {24},
        (27,): {27},
        (20, 23): {20, 21, 22, 23, 25, 26},
    }
    for sources, listed in expected.items():
        assert lists_of(found.path, tokenizer, sources) == {9, 12} | listed


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a\tb\nc d\n", "vmap.txt, line 2: no tab after the source tokens: 'c d'"),
        (b"qqqq\tzzzz\n", "vmap.txt names no tokens of the model's vocabularies"),
        (b"a\t\xff\n", "vmap.txt cannot be read: 'utf-8' codec"),
    ],
)
def test_other_files_are_refused(content: bytes, said: str, vocabulary: Vocabulary, tmp_path: Path) -> None:
    (tmp_path / "vmap.txt").write_bytes(content)
    with pytest.raises(ShortlistError) as raised:
        lists_of(tmp_path / "vmap.txt", SentencePieceTokenizer(vocabulary.model), [3])
    assert said in str(raised.value)


def test_an_empty_map_is_none(tmp_path: Path) -> None:
    (tmp_path / "vmap.txt").touch()
    assert find_map(tmp_path) is None
