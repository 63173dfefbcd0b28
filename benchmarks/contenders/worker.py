"""A side's process: it is given a task on its standard input, does it, and answers with its times.

One JSON object a line in both directions. Whatever libraries print goes to the standard error.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

Run = Callable[[], list[list[str]]]
"""Translates a task's sentences once; gives the tokens of each one's best hypothesis, in their own spelling."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be translated, all of it at once.

    Attributes:
        texts: the sentences.
        tokens: the same as source tokens, end token included, for sides that have no tokenizer.
        beam_size: 1: greedy.
        min_length: new tokens before a translation may end.
        max_length: most new tokens.
        least_s: it is translated again and again until so many seconds have passed.
        batch_size: what CTranslate2 or ``generate`` translates together at most; 0: sentences are shared equally among
            CTranslate2's workers, and ``generate`` translates all at once.
        batch_type: what it is counted in, "examples" or "tokens"; the other sides do as they think best.
    """

    texts: list[str]
    tokens: list[list[str]]
    beam_size: int
    min_length: int
    max_length: int
    least_s: float
    batch_size: int = 0
    batch_type: str = "examples"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What came of a task.

    Attributes:
        seconds: of every time that it was translated.
        tokens: the translations, without end tokens.
        resident: bytes of the process in memory.
        peak: the most it has had since it was started.
    """

    seconds: list[float]
    tokens: list[list[str]]
    resident: int
    peak: int

    @property
    def median(self) -> float:
        """Seconds of one time."""
        return statistics.median(self.seconds)


def serve(prepare: Callable[[Task], Run]) -> None:
    """Does tasks until there are no more; what ``prepare`` does is not counted."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(asdict(take_turn(prepare, Task(**json.loads(line))))), file=answers, flush=True)


def take_turn(prepare: Callable[[Task], Run], task: Task) -> Turn:
    """Translates a task's sentences for as long as it asks for."""
    run = prepare(task)
    seconds: list[float] = []
    while not seconds or sum(seconds) < task.least_s:
        start = time.perf_counter()
        tokens = run()
        seconds.append(time.perf_counter() - start)
    return Turn(seconds=seconds, tokens=tokens, resident=_memory("VmRSS"), peak=_memory("VmHWM"))


def _memory(what: str) -> int:
    """Bytes, as Linux counts them; not of ``getrusage``, whose peak a process has from the one that started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith(f"{what}:")]
    return int(kilobytes) * 1024
