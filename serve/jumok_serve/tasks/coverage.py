"""Coverage penalty: a lower score for hypotheses that leave parts of the source without attention."""

from collections.abc import Sequence

import numpy as np

from jumok_serve.interrupts import Deadline
from jumok_serve.runtime.graphs import Floats
from jumok_serve.search import FinishedHypothesis
from jumok_serve.tasks.teacher_forcing import GivenTarget, TeacherForcing


def log_coverage(aligner: TeacherForcing, given: Sequence[GivenTarget], deadline: Deadline) -> list[float]:
    """Compute the log-coverage of each target: the sum of log(min(attention, 1)) over source tokens (Wu et al., 2016).

    The attention of a source token is the sum over all target tokens, of the mean over layers and heads. A source token
    without any is left out, as in CTranslate2.

    Args:
        given: targets; the log-coverage of an empty one is 0.

    Raises:
        DeadlineExceededError, CancelledError: see `TeacherForcing.attention_of`.
    """

    def summed(weights: Floats) -> Floats:
        over_target: Floats = weights.mean(axis=(1, 2), dtype=np.float32).sum(axis=1, keepdims=True)  # [B, 1, S]
        return over_target

    found = iter(aligner.attention_of(("cross",), [one for one in given if one.target_ids], summed, deadline))
    sums = []
    for one in given:
        attention = next(found)[0] if one.target_ids else np.zeros((1, 0), np.float32)
        sums.append(float(np.log(np.minimum(attention[attention > 0], 1.0, dtype=float)).sum()))
    return sums


def ranked(
    hypotheses: Sequence[FinishedHypothesis], log_coverages: Sequence[float], penalty: float
) -> list[FinishedHypothesis]:
    """Add penalty * log-coverage to scores, and order hypotheses by them.

    Those that satisfy more terms stay first.
    """
    scored = [
        one._replace(score=one.score + penalty * coverage)
        for one, coverage in zip(hypotheses, log_coverages, strict=True)
    ]
    return sorted(scored, key=lambda one: (sum(term is not None for term in one.terms), one.score), reverse=True)
