"""The outcome of a sentence: the first one stays, and a cancelled sentence gets none; and its work."""

from concurrent.futures import CancelledError

import pytest

from jumok_proto.errors import DeadlineExceededError, EngineFailedError
from jumok_serve.engine.sentence import DEADLINE_SLACK_S, Decoded, Sentence
from jumok_serve.engine.statistics import EngineCounters, Stage
from jumok_serve.errors import ModelFailedError
from jumok_serve.search.options import Sampling
from jumok_serve.search.plan import SearchPlan
from tests.support.search_cases import make_options

NOTHING = Decoded(hypotheses=(), queue_s=0.0, encode_s=0.0, decode_s=0.0)


@pytest.fixture
def sentence() -> Sentence:
    return Sentence(source_ids=[5] * 3, plan=SearchPlan(make_options(), 2, ()), deadline=1000.0)


def test_the_first_outcome_stays(sentence: Sentence) -> None:
    sentence.deliver(NOTHING)
    sentence.fail(EngineFailedError("it failed", retry_after_s=1.0))
    sentence.deliver(NOTHING._replace(queue_s=1.0))
    assert sentence.future.result() is NOTHING


def test_a_failed_sentence_has_no_result(sentence: Sentence) -> None:
    sentence.failure = ModelFailedError("the model computed NaN for this text")
    assert sentence.decoded() is None
    sentence.deliver(None)
    sentence.deliver(NOTHING)
    assert sentence.future.exception() is sentence.failure


def test_a_cancelled_sentence_stays_cancelled(sentence: Sentence) -> None:
    assert sentence.future.cancel()
    sentence.deliver(NOTHING)
    sentence.fail(EngineFailedError("it failed", retry_after_s=1.0))
    with pytest.raises(CancelledError):
        sentence.future.result()


@pytest.mark.parametrize(
    ("before_s", "cause"), [(2 * DEADLINE_SLACK_S, "cancelled"), (DEADLINE_SLACK_S / 2, "deadline"), (-1, "deadline")]
)
def test_an_abandoned_sentence_is_counted_by_cause(sentence: Sentence, before_s: float, cause: str) -> None:
    counters = EngineCounters()
    sentence.abandon(Stage.QUEUE, counters, 1000.0 - before_s)
    assert dict(counters.given_up) == {("queue", cause): 1}
    assert isinstance(sentence.future.exception(), DeadlineExceededError)


def test_rows_of_wide_beams_are_more_work_and_count_once_against_the_bound_of_a_request() -> None:
    """By measurements: every row of a beam of 64 has 128 candidates."""
    plans = [SearchPlan(make_options(beam_size=size, max_length=10), 2) for size in (4, 16, 32, 64)]
    assert [plan.step_work for plan in plans] == [4, 16, 36, 83]
    assert [plan.most_work for plan in plans] == [40, 160, 320, 640]
    sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1)
    drawing = SearchPlan(make_options(beam_size=1, num_hypotheses=64, sampling=sampling, max_length=10), 2)
    assert drawing.step_work == drawing.most_work / 10
