"""Progress messages, and the description of the machine."""

import os
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PEERS = ("jumok", "onnxruntime", "ctranslate2", "torch", "transformers")


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
