"""Choice of a bundle's precision, and what a user should know about it."""

import logging

from jumok_serve.manifest.manifest import Agreement, Manifest

logger = logging.getLogger(__name__)

PREFERRED_PRECISIONS = {"cpu": ("int8", "fp32"), "cuda": ("fp16", "fp32")}
"""Precisions for "auto" on each device, the best first."""
LEAST_AGREEMENT = {"calibration texts": 0.98, "random tokens": 0.95}
"""Least share of tokens that a precision must choose as fp32 does, for "auto" to take it instead of fp32.

After random tokens a model is less sure of its choice, so that roundings change more of them.
"""
SHORT_TRANSLATION = 12
"""Tokens at the mean, up to which translations are short: names and words, which one changed token makes wrong."""
LEAST_UNCHANGED = 0.95
"""Least share of short translations in which no token may differ, for "auto" to take a precision."""


def automatic_precision(manifest: Manifest, device: str) -> str:
    """The precision of "auto" on a device.

    It is the first of `PREFERRED_PRECISIONS` that the bundle has and that agrees with fp32 well enough, as far as is
    known; without such a one, the first that the bundle has. The precision in which the weights came agrees by
    definition: fp32 has the same weights, and only rounds less.
    """
    present = [name for name in PREFERRED_PRECISIONS[device] if name in manifest.precisions] or [*manifest.precisions]
    if manifest.stored_precision in present:
        return manifest.stored_precision
    for name in present:
        agreement = manifest.agreement.get(name)
        if agreement is None or agrees(agreement):
            return name
        if len(present) > 1:
            reason = f"{name} agrees with fp32 only in {agreement}"
            logger.info("%s: %s, so it is not chosen by itself", manifest.name, reason)
    return present[0]


def agrees(agreement: Agreement) -> bool:
    """True if a precision agrees with fp32 well enough for "auto" to take it.

    In short translations the whole results count too. Lengths after random tokens say nothing about those of texts.
    """
    if agreement.share < LEAST_AGREEMENT[agreement.texts]:
        return False
    if agreement.texts == "random tokens" or agreement.translations is None or agreement.unchanged is None:
        return True
    return agreement.tokens > SHORT_TRANSLATION * agreement.translations or agreement.unchanged >= LEAST_UNCHANGED


def describe_agreement(manifest: Manifest, precision: str) -> str:
    """Describe how far a precision agrees with fp32; empty for fp32."""
    if precision == "fp32":
        return ""
    agreement = manifest.agreement.get(precision)
    if precision == manifest.stored_precision:
        return "the precision of the imported weights"
    if agreement is None:
        return "agreement with fp32 not measured"
    return f"agrees with fp32 in {agreement}"


def warn_of_failed_checks(manifest: Manifest, precision: str) -> None:
    """Warn if a precision failed its verification, as bundles exported with --unverified may."""
    report = manifest.verification.get(precision)
    failed = [] if report is None else [check.name for check in report.checks if not check.passed]
    if failed:
        logger.warning(
            "%s: its %s graphs failed their verification, and were exported all the same (%s): see `inspect --all`",
            manifest.name,
            precision,
            ", ".join(failed),
        )
