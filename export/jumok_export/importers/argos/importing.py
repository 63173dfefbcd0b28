"""Import of an Argos Translate package to a verified bundle."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from jumok_export.importers.argos.package import BPE, MODEL, PIECES, Package, unpack
from jumok_export.importers.ctranslate2.importing import DECODING, FolderContext, import_with_context
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.language_roles import Directions
from jumok_export.importers.options import ImportOptions
from jumok_serve.bundle.bundle import Bundle

_DECODING = DECODING.model_copy(update={"beam_size": 4, "length_penalty": 0.2})
"""Decoding of Argos Translate."""
_TAGS = {"zt": "zh-Hant", "pb": "pt-BR"}
"""Tags of codes that are Argos Translate's own."""


def import_package(source: Path, out: Path, /, **options: Unpack[ImportOptions]) -> Bundle:
    """Import an .argosmodel file, or the folder of an installed package; see `Importer`.

    The model is imported as a CTranslate2 folder. Languages are those of the metadata; the bundle decodes as Argos
    Translate does: four beams and its length penalty.

    Raises:
        CheckpointError: the package cannot be imported; lists all problems of the part that is wrong.
        ExportError, ShortlistError, VerificationError, BundleError: as `export_bundle`.
    """
    with tempfile.TemporaryDirectory(prefix="jumok-argos-") as folder:
        package = unpack(source, Path(folder))
        return import_with_context(package.folder / MODEL, out, _context(package), options)


def _context(package: Package) -> FolderContext:
    metadata, problems = package.metadata, list[str]()
    kind = metadata.get("type", "translate")
    if kind != "translate":
        problems.append(f"the package is of type {kind!r}: only 'translate' is supported")
    if not (package.folder / MODEL).is_dir():
        problems.append(f"the folder {MODEL} is missing")
    pieces, codes = package.folder / PIECES, package.folder / BPE
    if not pieces.is_file() and not codes.is_file():
        problems.append(f"its tokenizer is missing: neither {PIECES} nor {BPE} is there")
    prefix = metadata.get("target_prefix") or None
    if not isinstance(prefix, str | None):
        problems.append(f"target_prefix of metadata.json must be a token, it is {prefix!r}")
    languages = [_code(metadata, name, problems) for name in ("from_code", "to_code")]
    if problems:
        raise CheckpointError(problems)
    splitter = "none" if package.splitter is None else package.splitter
    version = metadata.get("package_version")
    return FolderContext(
        pieces=(pieces, None),
        codes=None if pieces.is_file() else codes,
        configured=Directions(source=languages[0], target=languages[1]),
        decoding=_DECODING,
        forced_first=prefix,
        name=f"argos-{languages[0]}-{languages[1]}",
        notes=(
            f"Argos package version {version}, from {languages[0]} to {languages[1]}",
            f"sentences are split by jumok for {languages[0]}, not by the package's splitter ({splitter})",
        ),
    )


def _code(metadata: Mapping[str, Any], name: str, problems: list[str]) -> str:
    code = metadata.get(name)
    if isinstance(code, str) and code:
        return _TAGS.get(code, code)
    problems.append(f"{name} of metadata.json must be a language code, it is {code!r}")
    return "und"
