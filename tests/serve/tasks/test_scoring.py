"""Scoring, against PyTorch and against the scores of the search."""

import math
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jumok_proto.errors import RateLimitedError
from jumok_serve import DeadlineExceededError, InvalidArgumentError, Translator, UnavailableError
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.runtime.graphs import Pairs
from jumok_serve.tasks import teacher_forcing
from jumok_serve.tasks.alignment import AttentionQuery
from jumok_serve.tasks.model import ScoringParameters, TextParameters
from tests.support.calls import noted_calls
from tests.support.models.variants import edited, unconstrained
from tests.support.refusals import refused

START, EOS = 2, 3
BURST = 4
TEXTS = ["A dog runs.", "Two men are cooking food.", "A girl.", "The old woman reads a book in the park."]


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Translator]:
    """A translator without suppressed tokens, so that no constraint changes probabilities."""
    bundle = edited(tiny_bundle, tmp_path_factory.mktemp("bundle") / "unconstrained", unconstrained)
    with Translator(bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator


def test_unknown_tokens_of_both_sides_are_counted(translator: Translator) -> None:
    unknown = translator.tokenizer.target_unknown
    assert unknown is not None
    targets: list[str | list[int]] = ["Ein Hund.", "猫 Ein 😀 Hund 猫.", [unknown, 9, EOS], ""]
    known, some, given, empty = translator.scoring(["A dog.", "😀 a dog 猫", "A dog.", ""], targets).collect()
    assert [(one.source_unknown_count, one.target_unknown_count) for one in (known, some, given, empty)] == [
        (0, 0),
        (2, 3),
        (0, 1),
        (0, 0),
    ]
    assert some.token_ids.count(unknown) == 3


@pytest.mark.parametrize("options", [{"beam_size": 1}, {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.6}])
def test_scores_of_hypotheses_are_those_of_their_search(
    translator: Translator, sentences: tuple[list[str], list[str]], options: dict[str, Any]
) -> None:
    texts = sentences[0][:24]
    found = [
        (text, hypothesis)
        for text, answer in zip(texts, translator.translate(texts, max_length=30, **options), strict=True)
        for hypothesis in answer.hypotheses
    ]
    penalty = options.get("length_penalty")
    scores = translator.scoring(
        [text for text, _ in found],
        [hypothesis.token_ids for _, hypothesis in found],
        ScoringParameters(length_penalty=penalty),
    ).collect()
    by_text = 0
    for (text, hypothesis), score in zip(found, scores, strict=True):
        assert score.token_ids == hypothesis.token_ids
        assert score.token_scores == pytest.approx(hypothesis.token_scores, abs=1e-4)
        assert score.score == pytest.approx(hypothesis.score, abs=1e-4)
        # A text can be spelled with other tokens than those that it was written with.
        if (*translator.tokenizer.encode_target(hypothesis.text), EOS) == hypothesis.token_ids:
            assert translator.score(text, hypothesis.text, length_penalty=penalty).score == pytest.approx(
                hypothesis.score, abs=1e-4
            )
            by_text += 1
    assert by_text >= 3


def test_a_pair_does_not_depend_on_what_it_is_scored_with(
    translator: Translator, sentences: tuple[list[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = translator.score(*sentences)
    runs = noted_calls(monkeypatch, translator.graphs, "score")
    monkeypatch.setattr(teacher_forcing, "MAX_BATCH_TOKENS", 100)
    apart = translator.score(*sentences)
    sizes = [
        (len(pairs.source_ids), len(pairs.source_ids) * (pairs.source_ids.shape[1] + pairs.target_ids.shape[1]))
        for (pairs,) in runs
    ]
    assert sum(rows for rows, _ in sizes) == len(sentences[0])
    assert all(tokens <= 100 or rows == 1 for rows, tokens in sizes)
    assert max(rows for rows, _ in sizes) > 1
    for one, other in zip(together, apart, strict=True):
        assert one.token_ids == other.token_ids
        assert one.token_scores == pytest.approx(other.token_scores, abs=1e-5)
    runs.clear()
    monkeypatch.setattr(teacher_forcing, "MAX_BATCH_LOGITS", 1)
    translator.score(*sentences)
    assert {len(pairs.source_ids) for (pairs,) in runs} == {1}


def test_one_pair_gives_a_score_and_several_a_list(translator: Translator) -> None:
    alone = translator.score(TEXTS[0], "Ein Hund.")
    both = translator.score(TEXTS[:2], ["Ein Hund.", ""])
    assert both[0].token_ids == alone.token_ids
    assert both[0].score == pytest.approx(alone.score, abs=1e-5)
    assert both[1].token_ids == (EOS,)


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_text_without_content_has_the_empty_translation_alone(translator: Translator, text: str) -> None:
    first, empty = translator.score([TEXTS[0], text], ["Ein Hund.", ""])
    assert first.token_scores
    assert (empty.score, empty.token_ids, empty.source_token_count) == (0.0, (), 0)
    assert translator.translate(text).hypotheses[0].token_scores == empty.token_scores
    with refused("targets[1]", "the text has no content"):
        translator.score([TEXTS[0], text], ["Ein Hund.", "Ein"])


@pytest.mark.parametrize(
    ("texts", "targets", "options", "message", "field"),
    [
        ([], [], {}, "no texts", "contents"),
        (["a", "b"], ["c"], {}, "targets must be one for each of 2 texts, got 1", "targets"),
        (["a"], "c", {}, "one for each of 1 texts, got str", "targets"),
        ("a", ["c"], {}, "must be a string, or token ids", "targets[0]"),
        (["a", "b"], ["c", 7], {}, "must be a string, or token ids", "targets[1]"),
        (["a", "b"], ["c", b"d"], {}, "must be a string, or token ids", "targets[1]"),
        (["a", "b"], ["c", "d\0"], {}, "NUL", "targets[1]"),
        (["a", "b"], ["c", "eine " * 60], {}, "the model writes at most 48", "targets[1]"),
        (["a", "b"], ["c", "x" * 5000], {}, "5000 characters, far more than the 48", "targets[1]"),
        (["a", "dog " * 60], ["c", "d"], {}, "the model reads at most 48", "contents[1]"),
        (["a", 3], ["c", "d"], {}, "must be a string, got int", "contents[1]"),
        ("a", "b", {"length_penalty": math.nan}, "must be a finite number", "length_penalty"),
        ("a", "b", {"timeout_s": 0}, "a number of seconds above 0", "timeout_s"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_field(
    translator: Translator, texts: Any, targets: Any, options: dict[str, Any], message: str, field: str
) -> None:
    with refused(field, message):
        translator.score(texts, targets, **options)


@pytest.mark.parametrize("token", [-1, 180, 2.0])
def test_ids_beyond_the_vocabulary_are_refused(translator: Translator, token: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"targets\[0\] must be a string, or token ids below 180"):
        translator.scoring(["A dog."], [[5, token]])


def test_a_long_text_is_cut_where_that_is_asked_for(translator: Translator) -> None:
    score = translator.score("dog " * 60, "Ein Hund.", truncate=True)
    assert (score.source_truncated, score.source_token_count) == (True, 48)


def test_scoring_ends_between_two_batches(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher_forcing, "MAX_BATCH_TOKENS", 1)
    calls: list[int] = []

    def score(pairs: Pairs) -> Any:
        calls.append(len(pairs.source_ids))
        give_up()
        return np.zeros(pairs.target_ids.shape, np.float32)

    monkeypatch.setattr(translator.graphs, "score", score)
    scoring = translator.scoring(TEXTS, ["Ein Hund."] * len(TEXTS))
    give_up = scoring.cancel
    with pytest.raises(CancelledError):
        scoring.collect()
    assert calls == [1]
    calls.clear()
    scoring = translator.scoring(TEXTS, ["Ein Hund."] * len(TEXTS), ScoringParameters(deadline=time.monotonic() + 3600))
    monkeypatch.setattr(scoring.deadline, "at", time.monotonic() + 3600)
    give_up = lambda: monkeypatch.setattr(scoring.deadline, "at", time.monotonic() - 1)  # noqa: E731
    with pytest.raises(DeadlineExceededError, match="while the targets were scored"):
        scoring.collect()
    assert calls == [1]


def test_a_deadline_that_has_passed_ends_it_at_once(translator: Translator) -> None:
    with pytest.raises(DeadlineExceededError, match="while the texts were tokenized"):
        translator.scoring(TEXTS, TEXTS, ScoringParameters(deadline=time.monotonic() - 1))


def test_a_closed_translator_does_not_score(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        assert translator.score("A dog.", "Ein Hund.").score < 0
    with pytest.raises(UnavailableError):
        translator.score("A dog.", "Ein Hund.")


def test_scoring_has_a_piece_for_each_batch(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = ["Ein Hund.", "Zwei", "", "Die Frau."]
    together = translator.score([*TEXTS, " "], [*targets, ""])
    monkeypatch.setattr(teacher_forcing, "MAX_BATCH_TOKENS", 1)
    scoring = translator.scoring([*TEXTS, " "], [*targets, ""])
    pieces, sizes = scoring.pieces(), []
    while True:
        try:
            sizes.append(next(pieces))
        except StopIteration as end:
            apart = end.value
            break
    lengths = [
        len(target) + len(source.token_ids) for target, source in zip(scoring.targets, scoring.sources, strict=True)
    ]
    assert sorted(sizes) == sorted(lengths[:-1])  # the empty text has nothing to score
    assert [one.token_ids for one in apart] == [one.token_ids for one in together]


def test_scoring_and_alignment_count_against_the_callers_rate(tiny_bundle: Path) -> None:
    limits = EngineLimits(work_per_second=1, work_burst=BURST)
    scored, aligned = ScoringParameters(caller="scores"), TextParameters(caller="aligns")
    with Translator(tiny_bundle, replicas=1, threads=1, limits=limits) as limited:
        for work in (
            lambda: limited.scoring(["A dog."], ["Ein Hund lief."], scored),
            lambda: limited.aligning(["A dog."], ["Ein Hund lief."], AttentionQuery(), aligned),
        ):
            work()  # more than the burst
            with pytest.raises(RateLimitedError, match="more than 1 row steps per second"):
                work()
