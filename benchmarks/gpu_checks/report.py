"""Report of a check on a GPU."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

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


class Found(NamedTuple):
    """What a part of the check found.

    Attributes:
        text: description.
        numbers: measurements by name, units included.
        passed: verdict; None of a measurement.
    """

    text: str
    numbers: Mapping[str, float]
    passed: bool | None = None


class Report:
    """Lines in the order of the checks.

    Args:
        budget_s: seconds after which the remaining parts are skipped.
    """

    def __init__(self, budget_s: float) -> None:
        self.lines: list[Line] = []
        self._deadline = time.monotonic() + budget_s
        self._budget_s = budget_s

    def add(self, name: str, verdict: Verdict, found: str, numbers: Mapping[str, float] | None = None) -> None:
        """Add a line, and print it."""
        self.lines.append(Line(name=name, verdict=verdict, found=found, numbers=numbers or {}))
        print(f"{verdict:8}  {name:44}  {found}", flush=True)

    def run(self, name: str, part: Callable[[], Found | None]) -> None:
        """Run a part of the check if there is time left, and add a line for what it found.

        An error fails this part only.
        """
        if time.monotonic() > self._deadline:
            self.add(name, "skipped", f"the {self._budget_s:.0f} s were over")
            return
        try:
            found = part()
        except Exception as error:  # the rest may still be worth knowing
            self.add(name, "FAILED", f"{type(error).__name__}: {error}")
            return
        if found is not None:
            verdict: Verdict = "measured" if found.passed is None else "passed" if found.passed else "FAILED"
            self.add(name, verdict, found.text, found.numbers)

    @property
    def passed(self) -> bool:
        """True if nothing failed."""
        return all(line.verdict != "FAILED" for line in self.lines)

    def summary(self) -> str:
        """Number of lines by verdict."""
        verdicts = Counter(line.verdict for line in self.lines)
        return ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
