"""The lists of slow, long and exporting tests name tests that exist."""

from pathlib import Path

from tests.conftest import EXPORTING, LONG, SLOW

ROOT = Path(__file__).parents[2]


def test_listed_tests_exist() -> None:
    for listed in (*SLOW, *EXPORTING, *LONG):
        beginning, _, name = listed.partition("::")
        files = [path for path in ROOT.glob(f"{beginning}*") if path.is_dir() or path.suffix == ".py"]
        assert files, listed
        whole = f"{name}(" if listed in LONG else name
        assert all(f"def {whole}" in path.read_text(encoding="utf-8") for path in files if name), listed
