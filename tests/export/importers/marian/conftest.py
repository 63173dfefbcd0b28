"""Bundles of small Marian models, made once a run."""

import shutil
from pathlib import Path

import pytest

from jumok_export.importers.marian.importing import import_marian
from jumok_export.importers.options import ImportOptions
from tests.conftest import Made
from tests.support.checkpoints.marian_folders import write_release
from tests.support.data import MODELS

SHORT: ImportOptions = {"max_source_length": 40, "max_target_length": 64}
"""Limits with which verification takes seconds."""
IN_FP32: ImportOptions = {**SHORT, "precisions": ("fp32",)}


@pytest.fixture(scope="session")
def student(made_once: Made) -> Path:
    """A trained student's folder, and its bundle in the folder `bundle`, in fp32 and int8."""

    def fill(folder: Path) -> None:
        shutil.copytree(MODELS / "student", folder, dirs_exist_ok=True)
        import_marian(folder, folder / "bundle", **SHORT)

    return made_once("firefox-student", fill)


@pytest.fixture(scope="session")
def release(made_once: Made) -> Path:
    """A release's folder, opus-mt-en-de, and its bundle in the folder `bundle`, in fp32."""

    def fill(folder: Path) -> None:
        (folder / "opus-mt-en-de").mkdir()
        write_release(folder / "opus-mt-en-de")
        import_marian(folder / "opus-mt-en-de", folder / "opus-mt-en-de" / "bundle", **IN_FP32)

    return made_once("opus-release", fill) / "opus-mt-en-de"
