"""Reading of texts: language codes that begin them, and the deadline of their request."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError
from jumok_serve import interrupts
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.languages import Languages, SourceLanguage, TargetLanguage
from jumok_serve.tokenizers.input_processor import InputProcessor, LanguageCodes
from jumok_serve.tokenizers.piece_vocabulary import PieceVocabularyTokenizer
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.support.refusals import refused

CODES = (">>deu<<", ">>fra<<", "__ko__", "jpn_Jpan", "</s>", "<unk>")


@pytest.fixture(scope="module")
def tokenizer(shared_model: Path) -> PieceVocabularyTokenizer:
    pieces = SentencePieceTokenizer(shared_model)
    spelled = dict.fromkeys([*CODES, *pieces.tokens(range(4, pieces.vocab_size))])
    return PieceVocabularyTokenizer(
        shared_model,
        source_vocabulary={piece: number for number, piece in enumerate(spelled)},
        source_vocab_size=len(spelled),
        target_vocab_size=len(spelled),
        unknown="<unk>",
        special_tokens=("</s>",),
        leading_codes=True,
    )


@pytest.fixture(scope="module")
def languages() -> Languages:
    return Languages(
        sources={"en": SourceLanguage(suffix=(4,))},
        targets={
            "deu": TargetLanguage(source_prefix=(0,)),
            "fra": TargetLanguage(source_prefix=(1,)),
            "ko": TargetLanguage(forced_first=2),
            "jpn-Jpan": TargetLanguage(start=3),
        },
    )


@pytest.mark.parametrize(
    ("text", "target", "rest"),
    [
        (">>deu<< a man", "deu", " a man"),
        (">>fra<<a man", "fra", "a man"),
        ("  >>deu<< a man", "deu", " a man"),
        ("a man >>fra<<", "deu", "a man >>fra<<"),
        ("jpn_Japanese", "deu", "jpn_Japanese"),
        (">> deu", "fra", ">> deu"),
        ("", "deu", ""),
    ],
)
def test_code_of_the_target_is_not_doubled(
    tokenizer: PieceVocabularyTokenizer, languages: Languages, text: str, target: str, rest: str
) -> None:
    codes = LanguageCodes(languages, tokenizer)
    assert codes.without(text, languages.direction("en", target), field="contents[0]") == rest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ">>fra<< a man",
            "begins with '>>fra<<', and the target language is deu: name fra as target language",
        ),
        (">>nld<< a man", "begins with '>>nld<<', which is no code of the model; its codes are >>deu<<, >>fra<<"),
        ("__ko__ a man", "begins with the language code '__ko__': name source and target language in the request"),
        ("\njpn_Jpan a man", "begins with the language code 'jpn_Jpan': name source and target language"),
    ],
)
def test_other_codes_are_refused_by_name(
    tokenizer: PieceVocabularyTokenizer, languages: Languages, text: str, message: str
) -> None:
    codes = LanguageCodes(languages, tokenizer)
    with pytest.raises(InvalidArgumentError, match="the text ") as caught:
        codes.without(text, languages.direction("en", "deu"), field="contents[7]")
    assert message in str(caught.value)
    assert caught.value.field == "contents[7]"


def test_unknown_text_is_the_unknown_token_of_both_sides(tokenizer: PieceVocabularyTokenizer) -> None:
    assert tokenizer.source_unknown == tokenizer.target_unknown == CODES.index("<unk>")
    assert tokenizer.target_unknown in tokenizer.encode_target("ein 猫")


def test_plain_words_are_no_codes(tokenizer: PieceVocabularyTokenizer) -> None:
    word = tokenizer.encode_target("man")[0]
    shared = {"deu": TargetLanguage(source_prefix=(0, word)), "fra": TargetLanguage(source_prefix=(0, 1))}
    languages = Languages(sources={"en": SourceLanguage()}, targets=shared)
    codes = LanguageCodes(languages, tokenizer)
    direction = languages.direction("en", "deu")
    spelled = tokenizer.source_tokens([word])[0].replace("▁", "")
    for text in (f"{spelled} a", ">>deu<< a"):  # the token of both languages chooses none
        assert codes.without(text, direction, field="") == text


def test_texts_of_a_request_are_read_without_their_code(
    tokenizer: PieceVocabularyTokenizer, languages: Languages, toy_bundle: Path
) -> None:
    processor = InputProcessor(tokenizer, Bundle.open(toy_bundle).manifest.model_copy(update={"languages": languages}))
    direction = processor.direction("en", "deu")
    texts = [">>deu<< a man", " a man", ">>deu<<", ">>deu<<  "]
    typed, plain, *empty = processor.sources(texts, direction, truncate=False, deadline=None)
    assert typed == plain
    assert plain.token_ids[0] == 0
    assert [source.token_ids for source in empty] == [(), ()]
    with refused("contents[1]", "begins with '>>fra<<'"):
        processor.sources(["a", ">>fra<< a"], direction, truncate=False, deadline=None)


@pytest.mark.parametrize(
    ("text", "texts"), [("word " * 9000, 12), ("word", 1500)], ids=["a few long texts", "many short texts"]
)
def test_a_deadline_that_passes_ends_the_work(
    toy_bundle: Path, monkeypatch: pytest.MonkeyPatch, text: str, texts: int
) -> None:
    seconds = count()  # each look at the clock takes one
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    bundle = Bundle.open(toy_bundle)
    processor = InputProcessor(bundle.tokenizer, bundle.manifest)
    direction = processor.direction(None, None)
    numbered = [f"{number} {text}" for number in range(texts)]
    with pytest.raises(DeadlineExceededError, match="while the texts were tokenized"):
        processor.sources(numbered, direction, truncate=True, deadline=3.5)
    assert next(seconds) == 5
    found = processor.sources(numbered, direction, truncate=True, deadline=1000)
    assert found == [processor.sources([one], direction, truncate=True, deadline=None)[0] for one in numbered]


def test_a_deadline_that_passes_ends_the_work_on_targets(toy_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(toy_bundle)
    processor = InputProcessor(bundle.tokenizer, bundle.manifest)
    most = bundle.manifest.limits.max_target_length
    targets = ["a " * (most // 2 - 2)] * (4 * 2**15 // most)
    sources = processor.sources(["a man"], processor.direction(None, None), truncate=False, deadline=None) * len(
        targets
    )
    seconds = count()
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    with pytest.raises(DeadlineExceededError, match="while the texts were tokenized"):
        processor.targets(targets, sources, None, deadline=1.5)
    assert next(seconds) == 3
    assert len(processor.targets(targets, sources, None, deadline=1000)) == len(targets)
