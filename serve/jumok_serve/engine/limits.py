"""Bounds of an engine's batches and queue."""

from dataclasses import dataclass, fields


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
