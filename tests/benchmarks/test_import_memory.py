"""The benchmark of imports on tiny checkpoints."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.hang import HANG_S

ROOT = Path(__file__).parents[2]


def test_it_compares_imports_with_conversions(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.import_memory",
        "--quick",
        "--folder",
        str(tmp_path),
        "--json",
        str(file),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text(encoding="utf-8"))
    shapes = ("tiny-marian", "tiny-nllb")
    assert [(each["shape"], each["program"]) for each in results] == [
        (shape, program) for shape in shapes for program in ("jumok", "CTranslate2")
    ]
    for each in results:
        assert 0 < each["result_gb"] < 0.1
        assert each["seconds"] > 0
        assert 0.01 < each["anonymous_gib"] < 4
        assert each["file_backed_gib"] > 0
    assert "comparing int8 with fp32" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
