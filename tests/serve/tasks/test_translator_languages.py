"""`Translator` with languages, task prefixes and target prefixes, against an oracle."""

from functools import partial
from typing import Any

import pytest

from jumok_serve import InvalidArgumentError, LanguageNotFoundError, Translator
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TranslationParameters
from tests.support.models.stepping import logits_of
from tests.support.reference_search import reference_search

TEXTS = ["A dog runs.", "Two men are cooking food.", "A girl."]
EOS = 3


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("target_prefix", [None, "Ein Mann"])
@pytest.mark.parametrize(
    ("pair", "around", "task_prefix", "start", "forced"),
    [
        ((None, None), ([], [EOS]), "", 2, None),
        (("EN", "nl"), ([31], [EOS]), "two men: ", 2, 32),
        (("fr_fr", "NL"), ([31, 21, 22], [EOS, 23]), "", 2, 32),
        (("fr-FR", "pt_br"), ([21, 22], [EOS, 23]), "", 5, 6),
    ],
)
def test_a_direction_decides_what_is_read_and_how_decoding_begins(
    polyglot: Translator,
    pair: tuple[str | None, str | None],
    around: tuple[list[int], list[int]],
    task_prefix: str,
    start: int,
    forced: int | None,
    target_prefix: str | None,
    beam_size: int,
) -> None:
    tokenizer, manifest = polyglot.tokenizer, polyglot.manifest
    options = DecodingOptions(beam_size=beam_size, num_hypotheses=beam_size, max_length=6)
    prefix = [] if target_prefix is None else tokenizer.encode_target(target_prefix)
    if prefix and forced is not None:
        prefix = [forced, *prefix]
    resolved = options.resolve(
        manifest.generation,
        manifest.special_tokens,
        manifest.limits,
        vocabulary=tokenizer.vocab_size,
        forced_first=forced,
        prefix=prefix,
    )
    answers = polyglot.submit(
        TEXTS,
        TranslationParameters(options=options, source_language=pair[0], target_language=pair[1]),
        target_prefixes=None if target_prefix is None else [target_prefix] * len(TEXTS),
    ).collect()
    for text, answer in zip(TEXTS, answers, strict=True):
        source = [*around[0], *tokenizer.encode(task_prefix + text), *around[1]]
        assert answer.source_token_count == len(source)
        expected = reference_search(partial(logits_of, polyglot.graphs, source), resolved, start, prefix)
        assert [hypothesis.token_ids for hypothesis in answer.hypotheses] == [one.token_ids for one in expected]
        for hypothesis, one in zip(answer.hypotheses, expected, strict=True):
            assert hypothesis.score == pytest.approx(one.score, abs=1e-4)
            assert hypothesis.token_scores == pytest.approx(one.token_scores, abs=1e-4)
            assert hypothesis.text == tokenizer.decode([*prefix, *one.token_ids])
            assert len(hypothesis.tokens) == len(hypothesis.token_ids)
            if forced is not None and not prefix:
                assert (hypothesis.token_ids[0], hypothesis.token_scores[0]) == (forced, 0.0)


def test_a_translation_says_its_direction(polyglot: Translator) -> None:
    for source, target, direction in (
        (None, None, ("en", "de")),
        (None, "NL", ("en", "nl")),
        ("FR_fr", "pt_BR", ("fr-FR", "pt-BR")),
        ("", "", ("en", "de")),
    ):
        answer = polyglot.translate("A dog.", max_length=2, source_language=source, target_language=target)
        assert (answer.source_language, answer.target_language) == direction


@pytest.mark.parametrize(
    ("asked", "message", "field"),
    [
        ({"source_language": "xx"}, "no source language 'xx'; it has en, fr-FR", "source_language_code"),
        ({"target_language": "xx"}, "no target language 'xx'; it has de, nl, pt-BR", "target_language_code"),
        ({"source_language": "de"}, "no source language 'de'", "source_language_code"),
        (
            {"target_language": "pt-BR"},
            "does not translate from en to pt-BR; its pairs are en to de, en to nl, fr-FR to nl, fr-FR to pt-BR",
            "target_language_code",
        ),
    ],
)
def test_unknown_language_is_named_with_the_known_ones(
    polyglot: Translator, asked: dict[str, Any], message: str, field: str
) -> None:
    with pytest.raises(LanguageNotFoundError, match=message) as caught:
        polyglot.translate("A dog.", **asked)
    assert caught.value.field == field
    with pytest.raises(LanguageNotFoundError, match=message):
        polyglot.score("A dog.", "Ein Hund.", **asked)


def test_a_task_prefix_counts_towards_the_limit(polyglot: Translator, translator: Translator) -> None:
    longest = polyglot.manifest.limits.max_source_length
    tokenizer = polyglot.tokenizer
    task = len(tokenizer.encode("two men: "))
    words = next(n for n in range(1, 99) if len(tokenizer.encode("dog " * n)) > longest - 2 - task)
    text = "dog " * words
    assert not translator.translate(text, truncate=True, max_length=2).source_truncated
    with pytest.raises(
        InvalidArgumentError,
        match="those of the task prefix 'two men: ' and special ones included, and the model reads at most 48",
    ):
        polyglot.translate(text, target_language="nl", split_sentences=False)
    cut = polyglot.translate(text, target_language="nl", truncate=True, max_length=2)
    assert (cut.source_truncated, cut.source_token_count) == (True, longest)


def test_a_task_prefix_is_no_content(polyglot: Translator) -> None:
    for text in ("", " \n"):
        answer = polyglot.translate(text, target_language="nl")
        assert (answer.text, answer.source_token_count) == (text, 0)


@pytest.mark.parametrize("token_ids", [[], [EOS], [EOS, EOS]])
def test_a_text_whose_tokens_are_only_its_end_is_empty(
    polyglot: Translator, monkeypatch: pytest.MonkeyPatch, token_ids: list[int]
) -> None:
    monkeypatch.setattr(polyglot.tokenizer, "encode", lambda _: token_ids)
    answer = polyglot.translate("\u200b")
    assert (answer.text, answer.hypotheses[0].token_ids, answer.source_token_count) == ("", (), 0)


def test_every_text_has_its_own_prefix(translator: Translator) -> None:
    prefixes = ["Ein", None, "Zwei Männer", ""]
    together = translator.translate([TEXTS[0]] * 4, target_prefix=prefixes, max_length=5)
    for prefix, answer in zip(prefixes, together, strict=True):
        assert answer == translator.translate(TEXTS[0], target_prefix=prefix, max_length=5)
    assert together[0].text.startswith("Ein")
    assert together[2].text.startswith("Zwei Männer")
    assert together[1] == together[3] == translator.translate(TEXTS[0], max_length=5)


def test_a_prefix_does_not_count_as_length(translator: Translator) -> None:
    answer = translator.translate(TEXTS[0], target_prefix="Ein Mann", min_length=5, max_length=5)
    assert answer.output_token_count == 5


def test_a_text_without_content_has_no_prefix_either(translator: Translator) -> None:
    assert [answer.text for answer in translator.translate(["", " "], target_prefix=["Ein", "Zwei"])] == ["", ""]
