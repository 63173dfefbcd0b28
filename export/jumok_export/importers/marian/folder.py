"""Files of a Marian model: an OPUS-MT release, or a student of Firefox or Bergamot."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import file_digest
from pathlib import Path
from typing import Any

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.language_roles import Directions
from jumok_export.importers.marian.binary_file import read_binary
from jumok_export.importers.marian.npz_file import read_npz
from jumok_export.importers.marian.recognition import is_model
from jumok_export.importers.marian.settings import parse_yaml
from jumok_export.importers.marian.stored import CONFIGURATION, MarianFile
from jumok_serve.files import UnusableFileError, read_file

_MOST_BYTES = 2**22
"""Bytes of a configuration."""
_CONFIGURATIONS = re.compile(r".*(decoder|config).*\.ya?ml", re.IGNORECASE)
_LISTS = re.compile(r".*vocab.*\.(yml|yaml)", re.IGNORECASE)
_PAIRS = (
    re.compile(r"\.([a-z]{2})([a-z]{2})\."),  # model.ende.intgemm.alphas.bin
    re.compile(r"(?:^|[-_.])([a-z]{2,3})-([a-z]{2,3})$"),  # the folder opus-mt-en-de
)
"""Names that name a pair of languages."""


@dataclass(frozen=True, kw_only=True)
class MarianFolder:
    """Files of a model.

    Attributes:
        path: the folder.
        model: the parameters.
        vocabularies: one of both languages, or one for source and one for target.
        pieces: SentencePiece models for vocabularies that are lists of tokens.
        shortlist: binary shortlist, if there is one.
        settings: options of decoding.
    """

    path: Path
    model: Path
    vocabularies: Sequence[Path]
    pieces: Sequence[Path] = ()
    shortlist: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of the parameters, by file name."""
        with self.model.open("rb") as stream:
            return {self.model.name: file_digest(stream, "sha256").hexdigest()}

    @property
    def languages(self) -> Directions:
        """Languages in the names of the files or of the folder."""
        names = [self.model.name, *(path.name for path in self.vocabularies), self.path.resolve().name]
        for pattern in _PAIRS:
            for name in names:
                match = pattern.search(name)
                if match is not None:
                    return Directions(source=match[1], target=match[2])
        return Directions()

    def read(self) -> tuple[MarianFile, Mapping[str, Any]]:
        """Read the parameters, and the options of training.

        Raises:
            CheckpointError: a damaged file, or no options.
        """
        try:
            file = (read_npz if self.model.suffix == ".npz" else read_binary)(self.model)
        except UnusableFileError as error:
            raise CheckpointError([f"{self.model.name} {error}"]) from error
        except OSError as error:
            raise CheckpointError([f"{self.model.name} cannot be read: {error.strerror or error}"]) from error
        beside = self.model.with_name(f"{self.model.name}.yml")
        if file.configuration:
            return file, _options(file.configuration, f"{CONFIGURATION} in {self.model.name}")
        if beside.is_file():
            return file, _options(_text(beside), beside.name)
        raise CheckpointError(
            [f"{self.model.name} holds no options of training ({CONFIGURATION}): put them beside it as {beside.name}"]
        )


def open_folder(path: Path) -> MarianFolder:
    """Find the files of a model.

    Args:
        path: the folder, or the file of the parameters in it.

    Raises:
        CheckpointError: no model, several, or missing files.
    """
    folder = path.parent if path.is_file() else path
    settings: Mapping[str, Any] = {}
    for each in sorted(folder.iterdir()):
        if _CONFIGURATIONS.fullmatch(each.name) and each.is_file():
            found = _options(_text(each), each.name)
            settings = found if "models" in found or "vocabs" in found else settings
    problems: list[str] = []
    named = [*_named(folder, settings, "models", problems)]
    models = [path] if path.is_file() else named or [file for file in sorted(folder.iterdir()) if is_model(file)]
    if len(models) != 1:
        names = ", ".join(file.name for file in models)
        problems.append(
            f"{folder} has several models, {names}: give the file of one" if models else "no model is there"
        )
    vocabularies = [*_named(folder, settings, "vocabs", problems)] or [*_vocabularies(folder)]
    if not 1 <= len(vocabularies) <= 2:
        problems.append(
            f"{folder} has {len(vocabularies)} vocabularies, and must have one of both languages or one of each: "
            "vocab.*.spm, srcvocab.*.spm and trgvocab.*.spm, or vocab.yml with source.spm and target.spm"
        )
    if problems:
        raise CheckpointError(problems)
    shortlists = [file for file in sorted(folder.glob("lex*.bin")) if file.is_file()]
    pieces = [folder / name for name in ("source.spm", "target.spm")]
    return MarianFolder(
        path=folder,
        model=models[0],
        vocabularies=vocabularies,
        pieces=pieces if all(file.is_file() for file in pieces) else (),
        shortlist=shortlists[0] if len(shortlists) == 1 else None,
        settings=settings,
    )


def _vocabularies(folder: Path) -> Iterator[Path]:
    """Vocabularies by the usual names, source first."""
    both = [*sorted(folder.glob("srcvocab*.spm")), *sorted(folder.glob("trgvocab*.spm"))]
    lists = [file for file in sorted(folder.iterdir()) if _LISTS.fullmatch(file.name)]
    sources = [file for file in lists if ".src." in file.name or "source" in file.name]
    yield from both or sorted(folder.glob("vocab*.spm")) or [*sources, *(file for file in lists if file not in sources)]


def _named(folder: Path, settings: Mapping[str, Any], option: str, problems: list[str]) -> Iterator[Path]:
    """Files that the settings name; folders in their names are left out, because releases are moved."""
    names = settings.get(option, [])
    for name in names if isinstance(names, list) else [names]:
        file = folder / Path(str(name)).name
        if file.is_file():
            yield file
        else:
            problems.append(f"{file.name} is missing, and the settings name it among {option}")


def _text(path: Path) -> str:
    try:
        return read_file(path, _MOST_BYTES).decode("utf-8", "replace")
    except (UnusableFileError, OSError) as error:
        raise CheckpointError([f"{path.name} {error}"]) from error


def _options(text: str, origin: str) -> Mapping[str, Any]:
    try:
        options = parse_yaml(text)
    except UnusableFileError as error:
        raise CheckpointError([f"{origin} {error}"]) from error
    if not isinstance(options, dict):
        raise CheckpointError([f"{origin} must hold options, it holds a {type(options).__name__}"])
    return options
