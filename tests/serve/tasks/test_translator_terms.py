"""Glossaries and parts that are copied, in process: over real graphs and tokenizers."""

import random
import re
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from jumok_serve import InvalidArgumentError, Translation, Translator
from jumok_serve.interrupts import interruptible
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.tasks.terms import MAX_TERM_WORK, MAX_TERMS, TermMatch, TermTokenizer
from jumok_serve.text.terms.glossary import Glossary, Placeholders, Terminology
from jumok_serve.tokenizers.input_processor import CHARACTERS_PER_TOKEN
from tests.support.refusals import refused
from tests.support.search_cases import EARLY_STOPPING

GLOSSARY = Glossary({"dog": "Hund", "old woman": ["alte Frau", "Frau"], "park": "Straße", "a": "unschreibbar☃"})
SOURCE_WORDS = "a the old dog woman runs in park two men and girl"
TARGET_WORDS = "Hund Mann Frau Straße Mädchen und eine alte"
TEXT = "The old woman and the dog in the park."


@pytest.fixture(scope="module", params=["fp32", "int8"])
def translator(request: pytest.FixtureRequest, tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, precision=request.param, replicas=1, threads=1) as translator:
        yield translator


def translate(
    translator: Translator, text: str, terms: Terminology | None, *, split: bool = False, **options: object
) -> Translation:
    parameters = TranslationParameters(
        options=DecodingOptions(**options),  # type: ignore[arg-type]
        terms=terms,
        split_sentences=split,
    )
    return translator.submit([text], parameters).collect()[0]


@pytest.mark.parametrize("beam_size", [1, 2, 4, 8])
def test_terms_of_a_glossary_appear(translator: Translator, beam_size: int) -> None:
    translation = translate(translator, TEXT, Terminology(GLOSSARY), beam_size=beam_size, max_length=24)
    (hypothesis,) = translation.hypotheses
    assert [term.source for term in hypothesis.terms] == ["old woman", "dog", "park"]
    for term in hypothesis.terms:
        assert term.satisfied
        assert term.source_span is not None
        assert TEXT[slice(*term.source_span)] == term.source
        assert term.target_span is not None
        assert hypothesis.text[slice(*term.target_span)] in term.targets
    assert translation.beam_size == (8 if beam_size < 8 else None)


def test_texts_without_terms_are_as_before(translator: Translator) -> None:
    plain = translate(translator, "A girl.", None, beam_size=3)
    with_terms = translate(translator, "A girl.", Terminology(Glossary({"dog": "Hund"})), beam_size=3)
    assert with_terms == plain
    assert with_terms.hypotheses[0].terms == ()


def test_terms_that_cannot_be_written_are_reported(translator: Translator) -> None:
    hypothesis = translate(translator, "a dog", Terminology(GLOSSARY), max_length=12).hypotheses[0]
    assert [(term.source, term.satisfied) for term in hypothesis.terms] == [("a", False), ("dog", True)]
    assert hypothesis.terms[0].target_span is None
    tokens = len(translator.tokenizer.encode_target("Hund"))
    hypothesis = translate(translator, TEXT, Terminology(GLOSSARY), max_length=tokens).hypotheses[0]
    assert len(hypothesis.token_ids) <= tokens
    assert [term.satisfied for term in hypothesis.terms].count(True) <= 1


def test_terms_of_sentences_have_their_places_in_the_whole_text(translator: Translator) -> None:
    text = "  A dog runs.\n\nThe old woman and the dog.  "
    hypothesis = translate(translator, text, Terminology(GLOSSARY), split=True, max_length=20).hypotheses[0]
    assert [term.source for term in hypothesis.terms if term.satisfied] == ["dog", "old woman", "dog"]
    for term in hypothesis.terms:
        assert term.source_span is not None
        assert text[slice(*term.source_span)] == term.source
        if term.target_span is not None:
            assert hypothesis.text[slice(*term.target_span)] in term.targets


def test_words_are_copied(translator: Translator) -> None:
    copied = Placeholders(patterns=("Hund", "Mann"))
    options = DecodingOptions(max_length=16)
    parameters = TranslationParameters(options=options, placeholders=copied)
    (translation,) = translator.submit(["A Mann and a Hund."], parameters).collect()
    hypothesis = translation.hypotheses[0]
    assert [term.targets for term in hypothesis.terms] == [("Mann",), ("Hund",)]
    for word in ("Mann", "Hund"):
        assert re.findall(r"\w+", hypothesis.text).count(word) == 1


def test_several_hypotheses_have_all_terms(translator: Translator) -> None:
    translation = translate(translator, TEXT, Terminology(GLOSSARY), beam_size=8, num_hypotheses=3, max_length=24)
    assert len({hypothesis.token_ids for hypothesis in translation.hypotheses}) == 3
    assert all(term.satisfied for hypothesis in translation.hypotheses for term in hypothesis.terms)


def test_a_target_prefix_may_hold_a_term(translator: Translator) -> None:
    parameters = TranslationParameters(options=DecodingOptions(beam_size=4, max_length=16), terms=Terminology(GLOSSARY))
    (translation,) = translator.submit(["The dog runs."], parameters, target_prefixes=["Ein Hund"]).collect()
    (term,) = translation.hypotheses[0].terms
    assert term.satisfied
    assert term.target_span == (4, 8)


def test_sampling_and_too_many_terms_are_refused(translator: Translator) -> None:
    with pytest.raises(InvalidArgumentError, match="terms need a search"):
        translate(translator, "A dog.", Terminology(GLOSSARY), sample=True)
    with refused("contents[0]", f"at most {MAX_TERMS} terms, this one has more"):
        translator.submit(["A dog."], TranslationParameters(terms=Words(("Hund",) * 65)))


class Words:
    """A `TermFinder` that gives each text its own words."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words

    def find(self, text: str) -> list[TermMatch]:
        return [TermMatch(0, 1, (word,)) for word in self.words]


def test_long_terms_are_left_out_before_they_cost_memory(translator: Translator) -> None:
    """The search keeps each beginning of each sequence: half a GiB for these."""
    long, short = "Hund und Frau " * 800, "Hund"
    direction = translator.manifest.languages.direction("en", "de")
    terms = TermTokenizer(translator.tokenizer).find(
        "A dog.", Words((short, *[long] * (MAX_TERMS - 2), short)), direction, field="contents[0]"
    )
    lengths = [len(sequence) for alternatives in terms.tokens.alternatives for sequence in alternatives]
    assert sum(length**2 for length in lengths) <= MAX_TERM_WORK
    assert terms.tokens.alternatives[0] == terms.tokens.alternatives[-1] != ()
    (translation,) = translator.submit(
        ["A dog."], TranslationParameters(options=DecodingOptions(max_length=20), terms=Words((long, short)))
    ).collect()
    assert [term.satisfied for term in translation.hypotheses[0].terms] == [False, True]


class Watched:
    """A `TermFinder` that keeps the texts in which it looks."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def find(self, text: str) -> list[TermMatch]:
        self.texts.append(text)
        return []


def test_terms_are_looked_for_in_what_the_model_reads(translator: Translator) -> None:
    """The rest of a long text, which is cut, has none."""
    longest = translator.manifest.limits.max_source_length * CHARACTERS_PER_TOKEN
    finder = Watched()
    texts = ["A dog.", " \n " + "A dog. " * longest]
    translator.submit(
        texts, TranslationParameters(options=DecodingOptions(max_length=4), terms=finder, truncate=True)
    ).collect()
    assert finder.texts == [texts[0], texts[1][: 3 + longest]]


@pytest.mark.parametrize("split", [True, False])
def test_work_on_texts_ends_when_its_caller_leaves(translator: Translator, split: bool) -> None:
    class Leaving(Watched):
        def find(self, text: str) -> list[TermMatch]:
            left.set()
            return super().find(text)

    left, finder = threading.Event(), Leaving()
    with interruptible(left.is_set), pytest.raises(CancelledError):
        translator.submit(["A dog. A cat."] * 100, TranslationParameters(terms=finder, split_sentences=split))
    assert len(finder.texts) == 1
    with interruptible(left.is_set), pytest.raises(CancelledError):
        translator.submit(["A dog."], TranslationParameters(split_sentences=split))


def test_batches_with_and_without_terms(translator: Translator) -> None:
    """Each text gets the translation that it gets alone, and all terms appear."""
    generator = random.Random(4)
    words = TARGET_WORDS.split()
    jobs = []
    for number in range(60):
        text = " ".join(generator.choices(SOURCE_WORDS.split(), k=number % 9 + 1))
        terms = Words(tuple(generator.choices(words, k=number % 4)))
        options = DecodingOptions(
            beam_size=generator.choice([1, 4]), early_stopping=EARLY_STOPPING[number % 3], max_length=30
        )
        jobs.append((text, TranslationParameters(options=options, terms=terms if terms.words else None)))
    alone = [translator.submit([text], parameters).collect()[0] for text, parameters in jobs]
    pending = [translator.submit([text], parameters) for text, parameters in jobs]
    for (_, parameters), expected, together in zip(jobs, alone, pending, strict=True):
        (translation,) = together.collect()
        assert translation.hypotheses[0].token_ids == expected.hypotheses[0].token_ids
        assert all(term.satisfied for term in translation.hypotheses[0].terms)
        assert len(translation.hypotheses[0].terms) == (len(parameters.terms.words) if parameters.terms else 0)  # type: ignore[attr-defined]


def test_stable_texts_with_terms_grow(translator: Translator) -> None:
    seen: list[str] = []
    pending = translator.submit(
        [TEXT],
        TranslationParameters(options=DecodingOptions(beam_size=4, max_length=24), terms=Terminology(GLOSSARY)),
        on_progress=lambda: seen.append("step"),
    )
    stable = [""]
    while not all(future.done() for future in pending.futures):
        stable += pending.stable_texts()
    (translation,) = pending.collect()
    assert all(translation.text.startswith(text) for text in stable)
