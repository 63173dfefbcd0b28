"""A model that is replaced by another version of itself while it is used."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import jumok
from benchmarks.common.processes import Server
from benchmarks.common.progress import progress
from tests.faults.scenarios.availability import Load, translations
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.servers import expect_well, jumok_serve, metrics
from tests.support.models.variants import edited

VERSIONS = ("1.0", "2.0")
OTHER = "other"
IDLE_WITHIN_S = 10.0


@contextmanager
def model_root(plan: Plan) -> Iterator[Path]:
    """A folder with two versions of the bundle, which differ in nothing else, and with the other bundle."""
    with TemporaryDirectory() as name:
        root = Path(name)
        for version in VERSIONS:
            edited(plan.bundle, root / version, partial(dict.update, version=version))
        shutil.copytree(plan.other, root / OTHER)
        yield root


class Swapper:
    """Replaces a server's model, and brings another in and out.

    Args:
        server: that has a model root, and the first version of the model.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.swaps = 0

    async def swap(self) -> None:
        """Replace the model by its other version, load the other model, and unload it.

        Raises:
            jumok.JumokError: the server has refused.
            RuntimeError: it has replaced another version.
        """
        await asyncio.to_thread(self._swap)
        self.swaps += 1

    def _swap(self) -> None:
        before, after = VERSIONS[self.swaps % 2], VERSIONS[1 - self.swaps % 2]
        with jumok.AdminClient(self._server.address, timeout_s=120) as admin:
            replaced = admin.load_model(after).replaced_version
            if replaced != before:
                raise RuntimeError(f"version {after} replaced {replaced!r}, not {before}")
            other = admin.load_model(OTHER).model.name
            admin.unload_model(other)


async def swaps(plan: Plan, findings: Findings) -> None:
    """The model is replaced again and again under constant load, and another comes and goes."""
    with model_root(plan) as root:
        first = root / VERSIONS[0]
        async with jumok_serve(first, "--model-root", root) as server:
            expected = await translations(server.address, plan.texts)
            swapper = Swapper(server)
            async with jumok.AsyncClient(server.address, max_attempts=1) as client:
                load = Load(client, expected, plan.seed, model=model_name(first))
                async with load.running():
                    for _ in range(2 * plan.restarts):
                        await swapper.swap()
                        progress(f"swap: {swapper.swaps} swaps, {load.given} sentences")
                        await load.goes_on()
                    await load.finish()
            await expect_well(findings, server, IDLE_WITHIN_S)
            findings.expect_equal("models held", (await metrics(server)).sum("jumok_model_info"), 1)
    findings.expect_equal("models replaced under load", swapper.swaps, 2 * plan.restarts)
    load.judge(findings)


def model_name(bundle: Path) -> str:
    """Read the model name of a bundle."""
    return str(json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["name"])
