"""The plan of a scenario, and its findings beside their limits."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan of scenarios.

    Attributes:
        bundle: that is served.
        overloaded: what is served in overload; None: `bundle` too.
        other: a second bundle, for scenarios in which models are swapped.
        texts: to translate, all different.
        restarts: of each server, in each way.
        messages: that are made at random.
        guided_s: duration of coverage-guided fuzzing.
        overload_s: how long more is asked for than can be done, in calls of each size.
        sentences_a_call: those sizes.
        sharing_s: duration of each measurement beside other callers.
        soak_s: how long the server runs under full load.
        attackers: connections of an attack, each with as many calls as it may have.
        attack_rest_s: time after the attacks, until memory is looked at.
        largest: pattern of the names of those of the largest requests that are sent.
        health_ms: longest wait for health beside the largest requests, in milliseconds.
        seed: of all that is random.
    """

    bundle: Path
    overloaded: Path | None
    other: Path
    texts: list[str]
    restarts: int
    messages: int
    guided_s: float
    overload_s: float
    sentences_a_call: Sequence[int]
    sharing_s: float
    soak_s: float
    attackers: int
    attack_rest_s: float
    largest: str
    health_ms: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was found.

    Attributes:
        what: that is.
        found: its value, for people.
        goal: what it had to be; empty where it is only told.
        passed: whether it was that.
    """

    what: str
    found: str
    goal: str = ""
    passed: bool = True


@dataclass(kw_only=True)
class Findings:
    """All that a scenario found.

    Attributes:
        scenario: its name.
        checks: in the order in which they were made.
        label: with which the names of what is found begin.
    """

    scenario: str
    checks: list[Check] = field(default_factory=list)
    label: str = ""

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def tell(self, what: str, found: object) -> None:
        """Tell a figure that has no goal."""
        self.checks.append(Check(what=self.label + what, found=str(found)))

    def tell_counts(self, what: str, counts: Counter[Any]) -> None:
        """Tell how often each thing was found."""
        self.tell(what, ", ".join(f"{name} {count}" for name, count in counts.most_common()))

    def expect(self, what: str, found: object, goal: str, passed: bool) -> None:
        """Hold a figure against its goal."""
        self.checks.append(Check(what=self.label + what, found=str(found), goal=goal, passed=passed))

    def expect_equal(self, what: str, found: object, wanted: object) -> None:
        """Expect a value."""
        self.expect(what, found, str(wanted), found == wanted)

    def expect_more(self, what: str, found: float, least: float) -> None:
        """Expect more than a number."""
        self.expect(what, found, f"more than {least:g}", found > least)

    def expect_below(self, what: str, found: float | None, limit: float, form: str = ".2f") -> None:
        """Expect less than a limit; None: it has not ended."""
        shown = "never" if found is None else f"{found:{form}}"
        self.expect(what, shown, f"< {limit:g}", found is not None and found < limit)

    def expect_at_most(self, what: str, found: float, most: float, form: str = ".0f") -> None:
        """Expect no more than a limit."""
        self.expect(what, f"{found:{form}}", f"<= {most:{form}}", found <= most)

    def expect_at_least(self, what: str, found: float, least: float, form: str = ".2f") -> None:
        """Expect no less than a limit."""
        self.expect(what, f"{found:{form}}", f">= {least:{form}}", found >= least)

    def expect_none(self, what: str, found: Sequence[object]) -> None:
        """Expect that something never happened; shows how often it did, and the first of it."""
        shown = str(len(found)) if not found else f"{len(found)}, the first: {str(found[0])[:100]}"
        self.expect(what, shown, "0", not found)
