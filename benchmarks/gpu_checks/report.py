"""What a check of decoding on a GPU has found: one line for each thing, as a table and as JSON."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal

Verdict = Literal["passed", "FAILED", "measured", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        verdict: what came of it; what is only measured cannot fail.
        found: in words.
        numbers: what was measured, by what it is called, units included.
    """

    name: str
    verdict: Verdict
    found: str
    numbers: Mapping[str, float]


class Report:
    """Lines, in the order in which they are found.

    Args:
        budget_s: seconds after which what is left is skipped.
        show: told each line when it is there.
    """

    def __init__(self, budget_s: float, show: Callable[[str], None]) -> None:
        self.lines: list[Line] = []
        self._deadline = time.monotonic() + budget_s
        self._budget_s = budget_s
        self._show = show

    def add(self, name: str, verdict: Verdict, found: str, **numbers: float) -> None:
        """Adds a line."""
        line = Line(name=name, verdict=verdict, found=found, numbers=numbers)
        self.lines.append(line)
        self._show(_told(line))

    def check(self, name: str, passed: bool, found: str, **numbers: float) -> None:
        """Adds a line that says whether something holds."""
        self.add(name, "passed" if passed else "FAILED", found, **numbers)

    def skip(self, name: str, reason: str) -> None:
        """Adds a line for what was not looked at."""
        self.add(name, "skipped", reason)

    @contextmanager
    def part(self, name: str) -> Iterator[bool]:
        """A part of the check, which is told whether there is time for it; an error within fails it alone."""
        if time.monotonic() > self._deadline:
            self.skip(name, f"the {self._budget_s:.0f} s were over")
            yield False
            return
        try:
            yield True
        except Exception as error:  # the rest may still be worth knowing
            self.add(name, "FAILED", f"{type(error).__name__}: {error}")

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(line.verdict != "FAILED" for line in self.lines)

    def json(self, about: Mapping[str, str]) -> str:
        """Everything, for programs."""
        return json.dumps({"about": dict(about), "lines": [asdict(line) for line in self.lines]}, indent=2)


def _told(line: Line) -> str:
    return f"{line.verdict:8}  {line.name:44}  {line.found}"


def summary(lines: Sequence[Line]) -> str:
    """How many lines there are of each verdict."""
    verdicts = [line.verdict for line in lines]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
