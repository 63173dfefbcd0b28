"""Texts, bundles and signals that could leave calls without an answer, or a server without an end."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import onnx

import jumok
from benchmarks.common.processes import Server
from benchmarks.common.progress import progress
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.health_waits import health_waits
from tests.faults.tools.servers import expect_well, jumok_serve
from tests.support.models.hostile_bundles import edit_graph, loop_forever
from tests.support.processes import children

ENDLESS = "endless"
BUNDLES = (ENDLESS, "silent", "piped")
"""Bundles that no server may load."""
LONG = 100_000
"""Characters of a long text."""
UNITS = (
    *("\u201c", "'", "([{", "A. ", "A\u202f. ", "e.g. ", "."),
    *("a", "a\u0301", "\n", "1. ", "\u200d", "A.\u3000", "<a>"),
)
"""Long texts are one of these, repeated."""
SPACES = "\xa0\x85\u1680\u2000\u2009\u2028\u202f\u205f\u3000"
SHORT = tuple(f"A{space}{stop} B" for space in SPACES for stop in ".!?。…")
TEXT_S = 10.0
HEALTH_S = 1.0
"""Longest time of a text, and of a health check beside it."""
IDLE_WITHIN_S = 10.0
LOAD_S = 300.0
"""Longest time of a load: a trial may compute for a minute."""
ENDS_WITHIN_S = 15.0
BEGUN_CPU_S = 8.0
BEGINS_WITHIN_S = 120.0
"""Processor time after which a server that opens an endless graph is inside of it."""


async def unanswered(plan: Plan, findings: Findings, *, loaded: Sequence[str] = BUNDLES) -> None:
    """Hostile texts and bundles, and signals while native code is stuck: all calls are answered, and servers end."""
    with tempfile.TemporaryDirectory(prefix="jumok-unanswered-") as folder:
        _make_bundles(plan.bundle, Path(folder))
        async with jumok_serve(plan.bundle, "--model-root", folder) as server:
            await _texts(server, findings)
            await expect_well(findings, server, IDLE_WITHIN_S)
            await _bundles(server, loaded, findings)
            await expect_well(findings, server, expected=f" bundle {Path(folder).resolve()}")
            await _stop_in_trial(server, findings)
        await _stop_when_stuck(Path(folder) / ENDLESS, findings)


def _make_bundles(bundle: Path, root: Path) -> None:
    """Make bundles with an encoder without an end, a decoder without logits, and a pipe in the place of weights."""
    endless, silent, piped = (shutil.copytree(bundle, root / name) for name in BUNDLES)
    for encoder in endless.rglob("encoder*.onnx"):
        edit_graph(endless, str(encoder.relative_to(endless)), loop_forever)
    for decoder in silent.rglob("decoder*.onnx"):
        edit_graph(silent, str(decoder.relative_to(silent)), _drop_first_output)
    weights = max(piped.rglob("*"), key=lambda path: path.stat().st_size)
    weights.unlink()
    os.mkfifo(weights)


def _drop_first_output(graph: onnx.GraphProto) -> None:
    del graph.output[0]


async def _texts(server: Server, findings: Findings) -> None:
    """Translate hostile texts in turn, split into sentences, while health is checked."""
    failed: list[str] = []
    longest_s = 0.0
    texts = [*SHORT, *((unit * LONG)[:LONG] for unit in UNITS)]
    with health_waits(server.address) as waits:
        waits.longest_s()
        async with jumok.AsyncClient(server.address, max_attempts=1) as client:
            for text in texts:
                began = time.monotonic()
                try:
                    await client.translate(
                        text, split_sentences=True, truncate=True, beam_size=1, max_length=2, timeout_s=TEXT_S
                    )
                except jumok.InvalidArgumentError:
                    pass
                except jumok.JumokError as error:
                    failed.append(f"{text[:10]!r}: {error}")
                longest_s = max(longest_s, time.monotonic() - began)
        check_s = waits.longest_s()
    findings.expect_none(f"of {len(texts)} hostile texts: neither translated nor refused", failed)
    findings.expect_below("longest time of a text, s", longest_s, TEXT_S)
    findings.expect_below("longest health check meanwhile, s", check_s, HEALTH_S)


async def _bundles(server: Server, bundles: Sequence[str], findings: Findings) -> None:
    """Load hostile bundles; each is refused, and the server goes on."""
    wrong: list[str] = []
    for bundle in bundles:
        began = time.monotonic()
        try:
            await asyncio.to_thread(_load, server.address, bundle)
            wrong.append(f"{bundle}: loaded")
        except jumok.BundleNotLoadedError:
            pass
        except jumok.JumokError as error:
            wrong.append(f"{bundle}: {error}")
        progress(f"unanswered: the bundle {bundle}, {time.monotonic() - began:.1f} s")
    findings.expect_none(f"of {len(bundles)} hostile bundles: not refused within {LOAD_S:g} s", wrong)


def _load(address: str, bundle: str) -> None:
    with jumok.AdminClient(address, timeout_s=LOAD_S) as admin:
        admin.load_model(bundle)


async def _stop_in_trial(server: Server, findings: Findings) -> None:
    """Stop the server while a child process tries an endless bundle."""
    assert server.process is not None
    loading = asyncio.create_task(asyncio.to_thread(_load, server.address, ENDLESS))
    while not loading.done() and not children(server.pid):
        await asyncio.sleep(0.05)
    took_s = await _ends_after(server.process, signal.SIGTERM)
    findings.expect_below("from SIGTERM beside a trial to the server's end, s", took_s, ENDS_WITHIN_S, ".1f")
    outcome = (await asyncio.gather(loading, return_exceptions=True))[0]
    findings.expect_equal("the load beside it ends with", type(outcome).__name__, "UnavailableError")


async def _stop_when_stuck(endless: Path, findings: Findings) -> None:
    """Stop a server that is stuck in the graph of a trusted bundle."""
    arguments = ("-m", "jumok", "serve", str(endless), "--trusted-bundles", "--port", "0")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    server = Server(address="", pid=process.pid)
    until = time.monotonic() + BEGINS_WITHIN_S
    while process.returncode is None and server.cpu_s() < BEGUN_CPU_S and time.monotonic() < until:
        await asyncio.sleep(0.1)
    findings.expect_equal("exit status of a server in an endless graph", process.returncode, None)
    took_s = await _ends_after(process, signal.SIGTERM, signal.SIGTERM)
    what = "from two SIGTERM in an endless graph to the server's end, s"
    findings.expect_below(what, took_s, ENDS_WITHIN_S, ".1f")


async def _ends_after(process: asyncio.subprocess.Process, *signals: signal.Signals) -> float | None:
    """Send signals, a moment apart; returns the seconds until the process has ended, or None after the limit."""
    began = time.monotonic()
    for number in signals:
        if process.returncode is None:
            process.send_signal(number)
        await asyncio.sleep(0.5)
    try:
        await asyncio.wait_for(process.wait(), ENDS_WITHIN_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    return time.monotonic() - began
