"""Memory and time of an export: estimates, and a check of the memory before it starts."""

import re
from collections.abc import Sequence
from pathlib import Path

from jumok_export.errors import ExportError

_BASE, _PER_PARAMETER = 1.0 * 2**30, {"fp32": 13.0, "fp16": 8.0, "int8": 5.0}
"""Bytes of anonymous memory: of any export, and for each parameter by precision; the largest counts.

Measured on random Transformers of 75 to 620 million parameters. Most are sessions of ONNX Runtime that are verified.
"""
_BASE_S, _S_PER_MILLION = 20.0, {"fp32": 0.3, "fp16": 0.3, "int8": 0.25}
"""Seconds of any export, and for each million parameters in each precision, on two cores."""
_CGROUP = Path("/sys/fs/cgroup")


def estimate_memory(parameters: int, precisions: Sequence[str]) -> float:
    """Estimate the anonymous memory of an export at its peak, in bytes."""
    return _BASE + parameters * max(_PER_PARAMETER[precision] for precision in precisions)


def estimate_seconds(parameters: int, precisions: Sequence[str]) -> float:
    """Estimate the time of an export on two cores."""
    return _BASE_S + parameters / 1e6 * sum(_S_PER_MILLION[precision] for precision in precisions)


def describe_export(parameters: int, precisions: Sequence[str]) -> str:
    """Describe what an export takes, for a progress message."""
    minutes = estimate_seconds(parameters, precisions) / 60
    time = f"about {minutes:.0f} minutes" if minutes >= 1.5 else "about a minute" if minutes > 0.75 else "half a minute"
    memory = estimate_memory(parameters, precisions) / 2**30
    count = f"about {parameters / 1e6:.0f} million" if parameters >= 1e6 else "less than a million"
    return f"{count} parameters: this takes up to {memory:.1f} GiB of memory, and {time}"


def check_memory(parameters: int, precisions: Sequence[str]) -> None:
    """Check that an export fits into free memory.

    Raises:
        ExportError: it probably does not.
    """
    free, needed = free_memory(), estimate_memory(parameters, precisions)
    if free is None or needed <= free:
        return
    alone = "" if [*precisions] == ["int8"] else ", or make int8 alone with --precision int8"
    raise ExportError(
        f"a model of about {parameters / 1e6:.0f} million parameters needs about {needed / 2**30:.1f} GiB of memory "
        f"in {', '.join(precisions)}, and {free / 2**30:.1f} GiB are free: use a machine with more memory{alone}"
    )


def free_memory() -> int | None:
    """Bytes of memory and swap that this process may still take; None if the system does not say."""
    try:
        content = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    kib = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", content, re.MULTILINE)}
    if "MemAvailable" not in kib:
        return None
    return min([(kib["MemAvailable"] + kib.get("SwapFree", 0)) * 1024, *_left_in_group()])


def _left_in_group() -> list[int]:
    """Bytes that the control group, such as a container's, leaves; nothing without a limit."""
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="utf-8"))
        used = int((_CGROUP / "memory.current").read_text(encoding="utf-8"))
        counts = (_CGROUP / "memory.stat").read_text(encoding="utf-8")
    except (OSError, ValueError):  # "max" is no number
        return []
    reclaimable = sum(int(size) for size in re.findall(r"^(?:in)?active_file (\d+)$", counts, re.MULTILINE))
    return [limit - used + reclaimable]
