"""Errors of exports."""

from collections.abc import Sequence

from jumok_proto.errors import JumokError
from jumok_serve.manifest.manifest import Check


class ExportError(JumokError):
    """A model cannot be exported; the message says why."""


class VerificationError(ExportError):
    """Exported graphs compute something else than the model."""

    def __init__(self, precision: str, checks: Sequence[Check]) -> None:
        failed = "".join(
            f"\n  - {check.name}: {check.worst:.3g} is over {check.limit:.3g} ({check.detail})" for check in checks
        )
        # Other precisions are made from the fp32 graphs after these passed.
        advice = f"\nfp32 passed: leave {precision} out of the precisions to export the rest"
        remedy = "" if precision == "fp32" else advice
        super().__init__(f"verification failed in {precision}; no bundle was written:{failed}{remedy}")
        self.checks = tuple(checks)
