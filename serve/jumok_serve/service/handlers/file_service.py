"""FileService: translates the texts of files as a corpus."""

import asyncio
import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar, cast

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.v1.file_pb2 import FileLanguage, FileSettings, TranslateFileRequest, TranslateFileResponse
from jumok_serve.service.handlers.api import Api, check_texts
from jumok_serve.service.handlers.corpus import Item, Result, Stream, single_text_field_names
from jumok_serve.service.handlers.translation_service import parse_settings
from jumok_serve.service.handlers.worker_pool import MAX_INLINE_CHARACTERS, WorkerPool, submit_when_there_is_room
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import Call, Write, current_caller, current_peer, current_request_id
from jumok_serve.service.rpc.request_reader import (
    STREAM_PATIENCE_S,
    ByteBudget,
    RequestReader,
    arriving_in_time,
    check_request,
)
from jumok_serve.service.rpc.statuses import drop_frames, to_status
from jumok_serve.share import OpenCalls
from jumok_serve.text.files.document import (
    MAX_READ,
    FileDocument,
    FilePiece,
    Part,
    Text,
    known_formats,
    needed_memory,
)

MAX_OPEN_FILES = 16
"""Files that are translated at once; one caller may have half, and further ones wait."""
MAX_UPLOADS = 2
"""Files of the largest size that a caller may have in memory before they are read; further ones wait unread."""
MAX_FILES_MEMORY = 128 * 2**20
"""Bytes of memory of all files that are translated; one caller may have half, and further files wait."""
READING_THREADS = 2
TEXTS_PER_MESSAGE = 64
CHARACTERS_PER_MESSAGE = 2**16
"""Characters after which a message takes no further text."""
MAX_CHUNK = 2**18
"""Bytes of a response."""

Done = TypeVar("Done")
TextPairs: TypeAlias = Sequence[tuple[Text, str | None]]
"""Texts and their translations."""


class FileService:
    """Translates files."""

    def __init__(self, api: Api, limits: ServiceLimits) -> None:
        self._api = api
        self._limits = limits
        self._upload_s = limits.upload_s * math.ceil(limits.max_file_bytes / limits.max_message_bytes)
        self._files = OpenCalls("files", MAX_OPEN_FILES, MAX_OPEN_FILES // 2)
        self._uploads = ByteBudget(MAX_OPEN_FILES * limits.max_file_bytes, MAX_UPLOADS * limits.max_file_bytes)
        self._memory = ByteBudget(MAX_FILES_MEMORY, MAX_FILES_MEMORY // 2)
        known_formats()  # loaded before the first file
        self._reading = WorkerPool("read", threads=READING_THREADS, max_jobs=2 * MAX_OPEN_FILES)

    async def TranslateFile(self, requests: RequestReader, call: Call) -> None:  # noqa: N802
        """Read a file, translate its texts, and write it; cancellation frees all rows."""
        caller = current_caller()
        await submit_when_there_is_room(partial(self._open, caller))
        try:
            settings, data, memory = await self._receive(caller, requests)
            try:
                await self._translate(caller, settings, data, call)
            finally:
                self._memory.give_back(caller, memory)
        finally:
            self._files.close(caller)

    async def _receive(self, caller: str, requests: RequestReader) -> tuple[FileSettings, bytearray, int]:
        """Read the settings and the bytes of a file, and hold the memory that it needs, which is returned too.

        A file that arrives, or waits for memory, holds a part of the caller's uploads. So further ones stay in the
        client.
        """
        held = self._limits.max_file_bytes  # until the size of the file is known
        await self._uploads.take(caller, held)
        try:
            # A file has the time of the largest one, and each of its messages that of a request.
            async with arriving_in_time(
                self._uploads, caller, self._upload_s, "file", patience_s=STREAM_PATIENCE_S, peer=current_peer()
            ):
                settings, data = await self._read(requests)
            self._uploads.give_back(caller, held - len(data))
            held = len(data)
            memory = await _ended(
                self._reading.submit(partial(needed_memory, data, settings.name, settings.format), caller)
            )
            memory = min(memory, MAX_FILES_MEMORY // 2)  # a larger file is the only one of its caller
            await self._memory.take(caller, memory)
        finally:
            self._uploads.give_back(caller, held)
        return settings, data, memory

    async def _translate(self, caller: str, settings: FileSettings, data: bytearray, call: Call) -> None:
        translation = parse_settings(settings.translation)
        source, language = self._api.languages(translation)
        stopped, properties = threading.Event(), settings.document_properties
        steps = FileDocument.read(
            data, settings.name, settings.format, stopped.is_set, language, source=source, properties=properties
        )
        document = await _ended(self._reading.submit_pieces(steps, caller), stopped.set)
        parameters = replace(translation.parameters, markup=document.format.markup, markup_rules=document.format.rules)
        texts = _FileTexts(document, self._reading, caller, self._limits, call.write)
        await self._api.translate_corpus(
            replace(translation, parameters=parameters),
            Stream(texts.read, list, texts.write),
            deadline=call.deadline,
            stopping=asyncio.Event(),  # a file is not sent elsewhere: a server that stops finishes it
        )
        await texts.finish()

    async def _open(self, caller: str) -> None:
        self._files.open(caller)

    async def _read(self, requests: RequestReader) -> tuple[FileSettings, bytearray]:
        """Read the settings and the bytes of a file."""
        message = cast("TranslateFileRequest | None", await requests.next())
        if message is None or not message.HasField("settings"):
            raise InvalidArgumentError("the first message must carry settings", field="settings")
        settings = FileSettings()
        settings.CopyFrom(message.settings)  # a part of a message keeps all of it in memory
        translation = settings.translation
        set_fields = {descriptor.name for descriptor, _ in translation.ListFields()}
        for name in ("window", "order", "markup", "markup_rules", "attention"):
            if name in set_fields:
                raise InvalidArgumentError(f"a file has no {name}: leave it out", field=f"settings.translation.{name}")
        if translation.options.num_hypotheses > 1:
            raise InvalidArgumentError(
                "a file has one translation: leave num_hypotheses out", field="settings.translation.options"
            )
        data = bytearray()
        while True:
            check_request(message)
            data += message.file
            if len(data) > self._limits.max_file_bytes:
                raise InvalidArgumentError(
                    f"file: has more than {self._limits.max_file_bytes} bytes: split it, or raise max_file_bytes",
                    field="file",
                )
            del message  # up to a message's size, while the next one is waited for
            message = cast("TranslateFileRequest | None", await requests.next())
            if message is None:
                return settings, data
            if message.HasField("settings"):
                raise InvalidArgumentError("settings are allowed in the first message only", field="settings")


class _FileTexts:
    """The texts of a file as items of a corpus, and the results of the corpus as the translated file.

    Args:
        reading: threads that read and write for the caller.
        send: sends a message to the caller.
    """

    def __init__(
        self, document: FileDocument, reading: WorkerPool, caller: str, limits: ServiceLimits, send: Write
    ) -> None:
        self._document = document
        self._pieces = document.pieces()
        self._reading = reading
        self._caller = caller
        self._limits = limits
        self._send_message = send
        self._waiting = deque[FilePiece]()  # taken from the file, not yet written
        self._sent = 0
        self._counts = TranslateFileResponse()  # of the texts that are done
        self._languages = dict[str, FileLanguage]()  # with the sum of confidences
        self._writer = document.writer()
        self._written = bytearray()

    async def read(self, busy: Callable[[], bool]) -> list[Item] | None:
        """Return the next texts, or None after all pieces."""
        stopped = threading.Event()
        take = partial(take_pieces, self._pieces, stopped.is_set)
        taken = await _ended(self._reading.submit(take, self._caller, TEXTS_PER_MESSAGE), stopped.set)
        self._waiting += taken
        contents = [text.content for text in taken if isinstance(text, Text)]
        first, self._sent = self._sent, self._sent + len(contents)
        # One character too many is refused as all are, and takes less memory.
        most = self._limits.max_characters + 1
        return [Item(number, content[:most]) for number, content in enumerate(contents, first)] if taken else None

    async def write(self, results: Sequence[Result]) -> None:
        """Write the file as far as it is translated."""
        response = TranslateFileResponse(text_count=self._document.count)
        texts = (piece for piece in self._waiting if isinstance(piece, Text))
        translated = [
            (text, None if result.translation is None else result.translation.text)
            for text, result in zip(texts, results, strict=False)
        ]
        is_short = sum(len(text.content) for text, _ in translated) <= MAX_INLINE_CHARACTERS
        write = partial(write_texts, translated)
        written = write() if is_short else await _ended(self._reading.submit(write, self._caller, len(translated)))
        for result, of_result in zip(results, written, strict=True):
            await self._write_kept()
            text = self._waiting.popleft()
            assert isinstance(text, Text)
            self._counts.translated_count += 1
            if result.translation is not None and isinstance(of_result, str):
                self._counts.cut_sentence_count += len(result.translation.cut_sentences)
                self._counts.truncated_count += result.translation.source_truncated
                if (confidence := result.translation.source_confidence) is not None:
                    code = result.translation.source_language
                    language = self._languages.setdefault(code, FileLanguage(language_code=code))
                    language.text_count += 1
                    language.confidence += confidence
            else:
                error = self._too_long(text) or result.error if isinstance(of_result, str) else of_result
                assert error is not None
                status = to_status(error, current_request_id())
                response.problems.add(line=text.line, part=self._writer.part, error=status)
            await self._add(of_result if isinstance(of_result, str) else text.written)
        await self._write_kept()
        await self._send(response)

    async def finish(self) -> None:
        """Write what is after the last text."""
        await self._write_kept()
        self._written += await self._encode(self._writer.finish, self._document.is_packed)
        await self._send(TranslateFileResponse(text_count=self._document.count))

    def _too_long(self, text: Text) -> InvalidArgumentError | None:
        """Return the error of a text of too many characters, with their number."""
        try:
            with single_text_field_names():
                check_texts(self._limits, [text.content])
        except InvalidArgumentError as error:
            drop_frames(error)
            return error
        return None

    async def _write_kept(self) -> None:
        while self._waiting and not isinstance(self._waiting[0], Text):
            await self._add(cast("str | Part", self._waiting.popleft()))

    async def _add(self, written: str | Part) -> None:
        """Encode a part of the file, and send what fills a response: a whole file as bytes would be a copy."""
        parts: Sequence[str | Part] = [written]
        if isinstance(written, str):
            parts = [written[start : start + MAX_CHUNK] for start in range(0, len(written), MAX_CHUNK)]
        for part in parts:
            long = isinstance(part, Part) or len(part) > MAX_INLINE_CHARACTERS
            self._written += await self._encode(partial(self._writer.add, part), long and self._document.is_packed)
            await self._send_full()

    async def _encode(self, encode: Callable[[], bytes], is_long: bool) -> bytes:
        """Make bytes, in a thread if that may take long."""
        return await _ended(self._reading.submit(encode, self._caller)) if is_long else encode()

    async def _send_full(self) -> None:
        while len(self._written) > MAX_CHUNK:
            await self._send_message(TranslateFileResponse(file=bytes(self._written[:MAX_CHUNK])))
            del self._written[:MAX_CHUNK]

    async def _send(self, last: TranslateFileResponse) -> None:
        """Send all bytes; the last message has the counts so far."""
        await self._send_full()
        last.file = bytes(self._written)
        last.MergeFrom(self._counts)
        last.languages.extend(sorted(self._languages.values(), key=lambda one: -one.text_count))
        for language in last.languages:
            language.confidence /= language.text_count
        self._written.clear()
        await self._send_message(last)


async def _ended(job: "Future[Done]", stop: Callable[[], object] = lambda: None) -> Done:
    """Return the result of a job. If the call ends, wait for the end of the job, whose file is in memory until then."""
    waiting = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        stop()
        if not job.cancel():
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                waiting.exception()  # retrieved: asyncio else logs it
        raise


_NO_WORDS = re.compile(r"<[^<>]*+>|&#?\w++;|[\W_]")
"""Tags, entities and signs."""


def _has_words(markup: str) -> bool:
    return len(_NO_WORDS.sub("", markup[:MAX_READ])) > 0


def write_texts(translated: TextPairs) -> list[str | InvalidArgumentError]:
    """Return what stands in a file in place of texts, or why it cannot be written; those without a translation stay."""
    found = list[str | InvalidArgumentError]()
    for text, translation in translated:
        try:
            if translation is not None and _has_words(text.content) and not _has_words(translation):
                raise InvalidArgumentError(
                    "file: the translation has no words: translate the text yourself", field="file"
                )
            found.append(text.written if translation is None else text.write(translation))
        except InvalidArgumentError as error:
            drop_frames(error)
            found.append(error)
    return found


def take_pieces(pieces: Iterator[FilePiece], stopped: Callable[[], bool] = lambda: False) -> list[FilePiece]:
    """Return the next pieces, with a message's texts, and one piece between two of them; none at the end.

    Args:
        stopped: true if no piece is needed any more.
    """
    taken, between, texts, characters = list[FilePiece](), list[str](), 0, 0
    for piece in pieces:
        if isinstance(piece, str):
            between.append(piece)
            characters += len(piece)
        else:
            taken += "".join(between), piece
            between.clear()
        if isinstance(piece, Text):
            characters += len(piece.content)
            texts += 1
        if texts == TEXTS_PER_MESSAGE or characters >= CHARACTERS_PER_MESSAGE or stopped():
            break
    taken.append("".join(between))
    return [piece for piece in taken if piece]
