"""Settings of translations by the APIs of other services, and the files of their forms."""

from contextlib import suppress
from dataclasses import replace
from typing import Final

from google.protobuf.message import Message
from starlette.routing import Route

from jumok_proto.errors import InvalidArgumentError, JumokError
from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_proto.v1.file_pb2 import FileSettings, TranslateFileRequest, TranslateFileResponse
from jumok_proto.v1.translation_pb2 import CorpusSettings, Glossary
from jumok_serve.http.documents import Document
from jumok_serve.http.multipart import MAX_FORM_BYTES, Upload, parse_upload
from jumok_serve.http.site import TRANSLATE_FILE, Answer, Dialect, Incoming, Site, route
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.text.terms.glossary import PLACEHOLDERS

FILE_S: Final = 3600.0
"""Seconds that a file may take whose client does not wait."""
MAX_PROBLEMS: Final = 100
"""Texts without a translation that a status lists."""


def upload_route(site: Site, dialect: Dialect, path: str, answer: Answer) -> Route:
    """Make an endpoint that takes a form with a file."""
    most = site.limits.max_file_bytes + MAX_FORM_BYTES
    return route(site, replace(dialect, parse=parse_upload), path, "POST", answer, calls=TRANSLATE_FILE, max_bytes=most)


def text_parameters(
    source: str,
    target: str,
    markup: MarkupKind | None,
    rules: MarkupRules = MarkupRules(),  # noqa: B008 - frozen
    *,
    split: bool,
) -> TranslationParameters:
    """Return the parameters of a request to the APIs of other services, which keep placeholders.

    Args:
        split: True to translate sentences one by one, and to copy those that the model cannot read.
    """
    return TranslationParameters(
        source_language=source,
        target_language=target,
        placeholders=PLACEHOLDERS,
        split_sentences=split,
        markup=markup,
        markup_rules=rules,
        copy_unreadable=split,
    )


def file_settings(source: str, target: str, glossary: str = "") -> CorpusSettings:
    """Return the settings of a file's translation, with the id of a glossary if there is one."""
    stored = Glossary(stored=glossary) if glossary else None
    return CorpusSettings(
        source_language_code=source,
        target_language_code=target,
        split_sentences=True,
        copy_unreadable=True,
        keep_placeholders=True,
        glossary=stored,
    )


def uploaded(incoming: Incoming) -> Upload:
    """Take the file out of a form."""
    upload = incoming.fields.pop("file", None)
    if not isinstance(upload, Upload) or not upload.name:
        raise InvalidArgumentError("the field file is missing: send a form with a file that has a name", field="file")
    return upload


async def translate(incoming: Incoming, document: Document, upload: Upload, translation: CorpusSettings) -> None:
    """Translate a document; a failure is noted, and raised.

    Raises:
        JumokError: the file cannot be translated.
    """
    documents = incoming.site.documents

    async def write(response: Message, /, *, counted: bool = False) -> None:
        assert isinstance(response, TranslateFileResponse)
        documents.add(document, response.file)
        document.share = response.translated_count / response.text_count if response.text_count else document.share
        document.problems += [
            f"{one.part}{':' if one.part else ''}{one.line}: {one.error.message}" for one in response.problems
        ][: MAX_PROBLEMS - len(document.problems)]

    settings = FileSettings(name=upload.name, translation=translation)
    request = TranslateFileRequest(settings=settings, file=upload.content)
    error = "the translation was stopped: send the file again"
    try:
        await incoming.site.backend.stream(TRANSLATE_FILE, request, incoming.sender, write)
        error = ""
    except JumokError as failure:
        error = str(failure)
        raise
    finally:
        documents.end(document, error)


async def translate_later(incoming: Incoming, document: Document, upload: Upload, settings: CorpusSettings) -> None:
    """Translate a document whose client does not wait."""
    sender = replace(incoming.sender, timeout_s=FILE_S)
    with suppress(JumokError):
        await translate(replace(incoming, sender=sender), document, upload, settings)
