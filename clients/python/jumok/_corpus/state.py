"""A corpus on its way through a server: what is read, sent, answered and given out. No waiting, no threads, no calls.

The two clients wait and call. Whatever has no answer when a call breaks is sent again in the next, so that nothing is
lost; an answer is taken once, and given out in the order of the texts.
"""

from collections import deque
from dataclasses import dataclass

from jumok._requests import corpus_settings
from jumok._responses import read_corpus_result
from jumok._results import TextResult
from jumok._transport.retry import Backoff, Endpoints
from jumok._validation import check_count, check_lines, check_text
from jumok_proto.errors import (
    CallCancelledError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    JumokError,
    UnavailableError,
)
from jumok_proto.options import Options
from jumok_proto.results import Translation
from jumok_proto.v1.translation_pb2 import CorpusItem, CorpusSettings, TranslateCorpusRequest, TranslateCorpusResponse

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
        settings: of every call.
        target_prefix: of every text.
        start: number of the first text.
        window: texts that may be read and not given out.
        timeout_s: how long nothing may be answered while something waits for it.
        max_attempts: calls that may fail before the first answer.
        endpoints: of the client.

    Attributes:
        endpoint: of the present call.
        failure: what ended it all, to be raised after the results before it.
    """

    def __init__(
        self,
        settings: CorpusSettings,
        *,
        target_prefix: str,
        start: int,
        window: int,
        timeout_s: float,
        max_attempts: int,
        endpoints: Endpoints,
    ) -> None:
        self._settings = settings
        self._target_prefix = target_prefix
        self._next_index = start
        self._window = window
        self._timeout_s = timeout_s
        self._attempts_left = max_attempts
        self._endpoints = endpoints
        self._backoff = Backoff()
        self._texts: deque[_Text] = deque()  # read and not given out
        self._unsent: deque[_Text] = deque()
        self._sent: dict[int, _Text] = {}  # in the present call, and without answer
        self._ended = False
        self._answered_any = False
        self._heard = False  # in the present call
        self._end_error: BaseException | None = None
        self._waiting_since = 0.0
        self._last_error: JumokError | None = None
        self.endpoint = 0
        self.failure: BaseException | None = None

    # --- reading ---

    @property
    def has_room(self) -> bool:
        """Whether another text may be read."""
        return len(self._texts) < self._window

    def add(self, text: str, now: float) -> None:
        """Take in the next text; one that cannot be sent has its error at once."""
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
        """No text follows; ``error`` is why, if that was no ordinary end."""
        self._ended = True
        self._end_error = error

    # --- calling ---

    @property
    def _has_unanswered(self) -> bool:
        return bool(self._unsent or self._sent)

    @property
    def needs_call(self) -> bool:
        """Whether there is something to send, while no call runs."""
        return bool(self._unsent)

    @property
    def all_answered(self) -> bool:
        """Whether nothing is to be sent any more, now or later."""
        return self.failure is not None or (self._ended and not self._has_unanswered)

    @property
    def can_go_on(self) -> bool:
        """Whether the present call, behind its first message, can send another, or its end.

        Nothing is sent before the server has said anything, so that it can say what is wrong with the settings.
        """
        return self._heard and (bool(self._unsent) or self._ended)

    @property
    def all_sent(self) -> bool:
        """Whether the present call is to send no more."""
        return self._ended and not self._unsent

    def begin_call(self, now: float) -> None:
        """Begin a call; what was sent before and has no answer is sent again in it."""
        self.endpoint = self._endpoints.pick(now)
        self._heard = False

    def take(self, *, first: bool) -> TranslateCorpusRequest:
        """The next message of a call, with as much as there is and as fits; the first has the settings."""
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
        """Take in answers of the present call; raise InternalError for one that cannot be."""
        for result in response.results:
            entry = self._sent.pop(result.id, None)
            if entry is None:
                raise InternalError(f"the server answered item {result.id}, which has no answer to come")
            entry.outcome = read_corpus_result(result)
        self._waiting_since = now
        self._answered_any = self._heard = True
        self._last_error = None
        self._backoff.reset()
        self._endpoints.succeeded(self.endpoint)

    def call_ended(self, error: JumokError | None, now: float) -> float:
        """Take note that the present call has ended; gives the seconds to wait before another."""
        unanswered = [entry for entry in self._texts if entry.outcome is None]
        self._unsent = deque(unanswered)
        self._sent.clear()
        if error is None:
            if unanswered:
                self.failure = InternalError(f"the server ended a corpus with {len(unanswered)} texts unanswered")
            return 0.0
        self._last_error = error
        elsewhere = isinstance(error, UnavailableError)
        if elsewhere:
            self._endpoints.failed(self.endpoint, now)
        if not (error.retryable or isinstance(error, CallCancelledError)):
            self.failure = error
        elif not self._answered_any:
            self._attempts_left -= 1
            if self._attempts_left <= 0:
                self.failure = error
        if elsewhere and self._endpoints.any_ready(now):
            return 0.0
        return self._backoff.delay_s(error.retry_after_s)

    # --- giving out ---

    def patience_s(self, now: float) -> float | None:
        """Seconds until ``check_time`` fails; None while nothing waits for an answer."""
        return max(self._waiting_since + self._timeout_s - now, 0.0) if self._has_unanswered else None

    def check_time(self, now: float) -> None:
        """Fail where no answer came for too long."""
        if self.failure is None and self.patience_s(now) == 0.0:
            self.failure = self._last_error or DeadlineExceededError(f"no text was answered for {self._timeout_s:g} s")

    @property
    def can_give(self) -> bool:
        """Whether ``give`` has something to say."""
        ready = bool(self._texts) and self._texts[0].outcome is not None
        return ready or self.failure is not None or (self._ended and not self._texts)

    def give(self) -> TextResult | None:
        """The next result; None after the last. Raises what ended the corpus early, after the results before that."""
        if self._texts and (outcome := self._texts[0].outcome) is not None:
            entry = self._texts.popleft()
            return TextResult(index=entry.index, text=entry.text, outcome=outcome)
        error = self.failure or self._end_error
        if error is not None:
            raise error
        return None


def make_corpus(
    lines: object,
    endpoints: Endpoints,
    *,
    window: int,
    start: int,
    source_language: str | None,
    target_language: str | None,
    target_prefix: str | None,
    attention: bool,
    truncate: bool,
    split_sentences: bool,
    model: str,
    timeout_s: float,
    max_attempts: int,
    options: Options,
) -> Corpus:
    """Begin a ``translate_iter``; raise InvalidArgumentError for what cannot be sent."""
    check_lines(lines)
    check_count("window", window, least=1, most=MAX_WINDOW)
    check_count("start", start, least=0)
    settings = corpus_settings(
        source_language=source_language,
        target_language=target_language,
        attention=attention,
        truncate=truncate,
        split_sentences=split_sentences,
        model=model,
        window=window,
        options=options,
    )
    return Corpus(
        settings,
        target_prefix=check_text("target_prefix", target_prefix or ""),
        start=start,
        window=window,
        timeout_s=timeout_s,
        max_attempts=max_attempts,
        endpoints=endpoints,
    )
