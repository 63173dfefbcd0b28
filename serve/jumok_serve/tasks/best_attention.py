"""Cross-attention of best hypotheses, for an alignment of their tokens."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jumok_serve.runtime.graphs import Floats
from jumok_serve.tasks.teacher_forcing import GivenTarget, TeacherForcing
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
    reduce: Callable[[Floats], Floats],
) -> dict[int, Attended]:
    """Compute the cross-attention of the best hypotheses of some texts, in this thread, after they are collected.

    Args:
        indices: indices of the texts; those without tokens have none in the result.
        reduce: function from weights [B, layers, heads, T, S] to [B, T, S].

    Raises:
        DeadlineExceededError, CancelledError: the deadline passed, or the texts were cancelled, between batches.
    """
    special, direction = pending.manifest.special_tokens, pending.direction
    unspelled = {*special.eos, special.pad, special.start, direction.forced_first}
    targets: dict[int, tuple[int, ...]] = {}
    for index in indices:
        future = pending.jobs[index].future
        best = None if future is None else next(iter(future.result().hypotheses), None)
        if best is not None and best.token_ids:
            targets[index] = best.token_ids
    given = []
    for index, token_ids in targets.items():
        start, *prefix = pending.jobs[index].prompt
        given.append(GivenTarget(pending.jobs[index].source.token_ids, start, [*prefix, *token_ids]))
    found = aligner.attention_of(("cross",), given, reduce, pending.deadline)
    first, suffix = len(direction.source_prefix), len(direction.source_suffix)
    attended: dict[int, Attended] = {}
    for (index, token_ids), (weights,) in zip(targets.items(), found, strict=True):
        source = [text for text, _ in pending.inputs.spelled(pending.jobs[index].source, direction)]
        tokens = pending.tokenizer.tokens(token_ids)
        attended[index] = Attended(
            weights[-len(token_ids) :],
            ["" if token in unspelled else text for token, text in zip(token_ids, tokens, strict=True)],
            [text if first <= place < len(source) - suffix else "" for place, text in enumerate(source)],
        )
    return attended
