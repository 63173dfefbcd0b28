"""Capacity of replicas: rows and padded source positions, in use and free."""

from collections.abc import Iterable

from jumok_serve.engine.batch import Batch
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.engine.sentence import Sentence
from jumok_serve.runtime.state.slot_buffers import padded_length

JOINING_SHARE = 4
"""A replica waits until this part (1/4) of its capacity is free while more sentences wait than fit.

Encoding and admitting a few sentences takes almost as long as several. With a model of 6 MiB and 1,000 sentences, 1/8
was 6 % faster than no wait at beam size 1 and 10 % at 4; 1/4 was another 2 % faster at beam size 1."""


class Occupancy:
    """Number and longest source of a replica's sentences, by beam size; light ones are counted apart.

    Args:
        batches: batches of the replica, one per lane.

    Attributes:
        rows: rows of all sentences.
        tokens: rows times padded source positions.
        step_work: work of a step, in row steps.
        light_sentences: light sentences.
        light_rows: their rows.
    """

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        self._parts: dict[int, tuple[int, int]] = {}
        self.step_work = self.light_sentences = self.light_rows = 0
        for batch in batches:
            if batch.light:
                self.light_sentences += batch.size
                self.light_rows += batch.rows
            else:
                self._parts[batch.beam_size] = batch.size, padded_length(batch.longest_source)
                self.step_work += batch.step_work
        self._count()

    @property
    def busy(self) -> bool:
        """True if the replica decodes any sentence."""
        return self.rows + self.light_rows > 0

    def _count(self) -> None:
        self.sentences = self.rows = self.tokens = 0
        for size, (sentences, longest) in self._parts.items():
            self.sentences += sentences
            self.rows += size * sentences
            self.tokens += size * sentences * longest

    def tokens_with(self, sentence: Sentence) -> int:
        """Return `tokens` with one more sentence."""
        size = sentence.rows
        sentences, longest = self._parts.get(size, (0, 0))
        wider = max(longest, padded_length(len(sentence.source_ids)))
        return self.tokens + size * ((sentences + 1) * wider - sentences * longest)

    def add(self, sentence: Sentence) -> None:
        """Add a sentence."""
        size = sentence.rows
        if sentence.light:
            self.light_sentences += 1
            self.light_rows += size
            return
        self.step_work += sentence.plan.step_work
        sentences, longest = self._parts.get(size, (0, 0))
        self._parts[size] = sentences + 1, max(longest, padded_length(len(sentence.source_ids)))
        self._count()


class TotalOccupancy:
    """Rows and tokens of several replicas."""

    def __init__(self, replicas: Iterable[Occupancy]) -> None:
        each = [(one.rows, one.tokens) for one in replicas]
        self.rows = sum(rows for rows, _ in each)
        self.tokens = sum(tokens for _, tokens in each)


class Capacity:
    """Bounds of an engine's batches, divided evenly among its replicas.

    Args:
        limits: bounds of the engine.
    """

    def __init__(self, limits: EngineLimits, replicas: int) -> None:
        self._limits = limits
        self._parts = replicas

    def fits(self, sentence: Sentence, occupied: Occupancy, others: TotalOccupancy) -> bool:
        """True if one more sentence fits, or if nothing else is decoded."""
        for wanted, others_have, bound in (
            (occupied.rows + sentence.rows, others.rows, self._limits.max_batch_rows),
            (occupied.tokens_with(sentence), others.tokens, self._limits.max_batch_tokens),
        ):
            if bound is None:
                continue
            if wanted > bound // self._parts and occupied.rows:
                return False
            if wanted + others_have > bound and (occupied.rows or others.rows):
                return False
        return True

    def fits_idle_replica(self, sentence: Sentence) -> bool:
        """True if one sentence alone is within the part of a replica."""
        alone = Occupancy()
        alone.add(sentence)
        return all(
            bound is None or wanted <= bound // self._parts
            for wanted, bound in (
                (alone.rows, self._limits.max_batch_rows),
                (alone.tokens, self._limits.max_batch_tokens),
            )
        )

    def is_scarce(self, occupied: Occupancy, *, rows: int, positions: int) -> bool:
        """True if free capacity is small, and less than waiting sentences need.

        Args:
            occupied: sentences that the replica decodes.
            rows: rows of the waiting sentences.
            positions: source tokens of the waiting sentences times beam size.
        """
        for present, waiting, bound in (
            (occupied.tokens, positions, self._limits.max_batch_tokens),
            (occupied.rows, rows, self._limits.max_batch_rows),
        ):
            if bound is not None:
                free = bound // self._parts - present
                if waiting > free and JOINING_SHARE * free < bound // self._parts:
                    return True
        return False
