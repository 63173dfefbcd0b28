"""Who waits for a sentence is told once, and who has left is not told."""

from concurrent.futures import CancelledError

import pytest

from jumok_proto.errors import EngineFailedError
from jumok_serve.engine.batch import Decoded, Sentence
from jumok_serve.engine.sentence import deliver, fail
from jumok_serve.errors import ModelFailedError
from jumok_serve.search import make_search
from tests.support.search_cases import make_options

NOTHING = Decoded(hypotheses=(), queue_s=0.0, encode_s=0.0, decode_s=0.0)


@pytest.fixture
def sentence() -> Sentence:
    return Sentence(source_ids=[5] * 3, search=make_search(make_options(), 2, ()))


def test_what_is_told_first_stays(sentence: Sentence) -> None:
    deliver(sentence, NOTHING)
    fail(sentence, EngineFailedError("it failed", retry_after_s=1.0))
    deliver(sentence, NOTHING._replace(queue_s=1.0))
    assert sentence.future.result() is NOTHING


def test_a_sentence_that_has_failed_has_no_outcome(sentence: Sentence) -> None:
    sentence.failure = ModelFailedError("the model computed NaN for this text")
    deliver(sentence, None)
    deliver(sentence, NOTHING)
    assert sentence.future.exception() is sentence.failure


def test_who_has_left_is_not_told(sentence: Sentence) -> None:
    assert sentence.future.cancel()
    deliver(sentence, NOTHING)
    fail(sentence, EngineFailedError("it failed", retry_after_s=1.0))
    with pytest.raises(CancelledError):
        sentence.future.result()
