"""The scenario of coverage-guided fuzzing: each reader in a process of its own, under libFuzzer."""

import asyncio
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common.progress import progress
from jumok_proto.file_formats import FILE_FORMATS
from tests.faults.tools.findings import Findings, Plan

READERS = {"requests": "tests.faults.guided.readers:Requests", "manifest": "tests.faults.guided.readers:Manifests"}
"""Readers, as their processes import them."""
FILE_READERS = {f"{name} files": f"tests.faults.guided.file_readers:{name}" for name in FILE_FORMATS}
UNIT_S = 60
"""Longest time of one input; it takes a millisecond otherwise."""
MEMORY_MIB = 2048
GROWTH_MIB = 128
"""Most growth of a process, with libFuzzer's corpus and its features."""
INPUTS_AGAIN, AGAIN_MIB = 2000, 4
"""Inputs that a process without libFuzzer reads again, and its most growth in two further times: 1 KiB for each."""
LONGEST, LONGEST_FILE = 2**16, 2**12
"""Bytes of an input; longer files have no other parts, and take longer."""
SMALL_PARENT = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
"""Runs a command. libFuzzer bounds the peak memory of its process. On Linux the peak of a program begins with that of
the process that started it, which may be a large one."""
ROOT = Path(__file__).parents[3]


async def guided(plan: Plan, findings: Findings) -> None:
    """Inputs that reach new code of the readers of requests and manifests, in half of the time each."""
    await _fuzz_all(READERS, plan, findings, seconds=plan.guided_s / len(READERS))


async def guided_files(plan: Plan, findings: Findings) -> None:
    """Files of each format, as many as messages, that reach new code of their readers."""
    await _fuzz_all(FILE_READERS, plan, findings, runs=plan.messages, longest=LONGEST_FILE)


async def _fuzz_all(readers: Mapping[str, str], plan: Plan, findings: Findings, **limits: Any) -> None:
    """Fuzz readers, a core for each."""
    free = asyncio.Semaphore(len(os.sched_getaffinity(0)))

    async def fuzz(name: str, reader: str) -> Findings:
        found = Findings(scenario=findings.scenario)
        async with free:
            with TemporaryDirectory(prefix="jumok-guided-") as folder:
                progress(f"{found.scenario}: {name}")
                await fuzz_reader(name, reader, Path(folder), plan.bundle, found, seed=plan.seed, **limits)
        return found

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(fuzz(name, reader)) for name, reader in readers.items()]
    findings.checks += (check for task in tasks for check in task.result().checks)


async def fuzz_reader(
    name: str,
    reader: str,
    folder: Path,
    bundle: Path,
    findings: Findings,
    *,
    seconds: float = 0,
    runs: int = -1,
    seed: int,
    longest: int = LONGEST,
) -> None:
    """Fuzz a reader, in an empty folder; an input that fails, and fails again, is a fault.

    Args:
        seconds: duration; 0: without a limit.
        runs: number of inputs; -1: without a limit.
        longest: bytes of an input.
    """
    corpus = folder / "corpus"
    corpus.mkdir()
    output = await _run(
        folder,
        "target",
        reader,
        bundle,
        corpus,
        f"-max_total_time={math.ceil(seconds)}",
        f"-runs={runs}",
        f"-seed={seed}",
        f"-timeout={UNIT_S}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-max_len={longest}",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
    )
    inputs = re.findall(r"number_of_executed_units: (\d+)", output) or re.findall(r"^#(\d+)\t", output, re.MULTILINE)
    reached = re.findall(r"cov: (\d+)", output) or ["0"]
    findings.tell(f"{name}: inputs", inputs[-1] if inputs else 0)
    findings.expect_more(f"{name}: edges that seeds reach", int(reached[0]), 0)
    findings.tell(f"{name}: edges in the end", reached[-1])
    memory = [int(found) for found in re.findall(r"rss: (\d+)Mb", output)] or [0, MEMORY_MIB]
    findings.expect_below(f"{name}: growth of memory, MiB", memory[-1] - memory[0], GROWTH_MIB, "d")
    faults = []
    for artifact in sorted(path for path in folder.iterdir() if path.is_file()):
        again = await _run(
            folder, "target", reader, bundle, artifact, f"-timeout={UNIT_S}", f"-rss_limit_mb={MEMORY_MIB}"
        )
        if "ERROR: " in again or "Traceback" in again:  # else the machine was too busy, or stopped
            progress(f"{name}: {artifact.read_bytes()!r}\n{again}")
            faults.append(artifact.name)
    if not inputs:
        faults.append(output[-2000:])
    if not faults:  # else it would end
        number = min(runs, INPUTS_AGAIN) if runs > 0 else INPUTS_AGAIN
        again = await _run(folder, "replay", reader, bundle, corpus, str(number), str(longest))
        if memory := [int(found) for found in re.findall(r"resident: (\d+) MiB", again)]:
            findings.expect_below(f"{name}: growth in two further times, MiB", memory[-1] - memory[0], AGAIN_MIB, "d")
        if "Traceback" in again or not memory:
            faults.append(again[-2000:])
    findings.expect_none(f"{name}: inputs that raise, crash, hang or fill the memory", faults)


async def _run(folder: Path, module: str, *arguments: str | Path) -> str:
    """Run a module beside this one, with temporary files in a folder; returns what it writes."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SMALL_PARENT,
        sys.executable,
        "-m",
        f"tests.faults.guided.{module}",
        *arguments,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="replace")
