"""Translation of files: options, requests and results."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOENT
from os import PathLike
from pathlib import Path, PurePath
from typing import IO, Any, TypeAlias
from uuid import uuid4

from jumok._errors import item_error
from jumok._requests import corpus_settings
from jumok._validation import check_text, invalid_field
from jumok_proto.errors import InternalError, JumokError
from jumok_proto.text_options import TranslateOptions
from jumok_proto.v1.file_pb2 import FileSettings, TranslateFileRequest, TranslateFileResponse

FileSource: TypeAlias = "str | PathLike[str] | IO[bytes]"
FileTarget: TypeAlias = "str | PathLike[str] | IO[bytes]"
CHUNK = 2**18
"""Bytes of a message."""


class FileOptions(TranslateOptions, total=False):
    """Options of the translation of a file, by keyword."""

    file_format: str
    """Format of the file, as ``"srt"``; empty: by the end of its name."""
    source_language: str | None
    """Language of the texts; ``"auto"``: that of each text is detected; None: the model's default."""
    target_language: str | None
    """Language to translate into; None: the model's default."""
    truncate: bool
    """Cut texts that are too long for the model."""
    split_sentences: bool
    """Translate the sentences of each text one by one; the default."""
    model: str
    """Name of the model."""
    document_properties: bool
    """Translate title, subject, description, keywords and category of an office document or a book too."""
    timeout_s: float | None
    """Seconds for the whole file; None: no limit."""
    on_progress: Callable[[int, int], None]
    """Called with the number of translated texts and that of all, now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """A text of a file that could not be translated and stays as it is."""

    line: int
    """Its first line, from 1; in an office document the number of its paragraph in the part."""
    error: JumokError
    """The reason."""
    part: str = ""
    """Name of the archive's entry that has the line, as ``word/document.xml``; empty: the file is no archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLanguage:
    """A language that was detected in texts of a file."""

    language: str
    """The language, as a model spells it."""
    text_count: int
    """Number of texts."""
    confidence: float
    """Mean confidence of the texts, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """The result of a translated file."""

    text_count: int
    """Number of texts of the file."""
    problems: tuple[FileProblem, ...] = ()
    """Texts that could not be translated."""
    cut_sentence_count: int = 0
    """Number of sentences that were too long for the model and were cut into parts; 0 from servers without the
    count."""
    truncated_count: int = 0
    """Number of texts that were too long for the model and whose ends were left out, with ``truncate``."""
    languages: tuple[FileLanguage, ...] = ()
    """Languages of the texts if they were detected, most texts first."""


def file_requests(source: FileSource, options: FileOptions) -> list[TranslateFileRequest]:
    """Read a file, and make the requests of its translation.

    Raises:
        InvalidArgumentError, TypeError: an option cannot be used, or does not exist.
        OSError: the file cannot be read.
    """
    if options.get("markup") or options.get("markup_rules"):
        raise invalid_field("markup", "a file has the markup of its format: leave it out")
    name = source if isinstance(source, str | PathLike) else getattr(source, "name", "")
    translation: dict[str, Any] = {"split_sentences": True, **options}
    for own in ("file_format", "document_properties", "timeout_s", "on_progress"):
        translation.pop(own, None)
    settings = FileSettings(
        format=check_text("format", options.get("file_format", "")),
        name=check_text("name", PurePath(name).name) if isinstance(name, str | PathLike) else "",
        document_properties=options.get("document_properties", False),
        translation=corpus_settings(target_prefix=None, attention=False, window=0, **translation),
    )
    settings.translation.ClearField("order")
    data = Path(source).read_bytes() if isinstance(source, str | PathLike) else source.read()
    chunks = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    return [TranslateFileRequest(settings=settings), *(TranslateFileRequest(file=chunk) for chunk in chunks)]


class FileReceiver:
    """Writes a translated file, and collects its problems.

    Args:
        on_progress: see `FileOptions`.
    """

    def __init__(self, out: IO[bytes], on_progress: Callable[[int, int], None] | None) -> None:
        self._out = out
        self._on_progress = on_progress
        self._last: TranslateFileResponse | None = None
        self._problems: list[FileProblem] = []

    def receive(self, response: TranslateFileResponse) -> None:
        """Write a part of the file."""
        self._out.write(response.file)
        self._problems += [
            FileProblem(line=one.line, error=item_error(one.error), part=one.part) for one in response.problems
        ]
        if response.text_count and self._on_progress is not None:
            self._on_progress(response.translated_count, response.text_count)
        if response.text_count or self._last is None:
            self._last = response

    def result(self) -> FileResult:
        """Return the result, after the end; raise InternalError if texts are missing."""
        last = self._last
        if last is None or last.translated_count != last.text_count:
            raise InternalError("the server ended a file before the end: translate it again")
        return FileResult(
            text_count=last.text_count,
            problems=tuple(self._problems),
            cut_sentence_count=last.cut_sentence_count,
            truncated_count=last.truncated_count,
            languages=tuple(
                FileLanguage(language=one.language_code, text_count=one.text_count, confidence=one.confidence)
                for one in last.languages
            ),
        )


@contextmanager
def written(target: FileTarget) -> Iterator[IO[bytes]]:
    """Open a file to write; the file of a path is replaced once all is written, unless it is a device or a pipe.

    Raises:
        OSError: the file cannot be written.
    """
    if not isinstance(target, str | PathLike):
        yield target
        return
    path = Path(target)
    if path.exists() and not path.is_file():
        with path.open("wb") as out:
            yield out
        return
    path = path.resolve()  # a link stays a link
    if not path.parent.is_dir():
        raise FileNotFoundError(ENOENT, "the folder does not exist; create it, or choose another", str(path.parent))
    part = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    mode = path.stat().st_mode if path.exists() else None
    try:
        # What replaces a file may be for fewer eyes than a new one.
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, 0o666 if mode is None else 0o600)) as out:
            yield out
        if mode is not None:
            part.chmod(mode)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
