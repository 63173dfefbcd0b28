"""Measure ``jumok translate-corpus`` beside ``translate_iter``, and kill it at random moments.

Both translate the lines of one file through one server, in turns, each in a new process. The ratio of their rates is
what files, blocks and the state on disk cost. The command is then killed at random moments and started again, until
it ends; its output must be that of a job without interruption.
"""

import argparse
import asyncio
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jumok
from benchmarks.common.processes import Server, serving
from benchmarks.common.progress import described, progress
from benchmarks.common.ratios import aligned, ratio
from tests.faults.tools.texts import scenes

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "multi30k-en-de-transformer"
JUMOK = (sys.executable, "-m", "jumok")
COMMAND, WITH_BUNDLE, ITERATION = "translate-corpus --server", "translate-corpus --bundle", "translate_iter"
GOAL = 0.95
"""Goal of the command's rate as a multiple of ``translate_iter``'s."""
DIFFERENT = 2000
"""Different lines of the file."""
PACKAGES = ("jumok", "grpcio", "onnxruntime")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run over all lines.

    Attributes:
        seconds: wall time, with the start of the process.
        client_s: processor time of the process that was started.
        server_s: processor time of the server meanwhile.
        peak_mib: peak memory of the process.
    """

    seconds: float
    client_s: float
    server_s: float
    peak_mib: float


def run_job(command: Sequence[str | Path], server: Server) -> Job:
    """Run a command to its end.

    Raises:
        ChildProcessError: it failed; has its output.
    """
    server_before, began = server.cpu_s(), time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise ChildProcessError(f"{command[2]} has failed:\n{log.read().decode(errors='replace')[-4000:]}")
    return Job(
        seconds=seconds,
        client_s=usage.ru_utime + usage.ru_stime,
        server_s=server.cpu_s() - server_before,
        peak_mib=usage.ru_maxrss / 1024,
    )


def kill_and_resume(command: Sequence[str | Path], *, kills: int, blocks: int, pause_s: float, seed: int) -> int:
    """Kill a job with SIGKILL at random moments, and let it go on to its end.

    A moment is a random time after a random number of blocks of what is left.

    Args:
        command: a job of ``translate-corpus``.
        kills: number of kills.
        blocks: blocks of the whole job, at least twice the kills.
        pause_s: longest time between a finished block and the kill.
        seed: seed of the moments.

    Returns:
        The number of kills that met a running job.

    Raises:
        ChildProcessError: the job failed; has its output.
    """
    chosen = random.Random(seed)
    met = 0
    for number in range(kills):
        most = max(1, blocks // kills - 1)  # later kills find blocks that are left
        met += _kill(command, after=chosen.randint(0, most), pause_s=chosen.uniform(0, pause_s))
        progress(f"kill {number + 1} of {kills}")
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildProcessError(f"the job did not go on:\n{done.stderr[-4000:]}")
    return met


def _kill(command: Sequence[str | Path], *, after: int, pause_s: float) -> bool:
    """Run a job, and kill it some time after a number of finished blocks; returns False if it ended before."""
    with subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = (line for line in process.stderr if "rows/s" in line)
        for _ in itertools.islice(lines, after):
            pass
        try:
            process.wait(pause_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return True
        return False


def translations(server: Server, texts: Sequence[str]) -> dict[str, str]:
    """Translate each different text alone in a plain iteration."""
    with jumok.Client(server.address, timeout_s=600) as client:
        return {result.text: result.translation.text for result in client.translate_iter(list(dict.fromkeys(texts)))}


async def measure(bundle: Path, folder: Path, texts: Sequence[str], *, rounds: int, kills: int, seed: int) -> bool:
    """Measure both, kill the command, and print what was found; returns False if a line was lost or wrong."""
    source, part = folder / "source.txt", folder / "part.txt"
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    part.write_text("".join(f"{text}\n" for text in texts[: len(texts) // 10]), encoding="utf-8")
    numbers = itertools.count()

    def commands(server: Server, lines: Path) -> dict[str, list[str | Path]]:
        def job(*target: str | Path) -> list[str | Path]:
            return [*JUMOK, "translate-corpus", lines, "--out", folder / f"{next(numbers)}.txt", *target]

        return {
            ITERATION: [sys.executable, "-m", "benchmarks.scale.iterate", server.address, lines],
            COMMAND: job("--server", server.address),
            WITH_BUNDLE: job("--bundle", bundle),
        }

    async with serving("jumok", "serve", bundle, "--port", "0") as server:
        expected = await asyncio.to_thread(translations, server, texts)
        short = {
            name: await asyncio.to_thread(run_job, command, server) for name, command in commands(server, part).items()
        }
        found: dict[str, list[Job]] = {name: [] for name in short}
        whole = "".join(f"{expected[text]}\n" for text in texts)
        wrong = 0
        for number in range(rounds):
            for name, command in commands(server, source).items():
                found[name].append(await asyncio.to_thread(run_job, command, server))
                if name != ITERATION:
                    wrong += _differs(Path(command[command.index("--out") + 1]), whole)
            progress(f"round {number + 1} of {rounds}")
        print(table(found, short, len(texts)))
        if kills:
            command = commands(server, source)[COMMAND]
            blocks = -(-len(texts) // 2048)
            pause_s = found[COMMAND][0].seconds / blocks
            met = await asyncio.to_thread(
                kill_and_resume, command, kills=kills, blocks=blocks, pause_s=pause_s, seed=seed
            )
            lost = _differs(Path(command[command.index("--out") + 1]), whole)
            wrong += lost
            print(
                f"killed {met} times and resumed: {'another output' if lost else 'complete, in order, each line once'}"
            )
    return not wrong


def _differs(out: Path, whole: str) -> bool:
    return out.read_text(encoding="utf-8") != whole


def table(found: dict[str, list[Job]], short: dict[str, Job], lines: int) -> str:
    """Format rates, processor times and memory of all runs.

    Args:
        found: runs over all lines, by contender.
        short: a run over a tenth of the lines, by contender.
        lines: number of lines.
    """
    head = "program|lines|lines/s|multiple of translate_iter's|goal|client ms/line|server ms/line|peak MiB|of a tenth"
    rows = [head.split("|")]
    peers = [job.seconds for job in found[ITERATION]]
    for name, jobs in found.items():
        compared = ratio([job.seconds for job in jobs], peers)
        goal = "-" if name == ITERATION else f"{GOAL:.2f} {'met' if compared.median >= GOAL else 'missed'}"
        rows.append(
            [
                name,
                str(lines),
                f"{lines / statistics.median(job.seconds for job in jobs):.0f}",
                str(compared),
                goal,
                f"{1e3 * statistics.median(job.client_s for job in jobs) / lines:.3f}",
                f"{1e3 * statistics.median(job.server_s for job in jobs) / lines:.3f}",
                f"{max(job.peak_mib for job in jobs):.0f}",
                f"{short[name].peak_mib:.0f}",
            ]
        )
    return aligned(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table; returns the exit status."""
    parser = argparse.ArgumentParser(description="Compare jumok translate-corpus with translate_iter, and kill it.")
    parser.add_argument("--bundle", type=Path, default=MODEL, help="English to German; default: %(default)s")
    parser.add_argument("--lines", type=int, default=100_000, help="of the file; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of both; default: %(default)s")
    parser.add_argument("--kills", type=int, default=5, help="at random moments; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of lines and moments; default: %(default)s")
    options = parser.parse_args(arguments)
    if options.lines < 10 or options.rounds < 1 or options.kills < 0:
        parser.error("--lines must be at least 10, --rounds 1 and --kills 0")
    texts = list(itertools.islice(itertools.cycle(scenes(DIFFERENT, options.seed)), options.lines))
    where = described(len(os.sched_getaffinity(0)), PACKAGES)
    print(f"{where['cores']} cores of {where['processor']}; load before: {where['load_before']}")
    with tempfile.TemporaryDirectory(prefix="jumok-corpus-") as folder:
        complete = asyncio.run(
            measure(
                options.bundle.resolve(),
                Path(folder),
                texts,
                rounds=options.rounds,
                kills=options.kills,
                seed=options.seed,
            )
        )
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
