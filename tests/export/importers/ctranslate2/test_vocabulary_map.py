"""Vocabulary maps become shortlists, with which translations are CTranslate2's."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor

from jumok_export.importers.ctranslate2.importing import import_folder
from jumok_export.importers.ctranslate2.vocabulary_map import VocabularyMap, find_map
from jumok_export.models.transformer import Transformer
from jumok_export.shortlists.sources import ShortlistError
from jumok_export.training.vocabulary import Vocabulary
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.export.importers.ctranslate2.test_importing import TEXTS
from tests.support.checkpoints.ctranslate2_folders import open_peer, save, spec_of, tokens_of


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


def test_translations_are_those_of_ctranslate2(tiny_model: Transformer, vocabulary: Vocabulary, tmp_path: Path) -> None:
    words = tokens_of(vocabulary.model)
    folder = save(spec_of(tiny_model, words), tmp_path / "ct2", vocabulary.model)
    # Every source token lists itself, and every seventh token after it. CTranslate2 4.8 takes the listed token in the
    # end token's place for the end, so all tokens before the end token are listed.
    lines = [f"{word}\t{' '.join([word, *words[number % 7 :: 7]])}" for number, word in enumerate(words)]
    always = " ".join([*words[: words.index("</s>")], *words[5:9]])
    (folder / "vmap.txt").write_text("\n".join([f"\t{always}", *lines]), encoding="utf-8")
    import_folder(folder, tmp_path / "bundle", precisions=("fp32",), source_language="en", target_language="de")
    assert "vmap.txt is the bundle's shortlist" in Bundle.open(tmp_path / "bundle").manifest.provenance.notes
    peer, pieces = open_peer(folder), SentencePieceProcessor(model_proto=vocabulary.model)
    found = {}
    for listed in (True, False):
        with Translator(tmp_path / "bundle", precision="fp32", threads=1, shortlist=listed) as translator:
            ours = translator.translate(TEXTS, beam_size=1, max_length=30)
            found[listed] = [translator.tokenizer.tokens(one.hypotheses[0].token_ids) for one in ours]
        for text, hypothesis in zip(TEXTS, found[listed], strict=True):
            [result] = peer.translate_batch(
                [pieces.encode(text, out_type=str)],
                beam_size=1,
                max_decoding_length=30,
                return_end_token=True,
                use_vmap=listed,
            )
            assert hypothesis == result.hypotheses[0]
    assert found[True] != found[False]


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
