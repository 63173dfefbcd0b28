"""Errors of exports."""

from collections.abc import Sequence

from jumok_proto.errors import JumokError
from jumok_serve.manifest.manifest import Check


class ExportError(JumokError):
    """A model cannot be exported; the message says why."""


_HINTS = (
    (
        "scorer",
        "`score` must be 0 after a target's end: mask it by target_lengths, as in "
        "scores.masked_fill(torch.arange(target_ids.shape[1]) >= target_lengths[:, None], 0.0)",
    ),
    (
        "batch invariance",
        "a row must depend neither on other rows nor on padding after source_lengths: mask attention, and give the "
        "backward half of a bidirectional nn.GRU or nn.LSTM reversed sources, as jumok_export.models.recurrent_encoder",
    ),
)
"""Usual reasons why a check of a model of one's own fails, by the check's name or its beginning."""


def _hints(checks: Sequence[Check]) -> str:
    names = [check.name for check in checks]
    matching = [hint for start, hint in _HINTS if any(name == start or name.startswith(f"{start},") for name in names)]
    return "".join(f"\nhint: {hint}" for hint in matching)


class VerificationError(ExportError):
    """Exported graphs compute something else than the model."""

    def __init__(self, precision: str, checks: Sequence[Check]) -> None:
        failed = "".join(
            f"\n  - {check.name}: {check.worst:.3g} is over {check.limit:.3g} ({check.detail})" for check in checks
        )
        # Other precisions are made from the fp32 graphs after these passed.
        advice = f"\nfp32 passed: leave {precision} out of the precisions to export the rest"
        remedy = _hints(checks) if precision == "fp32" else advice
        override = (
            "\n--unverified (unverified=True in Python) writes the bundle nevertheless, and records these checks in it"
        )
        super().__init__(f"verification failed in {precision}; no bundle was written:{failed}{remedy}{override}")
        self.checks = tuple(checks)


MOST_NAMED = 8
"""Most names in a message."""


def listed(names: Sequence[str]) -> str:
    """Join names for a message, and count those that it leaves out."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
