"""Why no bundle was made."""

from collections.abc import Sequence

from jumok_proto.errors import JumokError
from jumok_serve.manifest.manifest import Check


class ExportError(JumokError):
    """A model that cannot be exported; the message says why."""


class VerificationError(ExportError):
    """Exported graphs that do not compute what the model computes.

    Attributes:
        checks: those that failed.
    """

    def __init__(self, precision: str, checks: Sequence[Check]) -> None:
        failed = "".join(
            f"\n  - {check.name}: {check.worst:.3g} is over {check.limit:.3g} ({check.detail})" for check in checks
        )
        # What is made of the graphs in fp32 is verified after these.
        left_out = f"\nfp32 passed: leave {precision} out of the precisions to export the rest"
        way_out = "" if precision == "fp32" else left_out
        super().__init__(f"verification failed in {precision}; no bundle was written:{failed}{way_out}")
        self.checks = tuple(checks)
