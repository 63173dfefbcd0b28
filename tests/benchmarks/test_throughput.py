"""The throughput benchmark on a tiny model."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from jumok_export.training.vocabulary import Vocabulary
from tests.support.hang import HANG_S

ROOT = Path(__file__).parents[2]


def test_it_compares_both_precisions_with_pytorch(vocabulary: Vocabulary, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/data/tiny.toml", tmp_path / "config.toml")
    (tmp_path / "tokenizer.model").write_bytes(vocabulary.model)
    source = tmp_path / "source.txt"
    source.write_text("The cat sleeps.\nThe dog runs.\nA bird sings.\n", encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.throughput", "--like", str(tmp_path), "--source", str(source)]
    settings = [
        "--set",
        "width=32",
        "--set",
        "norm='post'",
        "--sentences",
        "2",
        "--rounds",
        "3",
        "--threads",
        "1",
        "--json",
        str(tmp_path / "results.json"),
    ]
    done = subprocess.run([*command, *settings], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 sentences, greedy" in done.stdout
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    names = ["PyTorch fp32", "jumok fp32", "jumok int8"]
    expected = [(name, size) for size in (1, 2) for name in names]
    assert [(result["contender"], result["sentences_a_request"]) for result in results] == expected
    for result in results:
        assert 0 < result["lowest_ratio"] <= result["ratio"] <= result["highest_ratio"]
        if result["contender"] == "PyTorch fp32":
            assert result["lowest_ratio"] == result["highest_ratio"] == 1
        row = f"{result['tokens_a_second']:.0f}  {result['ratio']:.2f} ("
        assert row in done.stdout
