"""Differences between two sides of a verification, collected into checks."""

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jumok_serve.manifest.manifest import Check

ABSOLUTE_TOLERANCE = 1e-4
RELATIVE_TOLERANCE = 1e-5
"""fp32 values are equal within 1e-4 + 1e-5 * the largest magnitude of their tensor."""

ROUNDING = 8.0
"""Multiple of a model's own fp32 rounding by which graphs may differ from the model, beside the tolerance.

Measured on random models with weights up to eight times as large as at first: up to 5.3. A wrong graph gives hundreds.
"""
RESTORED = 0.6
"""Multiple of the error of int8 by which native int8 graphs and shortlists may differ from the plain graphs."""
MOVED_ERROR = 0.3
"""Root mean square of differences between batches, relative to the error of the precision, that roundings cause."""
LEAST_LIKELY = -20.0
"""Log-probabilities below this one are equal: such a token is never chosen."""

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
    largest = float(np.abs(expected).max(initial=0.0))
    if not np.isfinite(largest):
        largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    return ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * largest


def largest_difference(expected: NDArray[Any], found: NDArray[Any]) -> float:
    """The largest absolute difference.

    Equal infinities differ by 0; other infinities, NaN and shapes without bound.
    """
    if expected.shape != found.shape:
        return UNBOUNDED
    with np.errstate(invalid="ignore"):
        largest = float(np.abs(np.subtract(expected, found, dtype=np.float64)).max(initial=0.0))
    if np.isfinite(largest):
        return largest
    apart = expected != found  # NaN is apart from everything
    differences = np.abs(expected[apart].astype(np.float64) - found[apart])
    return float(np.nan_to_num(differences, nan=UNBOUNDED, posinf=UNBOUNDED).max(initial=0.0))


def likely(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Log-probabilities [R, V] of logits [R, V], at least `LEAST_LIKELY`: the part that a search sees."""
    floored: NDArray[np.float64] = (
        torch.from_numpy(logits).double().log_softmax(dim=-1).clamp_(min=LEAST_LIKELY).numpy()  # a row of NaN stays one
    )
    return floored


def log_sum(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log of the sum of exponentials of each row, [R]."""
    total: NDArray[np.float64] = torch.from_numpy(logits).logsumexp(dim=-1).numpy()
    return total


class Differences:
    """The worst of many comparisons, relative to its tolerance."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases = 0
        self.worst = 0.0
        self.limit = ABSOLUTE_TOLERANCE
        self._allowed = ""

    def compare(self, expected: NDArray[Any], found: NDArray[Any]) -> None:
        """Add one case."""
        self.cases += 1
        difference, limit = largest_difference(expected, found), tolerance(expected)
        if self.cases == 1 or difference * self.limit > self.worst * limit:
            self.worst, self.limit = difference, limit

    @property
    def over(self) -> bool:
        """True if a case is over its limit."""
        return self.worst > self.limit

    def allow(self, rounding: "Differences", multiple: float, of: str) -> None:
        """Raise the limit by a multiple of what rounding alone changes, in units of each case's tolerance.

        Args:
            of: the source of the rounding, for the report.
        """
        if rounding.worst < UNBOUNDED:
            self.limit *= 1 + multiple * rounding.worst / rounding.limit
            self._allowed = f"; the limit includes {multiple:g} times {of}, {rounding.worst:.2g}"

    def check(self, detail: str) -> Check:
        """The check, with difference and limit of the worst case."""
        return make_check(self.name, self.cases, self.worst, self.limit, detail + self._allowed)


def _squares(values: NDArray[Any]) -> float:
    flat = values.ravel()
    return float(np.einsum("i,i->", flat, flat, dtype=np.float64))  # BLAS would use threads, which wait for each other


class RelativeError:
    """Root mean square of all differences, relative to that of the expected values."""

    def __init__(self, name: str, limit: float) -> None:
        self.name = name
        self.limit = limit
        self.cases = 0
        self._difference = 0.0
        self._expected = 0.0
        self._allowed = ""

    def compare(self, expected: NDArray[Any], found: NDArray[Any]) -> None:
        """Add one case."""
        self.cases += 1
        self._expected += _squares(expected)
        if expected.shape == found.shape:
            self._difference += _squares(np.subtract(found, expected, dtype=np.float64))
        else:
            self._difference = UNBOUNDED

    @property
    def worst(self) -> float:
        """The error."""
        ratio = np.sqrt(self._difference / self._expected) if self._expected else UNBOUNDED
        return float(np.nan_to_num(ratio, nan=UNBOUNDED, posinf=UNBOUNDED))

    @property
    def over(self) -> bool:
        """True if the error is over its limit."""
        return self.worst > self.limit

    def allow(self, error: "RelativeError", multiple: float, of: str) -> None:
        """Raise the limit to a multiple of an error that is no fault of the graphs.

        Args:
            of: the source of this error, for the report.
        """
        if self.limit < multiple * error.worst < UNBOUNDED:
            self.limit = multiple * error.worst
            self._allowed = f"; the limit is {multiple:g} times {of}, {error.worst:.2g}"

    def check(self, detail: str) -> Check:
        """The check."""
        return make_check(self.name, self.cases, self.worst, self.limit, detail + self._allowed)


class Moved:
    """Share of cases that differ by more than the fp32 tolerance.

    Any share may differ if the differences are small beside the precision's own error: they come from single roundings.
    """

    def __init__(self, name: str, limit: float) -> None:
        self.name = name
        self.limit = limit
        self.cases = 0
        self.moved = 0
        self.largest = 0.0
        self._difference = self._error = 0.0

    def compare(self, expected: NDArray[Any], found: NDArray[Any], exact: NDArray[Any]) -> None:
        """Add one case, with its values in fp32."""
        difference = largest_difference(expected, found)
        self.cases += 1
        self.moved += difference > tolerance(expected)
        self.largest = max(self.largest, difference)
        with np.errstate(invalid="ignore"):
            self._difference += float(((found - expected) ** 2).sum())
            self._error += float(((expected - exact) ** 2).sum())

    def check(self, detail: str) -> Check:
        """The check."""
        share = float(np.nan_to_num(np.sqrt(self._difference / self._error), nan=1.0)) if self._error else 1.0
        detail = (
            f"{detail}; the largest difference is {self.largest:.2g}, their mean {share:.2g} of the precision's error"
        )
        limit = 1.0 if share <= MOVED_ERROR else self.limit
        return make_check(self.name, self.cases, self.moved / max(1, self.cases), limit, detail)
