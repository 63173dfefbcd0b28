"""Bounds of an engine, and the capacity of its replicas: rows and padded source positions, in use and free."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from jumok_serve.engine.batch import Batch
from jumok_serve.engine.sentence import Sentence
from jumok_serve.runtime.state.slot_buffers import padded_length

JOINING_SHARE = 4
"""A replica waits until this part (1/4) of its capacity is free while more sentences wait than fit.

Encoding and admitting a few sentences takes almost as long as several. With a model of 6 MiB and 1,000 sentences, 1/8
was 6 % faster than no wait at beam size 1 and 10 % at 4; 1/4 was another 2 % faster at beam size 1."""


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Bounds of an engine, all its replicas together.

    Attributes:
        max_batch_tokens: rows times source positions decoded at the same time, sources padded to a multiple of 8. Each
            replica has an equal part. A sentence over that part is alone in its replica; one over the whole is decoded
            alone. Without native kernels, empty slots that take part in steps (at most 1/8) are not counted. The
            default fits 128 rows of 64 positions.
        max_batch_rows: rows decoded at the same time, divided among replicas as tokens are; None: no bound.
        max_alone_rows: rows that one replica decodes with all threads instead of sharing them with others. On two cores
            32 rows took as long either way, fewer rows up to 1/3 less with one replica, and 128 less with two.
        max_queue_requests: sentences that may wait.
        max_queue_tokens: source tokens of the sentences that may wait.
        max_queue_bytes: memory that they may take, as `Sentence.waiting_bytes` estimates it.
        max_queue_work: work that they may need, as `Sentence.work` estimates it.
        max_request_work: most work of the sentences of one request, if each has the maximum length. The default admits
            2,048 sentences of 512 tokens at beam size 4 with constraints on repetition, and twice as many without.
        work_per_second: sustained work of each caller, as `Sentence.work` estimates it; None: no bound. What a
            sentence did not need is given back at its end.
        work_burst: work at once after a pause; None: that of one second. More at once needs a pause, and a longer one
            after it.

    Raises:
        ValueError: a bound is less than 1.
    """

    max_batch_tokens: int = 8192
    max_batch_rows: int | None = None
    max_alone_rows: int = 48
    max_queue_requests: int = 4096
    max_queue_tokens: int = 262_144
    max_queue_bytes: int = 64 * 2**20
    max_queue_work: int = 2**25
    max_request_work: int = 2**23
    work_per_second: int | None = None
    work_burst: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            bound = getattr(self, field.name)
            if bound is not None and bound < 1:
                raise ValueError(f"{field.name} must be at least 1, got {bound}")


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
