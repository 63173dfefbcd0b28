"""Formats that can be imported, each recognised by the files that make it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Unpack

from jumok_export.errors import ExportError
from jumok_export.importers import pytorch
from jumok_export.importers.options import Importer, ImportOptions
from jumok_export.installed import need
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.fields import MANIFEST_FILE


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


FORMATS = (
    Format(
        name="a Hugging Face checkpoint",
        files="config.json, and model.safetensors or pytorch_model.bin",
        recognises=_is_huggingface,
        importer=("jumok_export.importers.huggingface.importing", "import_checkpoint"),
        needs=("safetensors", "transformers"),
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
