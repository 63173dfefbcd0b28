"""Options of an import, which all formats have in common."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypedDict, Unpack, cast

from jumok_export.bundles.alignment_heads import AlignmentText
from jumok_export.shortlists.sources import ShortlistPlan
from jumok_serve.bundle.bundle import Bundle


class BundleOptions(TypedDict, total=False):
    """Options of the bundle; `jumok_export.bundles.export.export_bundle` describes them."""

    precisions: Sequence[str]
    calibration: Sequence[str] | None
    shortlist: ShortlistPlan | None
    alignment_text: AlignmentText | None
    version: str
    unverified: bool
    overwrite: bool
    progress: Callable[[str], None]


class ImportOptions(BundleOptions, total=False):
    """Options of an import; `jumok_export.importers.huggingface.import_checkpoint` describes them."""

    source_language: str | None
    target_language: str | None
    max_source_length: int | None
    max_target_length: int | None
    name: str | None


def bundle_options(options: ImportOptions) -> BundleOptions:
    """Return the options that are the bundle's."""
    return cast(BundleOptions, {name: value for name, value in options.items() if name in _OF_BUNDLES})


_OF_BUNDLES = frozenset(BundleOptions.__annotations__)


class Importer(Protocol):
    """Function that imports a model of one format to a bundle."""

    def __call__(self, source: Path, out: Path, /, **options: Unpack[ImportOptions]) -> Bundle:
        """Import a model.

        Raises:
            ExportError: the model cannot be imported.
        """
