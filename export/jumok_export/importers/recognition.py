"""Formats that can be imported, each recognised by the files that make it."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Unpack

from jumok_export.errors import ExportError
from jumok_export.importers import pytorch
from jumok_export.importers.marian.recognition import FILES as MARIAN_FILES
from jumok_export.importers.marian.recognition import is_marian
from jumok_export.importers.options import Importer, ImportOptions
from jumok_export.installed import need
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.parts import MANIFEST_FILE

_HEAD_BYTES = 256
"""Bytes of a file that tell its format."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of models.

    Attributes:
        name: the format with its article, for messages.
        files: the files that make it, for messages.
        recognises: function that is True for a file or folder of the format; it looks at names and first bytes.
        importer: module and name of the function that imports it; imported when it is needed, because that takes
            seconds.
        needs: packages that the function needs beyond those of every export.
    """

    name: str
    files: str
    recognises: Callable[[Path], bool]
    importer: tuple[str, str]
    needs: Sequence[str] = ()

    def import_model(self, source: Path, out: Path, **options: Unpack[ImportOptions]) -> Bundle:
        """Import a model of this format; see `jumok_export.importers.options.Importer`.

        Raises:
            ModuleNotFoundError: a package that the format needs is not installed.
        """
        need(*self.needs)
        module, name = self.importer
        importer: Importer = getattr(import_module(module), name)
        return importer(source, out, **options)


def _is_huggingface(path: Path) -> bool:
    names = ("config.json", "adapter_config.json", "model.safetensors", "pytorch_model.bin")
    return any((path / name).is_file() for file in names for name in (file, f"{file}.index.json"))


def _is_argos(path: Path) -> bool:
    if path.is_dir():
        return (path / "metadata.json").is_file() and (path / "model").is_dir()
    return path.suffix == ".argosmodel" and path.is_file()


def _is_ctranslate2(path: Path) -> bool:
    """True if model.bin begins with a version and the name of a specification."""
    file = path / "model.bin"
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    if len(head) < 6:
        return False
    version, size = struct.unpack("<IH", head[:6])
    return 1 <= version < 100 and head[5 + size : 6 + size] == b"\0" and head[6 : 5 + size].isalnum()


FORMATS = (
    Format(
        name="a CTranslate2 folder",
        files="model.bin, a vocabulary, and SentencePiece models",
        recognises=_is_ctranslate2,
        importer=("jumok_export.importers.ctranslate2.importing", "import_folder"),
        needs=("safetensors",),
    ),
    Format(
        name="an Argos Translate package",
        files="NAME.argosmodel, or a folder with metadata.json and model",
        recognises=_is_argos,
        importer=("jumok_export.importers.argos.importing", "import_package"),
        needs=("safetensors",),
    ),
    Format(
        name="a Hugging Face checkpoint",
        files="config.json, and model.safetensors or pytorch_model.bin",
        recognises=_is_huggingface,
        importer=("jumok_export.importers.huggingface.importing", "import_checkpoint"),
        needs=("safetensors", "transformers"),
    ),
    Format(
        name="a Marian model",
        files=MARIAN_FILES,
        recognises=is_marian,
        importer=("jumok_export.importers.marian.importing", "import_marian"),
        needs=("safetensors", "yaml"),
    ),
)
"""All formats; the first that recognises a file or folder imports it."""


_OWN = (
    (MANIFEST_FILE, "a bundle already", "serve"),
    ("best.ckpt", "a run of 'jumok train'", "export --out BUNDLE"),
)
"""Folders of this project, by a file in each, with the commands that take them."""


def recognise(path: Path) -> Format:
    """Find the format of a file or folder.

    Raises:
        ExportError: no format that can be imported; says what is there, if it is known, and the way to import it.
    """
    for known in FORMATS:
        if known.recognises(path):
            return known
    foreign = pytorch.find_checkpoint(path)
    if foreign is not None:
        raise ExportError(foreign)
    if path.is_file() and any(known.recognises(path.parent) for known in FORMATS):
        raise ExportError(f"{path} is only a part of a model: give its folder, {path.parent}")
    for file, kind, command in _OWN:
        if (path / file).is_file():
            raise ExportError(f"{path} is {kind}: use 'jumok {command} {path}'")
    formats = "".join(f"\n  - {known.name}: {known.files}" for known in FORMATS)
    raise ExportError(f"{path} holds no model of a format that can be imported:{formats}")
