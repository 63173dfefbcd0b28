"""What the caller of a sentence gets: its translation, or the reason why there is none."""

import time

from jumok_serve.engine.batch import Decoded, Sentence


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
    """Hands over what `decoded` gave, unless the caller has left or was told something before."""
    if outcome is None:
        assert sentence.failure is not None
        fail(sentence, sentence.failure)
        return
    sentence.future.set_result(outcome)


def fail(sentence: Sentence, error: Exception) -> None:
    """Says why there is no translation, unless the caller has left or was told something before."""
    sentence.future.set_exception(error)
