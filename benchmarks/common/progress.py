"""Progress messages, the description of the machine, and results as JSON."""

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

PEERS = ("jumok", "onnxruntime", "ctranslate2", "torch", "transformers")


@contextmanager
def quiet() -> Iterator[None]:
    """Switch off the hints and progress bars of libraries within this context."""
    from transformers.utils import logging as untyped  # noqa: PLC0415 - takes seconds

    hints: Any = untyped
    hints.set_verbosity_error()
    hints.disable_progress_bar()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def progress(message: str) -> None:
    """Print one line with the time to stderr."""
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def described(threads: int, packages: tuple[str, ...] = PEERS) -> dict[str, Any]:
    """Processor, load and package versions."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return {
        "processor": next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""),
        "cores": threads,
        "load_before": round(os.getloadavg()[0], 2),
        "versions": {name: metadata.version(name) for name in packages},
    }


def setup(threads: int, packages: tuple[str, ...] = PEERS) -> str:
    """Format processor, load and package versions as one line."""
    where = described(threads, packages)
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    return f"{where['cores']} cores of {where['processor']}; {versions}; load before: {where['load_before']}"


def write_json(path: Path | None, content: object) -> None:
    """Write results to the file of ``--json``, if it is given."""
    if path is not None:
        path.write_text(json.dumps(content, indent=2), encoding="utf-8")
