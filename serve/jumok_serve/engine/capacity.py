"""Whether a replica has room for sentences within the bounds of its engine."""

from jumok_serve.engine.batch import Sentence
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.engine.occupancy import Elsewhere, Occupancy

JOINING_SHARE = 4
"""What part of its room a replica waits for, as a divisor, while more wait than it has room for: to encode few
sentences, and to let them join, takes hardly less than several. With a model of 6 MiB an eighth made 1,000 sentences
6 % faster with beam size 1, and 10 % with 4; a quarter made them another 2 % faster with beam size 1."""


class Room:
    """The room of replicas that share an engine's bounds.

    Args:
        limits: bounds of batches.
        replicas: how many there are; each has an equal part.
    """

    def __init__(self, limits: EngineLimits, replicas: int) -> None:
        self._limits = limits
        self._parts = replicas

    def fits(self, sentence: Sentence, occupied: Occupancy, elsewhere: Elsewhere) -> bool:
        """Whether replica and engine stay within their bounds with one more sentence, or decode nothing else."""
        for wanted, others_have, bound in (
            (occupied.rows + sentence.search.beam_size, elsewhere.rows, self._limits.max_batch_rows),
            (occupied.tokens_with(sentence), elsewhere.tokens, self._limits.max_batch_tokens),
        ):
            if bound is None:
                continue
            if wanted > bound // self._parts and occupied.rows:
                return False
            if wanted + others_have > bound and (occupied.rows or elsewhere.rows):
                return False
        return True

    def is_for_one(self, sentence: Sentence) -> bool:
        """Whether a sentence is within a replica's part, so that one that decodes nothing else has room for it."""
        alone = Occupancy()
        alone.add(sentence)
        return all(
            bound is None or wanted <= bound // self._parts
            for wanted, bound in (
                (alone.rows, self._limits.max_batch_rows),
                (alone.tokens, self._limits.max_batch_tokens),
            )
        )

    def is_little(self, occupied: Occupancy, *, rows: int, work: int) -> bool:
        """Whether a replica has little room, and less than those who wait need, without their sources' padding.

        Args:
            occupied: what the replica decodes.
            rows: of those who wait.
            work: their source tokens times beam size.
        """
        for present, waiting, bound in (
            (occupied.tokens, work, self._limits.max_batch_tokens),
            (occupied.rows, rows, self._limits.max_batch_rows),
        ):
            if bound is not None:
                free = bound // self._parts - present
                if waiting > free and JOINING_SHARE * free < bound // self._parts:
                    return True
        return False
