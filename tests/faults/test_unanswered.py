"""The scenario of unanswered calls, with a small model and without the bundle that a trial computes a minute for."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.faults.scenarios.unanswered import BUNDLES, ENDLESS, unanswered
from tests.faults.tools.findings import Findings, Plan


@pytest.mark.slow
def test_every_call_is_answered_and_every_server_ends(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("TEXT_S", "HEALTH_S", "IDLE_WITHIN_S", "ENDS_WITHIN_S"):  # the machine may be busy
        monkeypatch.setattr(f"tests.faults.scenarios.unanswered.{limit}", 300.0)
    findings = Findings(scenario="unanswered")
    plan = cast("Plan", SimpleNamespace(bundle=tiny_bundle))
    asyncio.run(unanswered(plan, findings, loaded=[name for name in BUNDLES if name != ENDLESS]))
    assert [check for check in findings.checks if not check.passed] == []
    assert len(findings.checks) == 11
