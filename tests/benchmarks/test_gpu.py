"""The GPU check, run on a machine without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_checks.report import Report, summary
from jumok_serve.errors import DeviceError
from jumok_serve.runtime.device import candidate_devices
from tests.support.hang import HANG_S

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"


def on_gpu() -> bool:
    try:
        candidate_devices("cuda")
    except DeviceError:
        return False
    return True


@pytest.mark.skipif(on_gpu(), reason="there is a GPU, and the check takes minutes with one")
def test_it_checks_the_same_path_without_a_gpu(half_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    corpus = ["--source", str(DATA / "train.en"), "--reference", str(DATA / "train.de")]
    command = [sys.executable, "-m", "benchmarks.gpu", "--bundle", str(half_bundle), *corpus]
    done = subprocess.run(
        [*command, "--json", str(file)], capture_output=True, text=True, timeout=HANG_S, check=False, env=None
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["about"]["provider"] == "CPUExecutionProvider"
    verdicts = {line["name"]: line["verdict"] for line in found["lines"]}
    for name in (
        "fp32 as on the CPU, beam 1",
        "fp32 as on the CPU, beam 4",
        "fp32 batch invariance",
        "fp16 batch invariance",
        "BLEU of fp16 beside fp32",
    ):
        assert verdicts.pop(name) == "passed"
    skipped = {line["name"]: line["found"] for line in found["lines"] if line["verdict"] == "skipped"}
    assert "--device cpu" in skipped.pop("CUDA")
    assert skipped.keys() == {
        "peak device memory",
        "fp32 stays on the device",
        "fp16 stays on the device",
        "Hugging Face generate fp16",
        "CTranslate2 fp16",
    }
    assert all("there is no GPU" in reason for reason in skipped.values())
    measured = {line["name"]: line["numbers"] for line in found["lines"] if line["verdict"] == "measured"}
    assert measured["fp16 step, 3 x 4"]["floor_ms"] < measured["fp16 step, 3 x 4"]["step_ms"]
    assert measured["jumok fp16, 3 x 4"]["tokens_per_s"] > 0
    assert measured["engine, 4 requests outstanding"]["sentences_per_s"] > 0


def test_a_report_has_failures_and_skipped_parts() -> None:
    shown: list[str] = []
    report = Report(1000, shown.append)
    with report.part("first") as time_left:
        assert time_left
        report.check("first", True, "1 of 1", share=1.0)
    assert report.passed
    with report.part("second"):
        raise MemoryError("out of memory")
    assert not report.passed
    assert shown[-1].split() == ["FAILED", "second", "MemoryError:", "out", "of", "memory"]
    assert summary(report.lines) == "1 passed, 1 FAILED"
    assert json.loads(report.json({"provider": "none"}))["lines"][0]["numbers"] == {"share": 1.0}
    late = Report(-1, shown.append)
    with late.part("third") as time_left:
        assert not time_left
    assert (late.lines[0].verdict, late.passed) == ("skipped", True)
