"""A rolling update of servers with a common name, in seconds."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tests.faults.scenarios.rollout import SERVERS, rolling_update
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.texts import scenes


def test_a_rolling_update_loses_nothing(tiny_bundle: Path) -> None:
    plan = SimpleNamespace(bundle=tiny_bundle, texts=scenes(40, 1), seed=1, restarts=1)
    findings = Findings(scenario="update")
    asyncio.run(rolling_update(cast("Plan", plan), findings))
    assert [check.what for check in findings.checks if not check.passed] == []
    assert findings.checks[1].found == str(SERVERS)
    assert int(next(check.found for check in findings.checks if check.what == "sentences that were iterated over")) > 0
