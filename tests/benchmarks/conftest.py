"""Runs of benchmarks on tiny models and texts."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.export.conftest import export_tiny, tiny_graphs, tiny_model, vocabulary
from tests.support.hang import HANG_S

__all__ = ["export_tiny", "tiny_graphs", "tiny_model", "vocabulary"]
ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests' sentences under the names of Multi30k's files."""
    folder = tmp_path_factory.mktemp("corpus")
    for language in ("en", "de"):
        lines = (DATA / f"train.{language}").read_bytes().splitlines(keepends=True)
        for part, count in (("train", None), ("val", None), ("test_2016_flickr", 5)):
            (folder / f"{part}.{language}.gz").write_bytes(gzip.compress(b"".join(lines[:count])))
        tagged = b"".join(b"<b>" + line.strip() + b"</b>\n" for line in lines[:9])
        (folder / f"tagged.{language}.gz").write_bytes(gzip.compress(tagged))
    return folder


def run(benchmark: str, *arguments: str | Path, corpus: Path | None = None) -> str:
    """Run a benchmark to its end, with a corpus in place of Multi30k; returns its output."""
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", *map(str, arguments)]
    environment = os.environ | ({} if corpus is None else {"JUMOK_MULTI30K": str(corpus)})
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
