"""Options of an import, which all formats have in common."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from jumok_export.shortlists.sources import ShortlistPlan
from jumok_serve.bundle.bundle import Bundle


class ImportOptions(TypedDict, total=False):
    """Options of an import; `jumok_export.importers.huggingface.import_checkpoint` describes them."""

    precisions: Sequence[str]
    source_language: str | None
    target_language: str | None
    max_source_length: int | None
    max_target_length: int | None
    calibration: Sequence[str] | None
    shortlist: ShortlistPlan | None
    name: str | None
    version: str
    unverified: bool
    overwrite: bool
    progress: Callable[[str], None]


class Importer(Protocol):
    """Function that imports a model of one format to a bundle."""

    def __call__(self, source: Path, out: Path, /, **options: Unpack[ImportOptions]) -> Bundle:
        """Import a model.

        Raises:
            ExportError: the model cannot be imported.
        """
