"""The benchmark of imports on tiny checkpoints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.import_memory import memory_of_tree
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


def test_pages_that_forked_processes_share_count_once() -> None:
    size = 128 * 2**20
    forks = f"import os, sys; held = b'x' * {size}; os.fork(); os.fork(); os.write(1, b'ready\\n'); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", forks], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(4):
            assert process.stdout.readline() == b"ready\n"
        anonymous, file_backed = memory_of_tree(process.pid)
        process.stdin.close()
    assert size <= anonymous * 1024 < 2 * size
    assert file_backed > 0


def test_a_process_without_others_has_the_memory_that_its_status_says() -> None:
    program = f"import sys; held = b'x' * {128 * 2**20}; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        anonymous, file_backed = memory_of_tree(process.pid)
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        process.stdin.close()
    status = {name: int(lines[name].split()[0]) for name in ("RssAnon", "RssFile")}
    assert anonymous == pytest.approx(status["RssAnon"], rel=0.1)
    assert 0 < file_backed <= 1.1 * status["RssFile"]  # other processes have some of the files, too
