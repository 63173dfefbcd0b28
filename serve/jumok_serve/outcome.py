"""What the caller of a sentence gets: its translation, or the reason why there is none."""

import time

from jumok_serve.batch import Decoded, Sentence


def decoded(sentence: Sentence) -> Decoded | None:
    """The outcome of a sentence that is done; None where the model failed."""
    if sentence.failure is not None:
        return None
    return Decoded(
        hypotheses=tuple(sentence.search.hypotheses()),
        queue_s=sentence.admitted - sentence.arrived - sentence.encode_s,
        encode_s=sentence.encode_s,
        decode_s=time.monotonic() - sentence.admitted,
    )


def deliver(sentence: Sentence, outcome: Decoded | None) -> None:
    """Hands over what `decoded` gave."""
    if outcome is None:
        assert sentence.failure is not None
        fail(sentence, sentence.failure)
    elif _claim(sentence):
        sentence.future.set_result(outcome)


def fail(sentence: Sentence, error: Exception) -> None:
    """Says why there is no translation."""
    if _claim(sentence):
        sentence.future.set_exception(error)


def _claim(sentence: Sentence) -> bool:
    """Whether the sentence's outcome may be set: its caller has not left, and nothing was set before."""
    future = sentence.future
    return not (future.done() or future.running()) and future.set_running_or_notify_cancel()
