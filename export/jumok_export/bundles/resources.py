"""Memory and time of an export: estimates, and a check of the memory before it starts."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from jumok_export.errors import ExportError
from jumok_serve.runtime.process_memory import free_memory

_BASE = {"fp32": 1.0 * 2**30, "fp16": 1.0 * 2**30}
_PER_PARAMETER = {"fp32": 13.0, "fp16": 8.0, "int8": 4.0}
"""Estimated bytes of anonymous memory by precision: of any export, and for each parameter; most are sessions of ONNX
Runtime that are verified. In int8 they are for each parameter beyond the measured ones."""
_MEASURED: tuple[tuple[int, float], ...] = (
    *((0, 0.4), (61_000_000, 1.04), (238_000_000, 1.86), (615_000_000, 4.90)),
    *((1_371_000_000, 6.97), (3_345_000_000, 12.81)),
)
"""Parameters, and GiB of anonymous memory that imports of such models to int8 took on two cores.

The models are OPUS-MT, tc-big and three of NLLB, in which logits of 256,000 tokens take much; the first is for what any
takes.
"""
_BYTES_READ = 4
"""Most bytes of each parameter that this process has when a model is read; what else it has is not of the export."""
_MARGIN = 1.1
"""Multiple of the measured memory that is estimated."""
_BASE_S, _S_PER_MILLION = 11.0, {"fp32": 0.25, "fp16": 0.25, "int8": 0.165}
"""Estimated seconds of any export, and for each million parameters in each precision, on two cores.

Imports to int8 of the measured models took 22, 43 and 116 s.
"""
_STAGES = {
    "exporting the encoder": 0.011,
    "exporting the decoder": 0.009,
    "verifying fp32": 0.06,
    "quantizing to int8": 0.003,
    "comparing int8 with fp32": 0.03,
    "verifying int8": 0.043,
    "verifying int8 with native operators": 0.015,
}
"""Estimated seconds of each stage for each million parameters, on two cores.

The scorer and aligner of a large model are traced beside the others.
"""
_LONG_S = 4.0
"""Seconds from which a stage is said with an estimate."""
SMALL_PARAMETERS = 5_000_000
"""Parameters up to which a second thread of a product takes longer than its work: threads would wait for each other."""


def estimate_memory(parameters: int, precisions: Sequence[str]) -> float:
    """Estimate the anonymous memory of an export at its peak, in bytes.

    The peak is a verification: it counts sessions, and two checks at the same time or that of the longest text, which
    runs alone. A second process, which traces a graph before, takes less: it shares most pages with the first one.
    """

    def estimate(precision: str) -> float:
        if precision == "int8":
            return _MARGIN * _as_measured(parameters)
        return _BASE[precision] + parameters * _PER_PARAMETER[precision]

    return max(map(estimate, precisions))


def _as_measured(parameters: int) -> float:
    """Bytes of an import to int8, on the lines between the measured ones and beyond the last."""
    counts, gib = [count for count, _ in _MEASURED], [memory for _, memory in _MEASURED]
    beyond = max(0, parameters - counts[-1]) * _PER_PARAMETER["int8"]
    return float(np.interp(parameters, counts, gib)) * 2**30 + beyond


def estimate_seconds(parameters: int, precisions: Sequence[str]) -> float:
    """Estimate the time of an export on two cores."""
    return _BASE_S + parameters / 1e6 * sum(_S_PER_MILLION[precision] for precision in precisions)


def describe_export(parameters: int, precisions: Sequence[str]) -> str:
    """Describe what an export takes, for a progress message."""
    time = _rounded(estimate_seconds(parameters, precisions))
    memory = estimate_memory(parameters, precisions) / 2**30
    count = f"about {parameters / 1e6:.0f} million" if parameters >= 1e6 else "less than a million"
    return f"{count} parameters: this takes up to {memory:.1f} GiB of memory, and about {time}"


def _rounded(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds / 5)) * 5} seconds"
    return f"{round(seconds / 60)} minutes"


def begin_export(parameters: int, precisions: Sequence[str], progress: Callable[[str], None]) -> None:
    """Check that an export fits into memory, and say how much it takes.

    Raises:
        ExportError: it probably does not fit.
    """
    check_memory(parameters, precisions)
    progress(describe_export(parameters, precisions))


@dataclass(frozen=True)
class Progress:
    """Says each stage of an export, with an estimate if it is long.

    Attributes:
        parameters: number of the model's parameters.
        say: function that prints a message.
    """

    parameters: int
    say: Callable[[str], None]

    def __call__(self, stage: str) -> None:
        """Say a stage that begins."""
        seconds = self.parameters / 1e6 * _STAGES.get(stage, 0.0)
        self.say(stage if seconds < _LONG_S else f"{stage}: about {_rounded(seconds)}")


def check_memory(parameters: int, precisions: Sequence[str]) -> None:
    """Check that an export fits into free memory, with what this process has taken for its weights already.

    Raises:
        ExportError: it probably does not.
    """
    free, needed = free_memory(), estimate_memory(parameters, precisions)
    if free is None:
        return
    free += min(_held(), parameters * _BYTES_READ)
    if needed <= free:
        return
    alone = "" if [*precisions] == ["int8"] else ", or make int8 alone with --precision int8"
    raise ExportError(
        f"a model of about {parameters / 1e6:.0f} million parameters needs about {needed / 2**30:.1f} GiB of memory "
        f"in {', '.join(precisions)}, and {free / 2**30:.1f} GiB are free: use a machine with more memory{alone}"
    )


def _held() -> int:
    """Bytes of anonymous memory of this process, swapped ones included; 0 if the system does not say."""
    try:
        content = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return sum(
        int(size) * 1024 for size in re.findall(r"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB$", content, re.MULTILINE)
    )


@contextmanager
def useful_threads(parameters: int) -> Iterator[None]:
    """Use one thread of PyTorch for small models within this context."""
    before = torch.get_num_threads()
    if parameters <= SMALL_PARAMETERS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
