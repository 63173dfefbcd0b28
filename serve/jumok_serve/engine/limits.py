"""Bounds of what an engine decodes at the same time, and of what waits for it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Bounds of an engine, all its replicas together.

    Attributes:
        max_batch_tokens: rows times source positions that are decoded at the same time, the padding of sources to a
            multiple of 8 included; each replica has an equal part of it. A sentence that is over its replica's part by
            itself is alone there, and one that is over the whole is decoded alone. Not counted are places that wait for
            the next sentences where they take part in steps, without native kernels: an eighth of all at most. The
            default has room for 128 rows of 64 positions.
        max_batch_rows: rows that are decoded at the same time, likewise; None: as many as tokens allow.
        max_alone_rows: rows that one replica decodes with all threads rather than share them with others. With two
            cores, 32 rows took as long either way, fewer up to a third less with one replica, and 128 less with two.
        max_queue_requests: sentences that may wait.
        max_queue_tokens: source tokens of the sentences that may wait.

    Raises:
        ValueError: a bound is less than 1.
    """

    max_batch_tokens: int = 8192
    max_batch_rows: int | None = None
    max_alone_rows: int = 48
    max_queue_requests: int = 4096
    max_queue_tokens: int = 262_144

    def __post_init__(self) -> None:
        for name in (
            "max_batch_tokens",
            "max_batch_rows",
            "max_alone_rows",
            "max_queue_requests",
            "max_queue_tokens",
        ):
            bound = getattr(self, name)
            if bound is not None and bound < 1:
                raise ValueError(f"{name} must be at least 1, got {bound}")
