"""``jumok serve`` under load and faults: restarted, killed, overloaded, fed nonsense, cut off, and left to run.

Every scenario starts servers of its own, in processes of their own, and calls them through the client SDK. A line of
the table is something that was found, beside what it had to be; the exit status is 1 where anything was not. The
committed Transformer is served, but in overload a model of OPUS-MT's size: a small one translates so much that calls of
five times as many sentences take most of the cores, which clients share, by themselves.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.processes import ServerError
from benchmarks.common.progress import described, progress
from benchmarks.common.ratios import aligned
from tests.faults.guided.scenario import guided, guided_files
from tests.faults.scenarios.attack import attack
from tests.faults.scenarios.availability import dropped, kills, rolling_restarts, rolling_update, stopped
from tests.faults.scenarios.callers import killed_callers, slow_reader
from tests.faults.scenarios.files import certificates, disks
from tests.faults.scenarios.fuzzing import fuzz
from tests.faults.scenarios.http_attack import attack_http
from tests.faults.scenarios.http_fuzzing import fuzz_http
from tests.faults.scenarios.largest_fields import largest_fields
from tests.faults.scenarios.mutated_bundles import mutated_bundles
from tests.faults.scenarios.network import broken_frames
from tests.faults.scenarios.overload import overload
from tests.faults.scenarios.sharing import sharing
from tests.faults.scenarios.soak import soak
from tests.faults.scenarios.swaps import swaps
from tests.faults.scenarios.unanswered import unanswered
from tests.faults.tools.findings import Findings, Plan
from tests.faults.tools.texts import scenes

MODELS = Path(__file__).parents[2] / "models"
BUNDLE, OTHER = MODELS / "multi30k-en-de-transformer", MODELS / "multi30k-en-de-lstm"
CORES = len(os.sched_getaffinity(0))
PACKAGES = ("jumok", "grpcio", "onnxruntime", "protobuf")
TEXTS, MOST_A_CALL = 400, 256
SCENARIOS: dict[str, Callable[[Plan, Findings], Awaitable[None]]] = {
    "restart": rolling_restarts,
    "update": rolling_update,
    "kill": kills,
    "stopped": stopped,
    "dropped": dropped,
    "overload": overload,
    "sharing": sharing,
    "unanswered": unanswered,
    "fuzz": fuzz,
    "http": fuzz_http,
    "bundles": mutated_bundles,
    "guided": guided,
    "files": guided_files,
    "network": broken_frames,
    "caller": killed_callers,
    "reader": slow_reader,
    "certificate": certificates,
    "disk": disks,
    "swap": swaps,
    "attack": attack,
    "attack-http": attack_http,
    "largest": largest_fields,
    "soak": soak,
}
OPTIONS: Sequence[tuple[str, str, Callable[[str], float], float, str]] = (
    ("restarts", "restarts", int, 3, "of each server, in each way"),
    ("messages", "messages", int, 10_000, "and files of each format, that are made at random"),
    ("guided", "guided_s", float, 120, "seconds of guided fuzzing"),
    ("overload", "overload_s", float, 20, "seconds of each overload"),
    ("sharing", "sharing_s", float, 20, "seconds of each measurement in sharing"),
    ("soak", "soak_s", float, 1200, "seconds of the soak"),
    ("attackers", "attackers", int, 8, "connections of an attack"),
    ("attack-rest", "attack_rest_s", float, 60, "seconds after attacks, before memory is read"),
    ("health-ms", "health_ms", float, 100, "longest wait for health beside the largest requests, on a quiet machine"),
    ("seed", "seed", int, 1, "of all that is random"),
)
"""Numbers: the name of the option, the field of the plan, the type, the default, and the meaning."""
AT_LEAST_1 = ("restarts", "messages", "overload", "sharing", "soak")


async def run(names: Sequence[str], plan: Plan) -> list[Findings]:
    """Run scenarios one after the other."""
    everything = []
    for name in names:
        progress(f"{name}: {(SCENARIOS[name].__doc__ or '').splitlines()[0]}")
        findings = Findings(scenario=name)
        await SCENARIOS[name](plan, findings)
        everything.append(findings)
    return everything


def table(everything: Sequence[Findings]) -> str:
    """A line for each thing that was found."""
    rows = [["scenario", "what", "found", "goal", ""]]
    for findings in everything:
        for check in findings.checks:
            verdict = "" if not check.goal else "passed" if check.passed else "MISSED"
            rows.append([findings.scenario, check.what, check.found, check.goal, verdict])
    return aligned(rows)


def main() -> int:
    """Run the scenarios, and print the table; the exit status."""
    parser = argparse.ArgumentParser(description="Put jumok serve under load and faults, and see that nothing is lost.")
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help=f"any of {', '.join(SCENARIOS)}; default: all of them"
    )
    for name, field, kind, default, meaning in OPTIONS:
        parser.add_argument(
            f"--{name}", dest=field, type=kind, default=default, metavar="N", help=f"{meaning}; default: {default}"
        )
    parser.add_argument("--sentences-a-call", type=int, nargs="+", metavar="N", default=[64, 8, 1], help="in overload")
    parser.add_argument("--largest", default="", metavar="PATTERN", help="of names of the largest requests")
    parser.add_argument(
        "--bundle",
        type=Path,
        help="to serve; default: the committed Transformer, and in overload a Marian model of OPUS-MT's size with "
        "random weights, which is made for it in a few minutes",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make overload's model here, and use it if it is here")
    parser.add_argument("--other", type=Path, default=OTHER, help="to swap it with; default: the committed LSTM")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.scenarios if name not in SCENARIOS]:
        parser.error(f"there is no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    options = vars(arguments)
    if few := [name for name, field, *_ in OPTIONS if name in AT_LEAST_1 and options[field] < 1]:
        parser.error(f"--{few[0]} must be at least 1")
    if wrong := [number for number in arguments.sentences_a_call if not 1 <= number <= MOST_A_CALL]:
        parser.error(f"--sentences-a-call must be 1 to {MOST_A_CALL}, got {wrong[0]}")
    names = [name for name in SCENARIOS if not arguments.scenarios or name in arguments.scenarios]
    plan = Plan(
        bundle=(arguments.bundle or BUNDLE).resolve(),
        overloaded=arguments.bundle and arguments.bundle.resolve(),
        other=arguments.other.resolve(),
        texts=scenes(TEXTS, arguments.seed),
        sentences_a_call=arguments.sentences_a_call,
        largest=arguments.largest,
        **{field: options[field] for _, field, *_ in OPTIONS},
    )
    where = described(CORES, PACKAGES)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers are stopped then, too
    try:
        with tempfile.TemporaryDirectory(prefix="jumok-faults-") as folder:
            if "overload" in names and plan.overloaded is None:
                plan = replace(plan, overloaded=_model_of_opus_mts_size((arguments.keep or Path(folder)).resolve()))
            everything = asyncio.run(run(names, plan))
    except ServerError as error:
        print(f"faults failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(report(everything, where))
    return 0 if all(findings.passed for findings in everything) else 1


def _model_of_opus_mts_size(folder: Path) -> Path:
    """The bundle of a model, which is made in the folder where it is not there."""
    from benchmarks.common.models import served_random
    from benchmarks.common.random_marian import MarianSizes

    return served_random(MarianSizes(), folder / "marian-load").bundle


def report(everything: Sequence[Findings], where: dict[str, Any]) -> str:
    """Format the findings and the setup."""
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    return (
        f"{where['cores']} cores of {where['processor']}; {versions}; load before: {where['load_before']}\n\n"
        + table(everything)
    )


if __name__ == "__main__":
    sys.exit(main())
