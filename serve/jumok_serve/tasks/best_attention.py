"""Cross-attention of best hypotheses, for an alignment of their tokens."""

from collections.abc import Sequence
from typing import NamedTuple

from jumok_serve.runtime.graphs import Floats
from jumok_serve.tasks.teacher_forcing import TeacherForcing
from jumok_serve.tasks.translation import PendingTranslations


class Attended(NamedTuple):
    """Cross-attention of a text's best hypothesis.

    Attributes:
        weights: attention, [T, S].
        target_tokens: spelling of the hypothesis' tokens, empty for special ones, [T].
        source_tokens: spelling of the text's tokens, empty for special ones, [S].
    """

    weights: Floats
    target_tokens: Sequence[str]
    source_tokens: Sequence[str]


def best_attention(
    pending: PendingTranslations,
    indices: Sequence[int],
    aligner: TeacherForcing,
) -> dict[int, Attended]:
    """Compute the attention that aligns the best hypotheses of some texts, in this thread, after they are collected.

    Args:
        indices: indices of the texts; those without tokens have none in the result.

    Raises:
        DeadlineExceededError, CancelledError: the deadline passed, or the texts were cancelled, between batches.
    """
    special, direction = pending.manifest.special_tokens, pending.direction
    unspelled = {*special.eos, special.pad, special.start, direction.forced_first}
    targets: dict[int, tuple[int, ...]] = {}
    for index in indices:
        best = pending.best(index)
        if best is not None and best.token_ids:
            targets[index] = best.token_ids
    given = []
    for index, token_ids in targets.items():
        given.append(pending.jobs[index].given(token_ids))
    found = aligner.alignments(given, pending.deadline)
    attended: dict[int, Attended] = {}
    for (index, token_ids), weights in zip(targets.items(), found, strict=True):
        tokens = pending.tokenizer.tokens(token_ids)
        attended[index] = Attended(
            weights[-len(token_ids) :],
            ["" if token in unspelled else text for token, text in zip(token_ids, tokens, strict=True)],
            pending.inputs.spelled_text(pending.jobs[index].source, direction),
        )
    return attended
