"""The repository's folder, its committed Transformer, and Multi30k."""

import os
from pathlib import Path

from jumok_serve.evaluation.parallel_text import read_lines

ROOT = Path(__file__).resolve().parents[2]
TRANSFORMER = ROOT / "models" / "multi30k-en-de-transformer"
MULTI30K = Path(os.environ.get("JUMOK_MULTI30K", ROOT.parent / "shared" / "data" / "multi30k"))


def corpus(name: str) -> list[str]:
    """Read the lines of a file of Multi30k.

    Raises:
        FileNotFoundError: the corpus is not installed.
    """
    return read_lines(MULTI30K / f"{name}.gz")
