"""Unknown tokens replaced by the source words that they are aligned to."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jumok_serve import AttentionUnavailableError, InvalidArgumentError, Translator
from jumok_serve.tasks import hypothesis_attention
from jumok_serve.tasks.hypothesis_attention import aligned_words, replace_unknown, source_words
from jumok_serve.tasks.word_alignment import token_places, words
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from jumok_serve.tokenizers.tokenizer import Tokenizer
from jumok_serve.tokenizers.word_list import WordListTokenizer
from tests.support.calls import noted_calls
from tests.support.growth import lines_run
from tests.support.models.variants import edited, without

UNKNOWN = 1
TEXT = "The old woman reads a book in the park."
WRITES: dict[str, Any] = {"forced_first_token": UNKNOWN, "replace_unknowns": True}


@pytest.fixture(scope="module", params=["fp32", "int8"])
def translator(request: pytest.FixtureRequest, tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, precision=request.param, replicas=1, threads=1) as translator:
        yield translator


def replaced(tokenizer: Tokenizer, token_ids: Sequence[int], unknown: int, found: Sequence[str], spaced: bool) -> str:
    places = [place for place, token in enumerate(token_ids) if token == unknown]
    pairs = list(zip(places, found, strict=True))
    return replace_unknown(tokenizer, token_ids, tokenizer.decode(token_ids), pairs, spaced=spaced).text


@pytest.mark.parametrize(
    ("parts", "found", "text"),
    [
        (["Ein Kind", None, "mit Ihre"], ["Zoë"], "Ein Kind Zoë mit Ihre"),
        ([None, "Kind"], ["Zoë"], "Zoë Kind"),
        (["Ein Kind", None], ["Zoë"], "Ein Kind Zoë"),
        ([None], ["Zoë"], "Zoë"),
        ([None, None, "Kind", None], ["Zoë", "Łódź", "Chloé"], "Zoë Łódź Kind Chloé"),
        (["Ein", None, "Kind"], [""], "Ein \u2047  Kind"),  # the source has no word
        (["Ein", None, "."], ["Zoë"], "Ein Zoë."),
    ],
)
def test_words_of_sentencepiece(tiny_bundle: Path, parts: list[str | None], found: list[str], text: str) -> None:
    tokenizer = SentencePieceTokenizer(tiny_bundle / "tokenizer.model")
    ids: list[int] = []
    for part in parts:
        ids += [UNKNOWN] if part is None else tokenizer.encode_target(part)
    if text.endswith("."):  # the sign as a word's own end
        ids = [token for token in ids if tokenizer.tokens([token]) != ["▁"]]
    assert replaced(tokenizer, ids, UNKNOWN, found, spaced=True) == text


@pytest.mark.parametrize(
    ("unit", "ids", "text"),
    [
        ("word", [2, 1, 3], "Ein Zoë Kind"),
        ("word", [1, 2, 1], "Zoë Ein Łódź"),
        ("word", [1, 1], "Zoë Łódź"),
        ("character", [2, 1, 3], "水Zoë火"),
    ],
)
def test_words_of_a_list(unit: Any, ids: list[int], text: str) -> None:
    tokens = ["<pad>", "<unk>", *(["Ein", "Kind"] if unit == "word" else ["水", "火"])]
    tokenizer = WordListTokenizer(unit, tokens, unknown="<unk>", special_tokens=["<pad>"])
    found = ["Zoë", "Łódź"][: ids.count(1)]
    assert replaced(tokenizer, ids, 1, found, spaced=unit == "word") == text


def test_word_of_the_token_with_most_attention() -> None:
    tokens = ["", "▁Zo", "ë", "▁s", "ings", ".", ""]
    attention = np.array([[0.9, 0, 0.05, 0.02, 0.03, 0, 0], [0, 0.1, 0.1, 0.2, 0.25, 0.2, 0.15]], np.float32)
    assert aligned_words(attention, [1, 0], source_words("Zoë sings.", tokens)) == ["sings", "Zoë"]
    assert aligned_words(attention[:, :2], [0], source_words("  ", ["", "▁"])) == [""]


@pytest.mark.parametrize("token", ["▁a", ""])
def test_words_of_tokens_take_work_in_proportion_to_the_text(token: str) -> None:
    def work(size: int) -> int:
        return lines_run(lambda: source_words("a b " * size, [token, "▁b"] * (size // 4)))

    assert work(1600) < 5 * work(400)


def test_hypotheses_of_a_text_read_it_once(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = noted_calls(monkeypatch, hypothesis_attention, "source_words")
    found = translator.translate([TEXT, "A dog runs."], beam_size=4, num_hypotheses=4, split_sentences=False, **WRITES)
    assert [len(one.hypotheses) for one in found] == [4, 4]
    assert [text for text, _ in reads] == [TEXT, "A dog runs."]


def test_source_words_are_in_texts(translator: Translator) -> None:
    texts = [TEXT, "A dog runs.", "The cat sleeps."]
    plain = translator.translate(texts, beam_size=2, forced_first_token=UNKNOWN, replace_unknowns=True, attention=True)
    for text, found in zip(texts, plain, strict=True):
        (hypothesis,) = found.hypotheses
        assert hypothesis.tokens[0] == "<unk>"
        assert hypothesis.attention is not None
        row = np.array(hypothesis.attention[0])[:-1]  # of the model's one layer, without the end of the source
        place = token_places(found.source_tokens, text)[int(row.argmax())]
        (word,) = (text[slice(*one)] for one in words(text) if one[0] <= place[0] < one[1])
        assert hypothesis.text.startswith(word)
        assert "\u2047" not in hypothesis.text


def test_places_of_terms_move(translator: Translator) -> None:
    options: dict[str, Any] = {"glossary": {"book": "Buch", "park": "Stra"}, "beam_size": 4, "target_prefix": "Ein"}
    found = translator.translate(TEXT, split_sentences=False, replace_unknowns=True, **options)
    options_of_both: dict[str, Any] = {"glossary": options["glossary"], "beam_size": 4, "num_hypotheses": 2}
    forced = translator.translate(TEXT, split_sentences=False, **options_of_both, **WRITES)
    for hypothesis in (*found.hypotheses, *forced.hypotheses):
        for term in hypothesis.terms:
            if term.target_span is not None:
                assert hypothesis.text[slice(*term.target_span)] in term.targets
    assert forced.hypotheses[0].tokens[0] == "<unk>"
    assert any(term.target_span is not None for term in forced.hypotheses[0].terms)


def test_sentences_of_a_text_have_words_of_their_own(translator: Translator) -> None:
    first, second = "A dog runs.", "The cat sleeps."
    joined = translator.translate(f"{first} {second}", **WRITES).text
    assert joined == " ".join(translator.translate(text, **WRITES).text for text in (first, second))


def test_prefixes_with_unknown_tokens(translator: Translator) -> None:
    texts, prefixes = [TEXT, ""], ["Ein ☃", "Ein ☃"]
    found, empty = translator.translate(texts, target_prefix=prefixes, replace_unknowns=True, beam_size=2)
    assert found.prefix_unknown_count == 1
    assert found.text.startswith("Ein ")
    assert "\u2047" not in found.text
    assert any(one in found.text for one in TEXT.strip(".").split())
    assert empty.text == ""


def test_the_option_alone_lets_a_model_write_unknown_tokens(translator: Translator) -> None:
    with pytest.raises(InvalidArgumentError, match="one that the model never writes"):
        translator.translate(TEXT, forced_first_token=UNKNOWN)
    with pytest.raises(InvalidArgumentError, match="suppressed at the same time"):
        translator.translate(TEXT, suppress_tokens=[UNKNOWN], **WRITES)


@pytest.mark.parametrize("options", [{"replace_unknowns": True}, {"coverage_penalty": 0.5}])
def test_a_model_without_attention_refuses(tiny_bundle: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    bundle = edited(tiny_bundle, tmp_path / "bundle", without("aligner"))
    with Translator(bundle, precision="fp32", replicas=1, threads=1) as translator:
        with pytest.raises(AttentionUnavailableError, match="tiny-en-de"):
            translator.translate(TEXT, **options)
        off = {name: type(value)(0) for name, value in options.items()}
        assert translator.translate(TEXT, **off) == translator.translate(TEXT)
