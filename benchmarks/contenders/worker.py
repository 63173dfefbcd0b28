"""A contender's process: translates tasks from standard input, and answers times.

Each line is one JSON object, in both directions. Output of libraries goes to standard error.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

Run = Callable[[], list[list[str]]]
"""Translates a task once; returns the tokens of each best hypothesis."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Sentences that are translated at once.

    Attributes:
        texts: the sentences.
        tokens: source tokens of the texts, end tokens included, for contenders without a tokenizer.
        beam_size: beam size; 1 for greedy.
        min_length: minimum of new tokens.
        max_length: most new tokens.
        least_s: the task is repeated until this many seconds have passed.
        rests_s: seconds of rest before each repetition; after the last the task is repeated without, if at all.
        batch_size: batch size of CTranslate2 and ``generate``; 0 shares the sentences equally among CTranslate2's
            workers, and gives ``generate`` all at once.
        batch_type: unit of the batch size, "examples" or "tokens".
    """

    texts: list[str]
    tokens: list[list[str]] = field(default_factory=list)
    beam_size: int
    min_length: int = 0
    max_length: int
    least_s: float = 0.0
    batch_size: int = 0
    batch_type: str = "examples"
    rests_s: Sequence[float] = (0.0,)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Result of a task.

    Attributes:
        seconds: time of every repetition.
        tokens: translations, without end tokens.
        resident: memory of the process, in bytes.
        peak: peak memory of the process, in bytes.
    """

    seconds: list[float]
    tokens: list[list[str]]
    resident: int
    peak: int

    @property
    def median(self) -> float:
        """Median seconds of a repetition."""
        return statistics.median(self.seconds)


def serve(prepare: Callable[[Task], Run]) -> None:
    """Run tasks until standard input ends; ``prepare`` is not timed."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(asdict(take_turn(prepare, Task(**json.loads(line))))), file=answers, flush=True)


def take_turn(prepare: Callable[[Task], Run], task: Task) -> Turn:
    """Translate a task repeatedly for its time."""
    run = prepare(task)
    rests_s = iter(task.rests_s)
    seconds: list[float] = []
    while len(seconds) < len(task.rests_s) or sum(seconds) < task.least_s:
        time.sleep(next(rests_s, 0.0))
        start = time.perf_counter()
        tokens = run()
        seconds.append(time.perf_counter() - start)
    return Turn(seconds=seconds, tokens=tokens, resident=_memory("VmRSS"), peak=_memory("VmHWM"))


def _memory(what: str) -> int:
    """A memory figure of Linux in bytes.

    ``getrusage`` inherits its peak from the parent process.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith(f"{what}:")]
    return int(kilobytes) * 1024
