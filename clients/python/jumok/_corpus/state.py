"""The state of a corpus call: texts read, sent, answered and returned.

If a call breaks, the next call sends its unanswered texts again, so no text is lost. Each text takes one answer, and
results are returned in the order of the texts.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Unpack

from jumok._errors import way_to
from jumok._requests import TranslateParameters, corpus_settings
from jumok._responses import TextResult, read_corpus_result
from jumok._transport.servers import Servers
from jumok._validation import check_count, check_lines, check_text
from jumok_proto.errors import DeadlineExceededError, InternalError, InvalidArgumentError, JumokError
from jumok_proto.results import Translation
from jumok_proto.v1.translation_pb2 import CorpusItem, TranslateCorpusRequest, TranslateCorpusResponse

MAX_WINDOW = 1024
DEFAULT_WINDOW = 256
MAX_MESSAGE_ITEMS = 64
MAX_MESSAGE_CHARACTERS = 2**16


@dataclass(slots=True, eq=False)
class _Text:
    index: int
    text: str
    outcome: Translation | JumokError | None = None


class Corpus:
    """The state of one ``translate_iter``.

    Args:
        lines: the texts, whose kind is checked.
        servers: servers of the client.
        window: largest number of texts read and not returned.
        start: index of the first text.
        target_prefix: target prefix of all texts.
        timeout_s: longest time without an answer while texts are unanswered; None: the client's.
        settings: settings of all calls.

    Raises:
        InvalidArgumentError: an argument cannot be sent.

    Attributes:
        attempts: calls that failed, and the server of the current call.
        failure: error that ended the corpus, raised after the results before it.
    """

    def __init__(
        self,
        lines: object,
        servers: Servers,
        *,
        window: int,
        start: int,
        target_prefix: str | None,
        timeout_s: float | None,
        **settings: Unpack[TranslateParameters],
    ) -> None:
        self._timeout_s = servers.timeout_s(timeout_s)
        check_lines(lines)
        check_count("window", window, least=1, most=MAX_WINDOW)
        check_count("start", start, least=0)
        self._settings = corpus_settings(target_prefix=target_prefix, window=window, **settings)
        self._target_prefix = check_text("target_prefix", target_prefix or "")
        self._next_index = start
        self._window = window
        self._addresses = servers.addresses
        self._texts: deque[_Text] = deque()  # read and not returned
        self._unsent: deque[_Text] = deque()
        self._sent: dict[int, _Text] = {}  # unanswered texts of the current call
        self._ended = False
        self._call_answered = False  # in the current call
        self._end_error: BaseException | None = None
        self._waiting_since = 0.0
        self._last_error: JumokError | None = None
        self.attempts = servers.attempts(math.inf)
        self.failure: BaseException | None = None

    # --- reading ---

    @property
    def has_room(self) -> bool:
        """True if the window has room for a text."""
        return len(self._texts) < self._window

    def add(self, text: str, now: float) -> None:
        """Add the next text; one that cannot be sent has its error at once."""
        entry = _Text(self._next_index, text)
        self._next_index += 1
        self._texts.append(entry)
        try:
            check_text("content", text)
        except InvalidArgumentError as error:
            entry.outcome = error
            return
        if not self._has_unanswered:
            self._waiting_since = now
        self._unsent.append(entry)

    def end(self, error: BaseException | None = None) -> None:
        """End the texts, with the error that ended them early."""
        self._ended = True
        self._end_error = error

    # --- calling ---

    @property
    def _has_unanswered(self) -> bool:
        return bool(self._unsent or self._sent)

    @property
    def needs_call(self) -> bool:
        """True if there are texts to send; for use while no call runs."""
        return bool(self._unsent)

    @property
    def all_answered(self) -> bool:
        """True if no text will be sent any more."""
        return self.failure is not None or (self._ended and not self._has_unanswered)

    @property
    def can_send(self) -> bool:
        """True if the current call can send its next message, or its end.

        The second message waits for the first response, so that the server can refuse the settings before
        more texts are sent.
        """
        return self._call_answered and (bool(self._unsent) or self._ended)

    @property
    def all_sent(self) -> bool:
        """True if the current call has no more to send."""
        return self._ended and not self._unsent

    def begin_call(self, now: float) -> None:
        """Begin a call, which sends all unanswered texts."""
        self.attempts.begin(now)
        self._call_answered = False

    def take(self, *, first: bool) -> TranslateCorpusRequest:
        """Make the next message of a call, with all texts that fit.

        Only the first message has the settings.
        """
        request = TranslateCorpusRequest(settings=self._settings if first else None)
        characters = 0
        while self._unsent and len(request.items) < MAX_MESSAGE_ITEMS:
            characters += len(self._unsent[0].text)
            if request.items and characters > MAX_MESSAGE_CHARACTERS:
                break
            entry = self._unsent.popleft()
            self._sent[entry.index] = entry
            request.items.append(CorpusItem(id=entry.index, content=entry.text, target_prefix=self._target_prefix))
        return request

    def receive(self, response: TranslateCorpusResponse, now: float) -> None:
        """Record answers of the current call; raise InternalError for an answer to no text."""
        for result in response.results:
            entry = self._sent.pop(result.id, None)
            if entry is None:
                raise InternalError(f"the server answered item {result.id}, which waits for no answer")
            entry.outcome = read_corpus_result(result)
        self._call_answered = True
        if not response.results:  # the settings are accepted, and no text is answered
            return
        self._waiting_since = now
        self._last_error = None
        self.attempts.succeeded()

    def call_ended(self, error: JumokError | None, now: float) -> float:
        """End the current call and give the seconds to wait before the next."""
        unanswered = [entry for entry in self._texts if entry.outcome is None]
        self._unsent = deque(unanswered)
        self._sent.clear()
        if error is None:
            if unanswered:
                self.failure = InternalError(f"the server ended a corpus with {len(unanswered)} texts unanswered")
            return 0.0
        self._last_error = error
        delay_s = self.attempts.failed(error, now)
        if delay_s is None:
            self.failure = error
        return delay_s or 0.0

    # --- returning ---

    def remaining_s(self, now: float) -> float | None:
        """Give the seconds until ``check_time`` fails; None if all texts are answered."""
        return max(self._waiting_since + self._timeout_s - now, 0.0) if self._has_unanswered else None

    def check_time(self, now: float) -> None:
        """End the corpus if no answer came for ``timeout_s``."""
        if self.failure is None and self.remaining_s(now) == 0.0:
            server = self._addresses[self.attempts.endpoint]
            through, directly = way_to(server)
            self.failure = self._last_error or DeadlineExceededError(
                f"no text was answered for {self._timeout_s:g} s by the server at {server}{through}: "
                f"raise the timeout (timeout_s, --timeout), or see 'jumok health'{directly}"
            )

    @property
    def has_result(self) -> bool:
        """True if ``take_result`` has a result, or the end."""
        ready = bool(self._texts) and self._texts[0].outcome is not None
        return ready or self.failure is not None or (self._ended and not self._texts)

    def take_result(self) -> TextResult | None:
        """Return the next result, or None after the last.

        The failure is raised after the results before it.
        """
        if self._texts and (outcome := self._texts[0].outcome) is not None:
            entry = self._texts.popleft()
            return TextResult(index=entry.index, text=entry.text, outcome=outcome)
        error = self.failure or self._end_error
        if error is not None:
            raise error
        return None
