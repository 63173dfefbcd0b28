"""The precision of "auto", and what is said about a precision when it is loaded."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.manifest import Agreement, Check, Manifest, VerificationReport
from jumok_serve.runtime.device import CPU, agrees, automatic_precision, describe_agreement
from jumok_serve.runtime.loader import load_graphs


def with_agreement(manifest: Manifest, share: float | None) -> Manifest:
    agreement = {} if share is None else {"int8": Agreement(share=share, tokens=100, texts="calibration texts")}
    return manifest.model_copy(update={"agreement": agreement})


@pytest.mark.parametrize(
    ("share", "only", "precision"),
    [(None, False, "int8"), (1.0, False, "int8"), (0.98, False, "int8"), (0.979, False, "fp32"), (0.5, True, "int8")],
)
def test_int8_is_taken_unless_it_is_known_to_agree_badly(
    share: float | None, only: bool, precision: str, tiny_bundle: Path
) -> None:
    """Or there is nothing else."""
    manifest = with_agreement(Bundle.open(tiny_bundle).manifest, share)
    if only:
        manifest = manifest.model_copy(update={"precisions": {"int8": manifest.precisions["int8"]}})
    assert automatic_precision(manifest, "cpu") == precision
    assert automatic_precision(manifest, "cuda") == ("int8" if only else "fp32")


def test_random_tokens_are_judged_less_severely() -> None:
    shares = (0.94, 0.95, 0.97)
    assert [agrees(Agreement(share=share, tokens=9, texts="random tokens")) for share in shares] == [False, True, True]
    assert not any(agrees(Agreement(share=share, tokens=9, texts="calibration texts")) for share in shares)


@pytest.mark.parametrize(
    ("tokens", "unchanged", "texts", "taken"),
    [
        (1200, 0.95, "calibration texts", True),
        (1200, 0.94, "calibration texts", False),
        (1201, 0.5, "calibration texts", True),  # sentences
        (1200, 0.5, "random tokens", True),
    ],
)
def test_short_translations_count_as_a_whole(
    tokens: int, unchanged: float, texts: Literal["calibration texts", "random tokens"], *, taken: bool
) -> None:
    found = Agreement(share=0.99, tokens=tokens, texts=texts, translations=100, unchanged=unchanged)
    assert agrees(found) == taken
    assert not agrees(found.model_copy(update={"share": 0.9}))


def test_the_reason_to_leave_int8_is_said(tiny_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest = with_agreement(Bundle.open(tiny_bundle).manifest, 0.99)
    short = manifest.agreement["int8"].model_copy(update={"translations": 20, "unchanged": 0.9})
    caplog.set_level(logging.INFO)
    assert automatic_precision(manifest.model_copy(update={"agreement": {"int8": short}}), "cpu") == "fp32"
    said = "int8 agrees with fp32 only in 99.0 % of 100 tokens and in 90.0 % of 20 translations (calibration texts)"
    assert said in caplog.text


def test_the_precision_of_the_imported_weights_is_taken_however_fp32_rounds(tiny_bundle: Path) -> None:
    manifest = with_agreement(Bundle.open(tiny_bundle).manifest, 0.5)
    imported = manifest.model_copy(update={"stored_precision": "int8"})
    assert automatic_precision(imported, "cpu") == "int8"
    assert automatic_precision(imported, "cuda") == "fp32"
    assert describe_agreement(imported, "int8") == "the precision of the imported weights"
    assert describe_agreement(imported, "fp32") == ""


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.5, "agrees with fp32 in 50.0 % of 100 tokens (calibration texts)"), (None, "agreement with fp32 not measured")],
)
def test_the_agreement_is_said_when_a_model_is_loaded(
    share: float | None,
    said: str,
    tiny_bundle: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bundle = Bundle.open(tiny_bundle)
    bundle = replace(bundle, manifest=with_agreement(bundle.manifest, share))
    caplog.set_level(logging.INFO)
    load_graphs(bundle, "int8", [CPU], replicas=1, threads=1)
    assert f"runs in int8 ({said}) on CPUExecutionProvider" in caplog.text


def test_failed_checks_are_warned_of(tiny_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    bundle = Bundle.open(tiny_bundle)
    failed = VerificationReport(checks=(Check(name="encoder", cases=1, worst=2.0, limit=1.0, passed=False),))
    bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"verification": {"fp32": failed}}))
    load_graphs(bundle, "int8", [CPU], replicas=1, threads=1)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    load_graphs(bundle, "fp32", [CPU], replicas=1, threads=1)
    assert "its fp32 graphs failed their verification, and were exported all the same (encoder)" in caplog.text
