"""Differences between two sides of a verification, collected into checks."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jumok_serve.manifest.manifest import Check

ABSOLUTE_TOLERANCE = 1e-4
RELATIVE_TOLERANCE = 1e-5
"""fp32 values are equal within 1e-4 + 1e-5 * the largest magnitude of their tensor."""

Candidates = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Tokens and running scores of rows."""

UNBOUNDED = sys.float_info.max
"""Stands for infinite and undefined differences, which a manifest cannot hold."""


def make_check(name: str, cases: int, worst: float, limit: float, detail: str) -> Check:
    """Make a check, which passes up to its limit."""
    return Check(name=name, cases=cases, worst=worst, limit=limit, passed=worst <= limit, detail=detail)


def failed_check(name: str, error: Exception) -> Check:
    """Make the check of a graph that did not run."""
    return make_check(name, 1, UNBOUNDED, 0.0, str(error))


def tolerance(expected: NDArray[Any]) -> float:
    """The largest difference from `expected` that counts as equal."""
    finite = np.abs(expected[np.isfinite(expected)])
    return ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * float(finite.max(initial=0.0))


def largest_difference(expected: NDArray[Any], found: NDArray[Any]) -> float:
    """The largest absolute difference.

    Equal infinities differ by 0; other infinities, NaN and shapes without bound.
    """
    if expected.shape != found.shape:
        return UNBOUNDED
    apart = expected != found  # NaN is apart from everything
    differences = np.abs(expected[apart].astype(np.float64) - found[apart])
    return float(np.nan_to_num(differences, nan=UNBOUNDED, posinf=UNBOUNDED).max(initial=0.0))


def same_candidates(expected: Candidates, found: Candidates) -> bool:
    """True if the candidates are the best; equal ones may be swapped.

    Args:
        expected: tokens and running scores, best first, with some spare candidates, [R, D].
        found: tokens and running scores, best first, [R, C].
    """
    same = found[0][:, :, None] == expected[0][:, None, :]  # [R, C, D]
    own = np.take_along_axis(expected[1], same.argmax(axis=-1), axis=-1)
    best = expected[1][:, : found[1].shape[1]]
    return bool(
        same.any(axis=-1).all()
        and np.allclose(found[1], own, RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE, equal_nan=True)
        and np.allclose(found[1], best, RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE, equal_nan=True)
    )


class Differences:
    """The worst of many comparisons, relative to its tolerance."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases = 0
        self.worst = 0.0
        self.limit = ABSOLUTE_TOLERANCE

    def compare(self, expected: NDArray[Any], found: NDArray[Any]) -> None:
        """Add one case."""
        self.cases += 1
        difference, limit = largest_difference(expected, found), tolerance(expected)
        if self.cases == 1 or difference * self.limit > self.worst * limit:
            self.worst, self.limit = difference, limit

    def check(self, detail: str) -> Check:
        """The check, with difference and limit of the worst case."""
        return make_check(self.name, self.cases, self.worst, self.limit, detail)


class RelativeError:
    """Root mean square of all differences, relative to that of the expected values."""

    def __init__(self, name: str, limit: float) -> None:
        self.name = name
        self.limit = limit
        self.cases = 0
        self._difference = 0.0
        self._expected = 0.0

    def compare(self, expected: NDArray[Any], found: NDArray[Any]) -> None:
        """Add one case."""
        self.cases += 1
        self._expected += float((expected.astype(np.float64) ** 2).sum())
        if expected.shape == found.shape:
            self._difference += float(((found.astype(np.float64) - expected) ** 2).sum())
        else:
            self._difference = UNBOUNDED

    def check(self, detail: str) -> Check:
        """The check."""
        ratio = np.sqrt(self._difference / self._expected) if self._expected else UNBOUNDED
        worst = float(np.nan_to_num(ratio, nan=UNBOUNDED, posinf=UNBOUNDED))
        return make_check(self.name, self.cases, worst, self.limit, detail)


class Moved:
    """Share of cases that differ by more than the fp32 tolerance."""

    def __init__(self, name: str, limit: float) -> None:
        self.name = name
        self.limit = limit
        self.cases = 0
        self.moved = 0
        self.largest = 0.0

    def compare(self, expected: NDArray[Any], found: NDArray[Any]) -> None:
        """Add one case."""
        difference = largest_difference(expected, found)
        self.cases += 1
        self.moved += difference > tolerance(expected)
        self.largest = max(self.largest, difference)

    def check(self, detail: str) -> Check:
        """The check."""
        detail = f"{detail}; the largest difference is {self.largest:.2g}"
        return make_check(self.name, self.cases, self.moved / max(1, self.cases), self.limit, detail)
