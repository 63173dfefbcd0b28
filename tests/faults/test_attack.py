"""The attacks of ``make faults`` with a few calls each: refused, bounded, and over without a trace."""

from pathlib import Path

import pytest

from jumok_serve.service import Server
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.service.limits import ServiceLimits
from tests.faults.scenarios.attack import UNREAD, attacks
from tests.faults.tools.flood import Flood
from tests.support.hang import until
from tests.support.servers.fake_model import FakeModel, serving
from tests.support.servers.tokens import token_file

CALLS = 6
ENDED_FOR_STRANGERS = {
    "gzip bombs",
    "gzip bombs for health",
    "unfinished uploads",
    "messages that say they are 4 GiB",
    "large answers that are not read",
    "glossaries that are not read",
    "silent corpora",
    "texts of many pages",
    "scores of long texts",
    "glossaries of words",
    "texts with stored glossaries",
    "a mix of kinds",
}
"""Attacks whose calls all end by themselves if they have no token; the others hold what health may hold."""


def budgets(server: Server) -> list[int]:
    return [server.intake.budget.free, server.intake.stream_budget.free, server._health_intake.budget.free]


@pytest.mark.parametrize("with_token", [False, True])
@pytest.mark.parametrize("name", attacks(1))
async def test_an_attack_is_bounded_and_leaves_nothing(name: str, with_token: bool, tmp_path: Path) -> None:
    tokens, (secret,) = token_file(tmp_path, "attacker")
    fields = {"authorization": f"Bearer {secret}"} if with_token else {}
    limits = ServiceLimits(wrong_tokens_per_second=2.0)
    async with serving(FakeModel(), tokens=TokenFile(tokens), limits=limits) as (server, _):
        before = budgets(server)
        flood = await Flood.connect(server.address, reads=name not in UNREAD, **fields)
        attacks(CALLS)[name](flood)
        calls = flood.open_calls
        if name in ENDED_FOR_STRANGERS and not with_token:
            await until(lambda: flood.ended["call"] >= calls)
            assert budgets(server)[:2] == before[:2]
        elif calls:
            await until(lambda: server.open_calls + sum(server.counts.ended_with.values()) >= calls)
        flood.close()
        await until(lambda: not server.open_calls and budgets(server) == before)
