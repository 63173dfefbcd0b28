"""Report of a check on a GPU, as a table and as JSON."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal

Verdict = Literal["passed", "FAILED", "measured", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One item.

    Attributes:
        name: name of the item.
        verdict: outcome; measurements cannot fail.
        found: description.
        numbers: measurements by name, units included.
    """

    name: str
    verdict: Verdict
    found: str
    numbers: Mapping[str, float]


class Report:
    """Lines in the order of the checks.

    Args:
        budget_s: seconds after which the remaining parts are skipped.
        show: receives each line.
    """

    def __init__(self, budget_s: float, show: Callable[[str], None]) -> None:
        self.lines: list[Line] = []
        self._deadline = time.monotonic() + budget_s
        self._budget_s = budget_s
        self._show = show

    def add(self, name: str, verdict: Verdict, found: str, **numbers: float) -> None:
        """Add a line."""
        line = Line(name=name, verdict=verdict, found=found, numbers=numbers)
        self.lines.append(line)
        self._show(_format_line(line))

    def check(self, name: str, passed: bool, found: str, **numbers: float) -> None:
        """Add a line with a verdict."""
        self.add(name, "passed" if passed else "FAILED", found, **numbers)

    def skip(self, name: str, reason: str) -> None:
        """Add a line for a skipped item."""
        self.add(name, "skipped", reason)

    @contextmanager
    def part(self, name: str) -> Iterator[bool]:
        """Run a part of the check; True if there is time left.

        An error fails this part only.
        """
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
        """True if nothing failed."""
        return all(line.verdict != "FAILED" for line in self.lines)

    def json(self, about: Mapping[str, str]) -> str:
        """The report for programs."""
        return json.dumps({"about": dict(about), "lines": [asdict(line) for line in self.lines]}, indent=2)


def _format_line(line: Line) -> str:
    return f"{line.verdict:8}  {line.name:44}  {line.found}"


def summary(lines: Sequence[Line]) -> str:
    """Number of lines by verdict."""
    verdicts = [line.verdict for line in lines]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
