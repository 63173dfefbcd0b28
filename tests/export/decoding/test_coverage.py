"""Coverage penalty, against PyTorch's attention of every hypothesis."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from jumok_export.models.transformer import Transformer
from jumok_export.training.vocabulary import END, START
from jumok_proto.results import FinishReason
from jumok_serve import Hypothesis, InvalidArgumentError, Translator
from jumok_serve.search.search import FinishedHypothesis
from jumok_serve.search.terms import TermSpan
from jumok_serve.tasks.hypothesis_attention import ranked

TEXTS = ["A dog runs.", "The old woman reads a book in the park.", "A girl."]


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator


def log_coverage(model: Transformer, source: list[int], prefix: list[int], hypothesis: Hypothesis) -> float:
    target = [*prefix, *hypothesis.token_ids]
    sizes = torch.tensor([len(source)]), torch.tensor([START]), torch.tensor([target]), torch.tensor([len(target)])
    with torch.no_grad():
        cross, _, _ = model.align(torch.tensor([source]), *sizes)
    coverage = cross[0].double().mean(dim=(0, 1)).sum(dim=0)
    return float(coverage.clamp(max=1).log().sum())


@pytest.mark.parametrize("prefix", [None, "Ein"])
@pytest.mark.parametrize("penalty", [0.2, 5.0])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_scores_have_the_penalty_and_order_hypotheses(
    translator: Translator, tiny_model: Transformer, beam_size: int, penalty: float, prefix: str | None
) -> None:
    options: dict[str, Any] = {"beam_size": beam_size, "num_hypotheses": beam_size, "split_sentences": False}
    found = translator.translate(
        TEXTS, coverage_penalty=penalty, target_prefix=[prefix] * 3, max_length=12, length_penalty=0.5, **options
    )
    written = translator.tokenizer.encode_target(prefix or "")
    for text, translation in zip(TEXTS, found, strict=True):
        source = [*translator.tokenizer.encode(text), END]
        scores = [one.score for one in translation.hypotheses]
        assert len(scores) == beam_size
        assert scores == sorted(scores, reverse=True)
        for one in translation.hypotheses:
            normalized = math.fsum(one.token_scores) / math.sqrt(len(one.token_ids))
            expected = normalized + penalty * log_coverage(tiny_model, source, written, one)
            assert one.score == pytest.approx(expected, abs=1e-3)


def test_best_hypothesis_is_the_best_of_all(translator: Translator) -> None:
    for text in TEXTS:
        options: dict[str, Any] = {"beam_size": 4, "coverage_penalty": 2.0, "max_length": 12}
        (best,) = translator.translate(text, split_sentences=False, **options).hypotheses
        first, *_ = translator.translate(text, num_hypotheses=4, **options).hypotheses
        assert best == first
        assert translator.translate(text, **options).text == best.text


def test_text_without_content_and_no_penalty(translator: Translator) -> None:
    assert translator.translate("", coverage_penalty=1.0).hypotheses[0].score == 0.0
    plain, without = (translator.translate(TEXTS, beam_size=3, coverage_penalty=penalty) for penalty in (None, 0))
    assert [one.hypotheses for one in without] == [one.hypotheses for one in plain]


def test_samples_have_no_order(translator: Translator) -> None:
    for sampling in ({"sample": True}, {"temperature": 1.5}):
        with pytest.raises(InvalidArgumentError, match="samples have no order") as refused:
            translator.translate(TEXTS, coverage_penalty=1.0, beam_size=1, **sampling)
        assert refused.value.field == "options.coverage_penalty"


def test_terms_come_before_coverage() -> None:
    def hypothesis(score: float, *terms: TermSpan | None) -> FinishedHypothesis:
        return FinishedHypothesis((4, 3), (score, 0.0), score, FinishReason.EOS, terms)

    complete, short, better = hypothesis(-4.0, TermSpan(0, 1)), hypothesis(-1.0, None), hypothesis(-3.0)
    first, second = ranked([short, complete], [-1.0, -2.0], 0.5)
    assert (first.score, second.score) == (-5.0, -1.5)
    assert first.terms == complete.terms
    assert [one.score for one in ranked([better, short], [-9.0, -1.0], 1.0)] == [-2.0, -12.0]
