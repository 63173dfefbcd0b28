"""Trained models of PyPI packages: their texts, their installation, and the comparison of one of them."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.pypi_models import PACKAGES
from tests.support.hang import HANG_S

ROOT = Path(__file__).parents[2]
FASTEST = "tg2fa-translit"
MOST_LINES = 25
"""Of the function that maps a package's weights."""


@pytest.mark.parametrize("name", PACKAGES)
def test_texts_are_the_same_for_a_seed_and_differ(name: str) -> None:
    package = PACKAGES[name]
    texts = package.texts(1, 400)
    assert texts == package.texts(1, 400)
    assert len(set(texts)) == 400
    assert set(texts[:50]) != set(package.texts(2, 50))


@pytest.mark.parametrize("name", PACKAGES)
def test_mappings_are_short(name: str) -> None:
    module = sys.modules[PACKAGES[name].mapped.__module__]
    for function in (module.mapped, getattr(module, "model_of", module.mapped)):
        head = 2  # signature and docstring
        assert len(inspect.getsource(function).splitlines()) - head <= MOST_LINES, function


@pytest.mark.slow
def test_a_packages_model_answers_as_the_package_does(tmp_path: Path) -> None:
    try:
        PACKAGES[FASTEST].install(tmp_path)
    except subprocess.CalledProcessError:
        pytest.skip(f"pip cannot install {FASTEST} here")
    file = tmp_path / "results.json"
    arguments = ["--packages", FASTEST, "--inputs", "60", "--folder", str(tmp_path), "--json", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.real_models", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(file.read_text(encoding="utf-8"))
    assert result["fp32"] == result["served"] == result["inputs"] == 60
    assert 0 < result["int8"] <= 60
    assert FASTEST in done.stdout
