"""Parameters of a translation, a scoring or an alignment, and their deadline."""

import time
from concurrent.futures import CancelledError
from dataclasses import dataclass

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_serve.interrupts import check
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.terms import TermFinder

MAX_TIMEOUT_S = 1e9
"""Longer timeouts, such as integers beyond every float, are cut to it."""


def deadline_after(timeout_s: float | None) -> float | None:
    """Return the time `timeout_s` seconds ahead, in ``time.monotonic()`` seconds; None stays None.

    Raises:
        InvalidArgumentError: ``timeout_s`` is not a number of seconds above 0.
    """
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise InvalidArgumentError(
            f"timeout_s must be a number of seconds above 0, got {timeout_s!r}", field="timeout_s"
        )
    return time.monotonic() + min(timeout_s, MAX_TIMEOUT_S)


class Deadline:
    """Deadline of work done in parts, which its caller may also cancel.

    Args:
        at: time in ``time.monotonic()`` seconds; None: no deadline.
    """

    def __init__(self, at: float | None) -> None:
        self._at = at
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the work; may be called from another thread."""
        self._cancelled = True

    def of_part(self) -> "Deadline":
        """Return the deadline of a part of the work, which is cancelled by itself."""
        return Deadline(self._at)

    def check(self, doing: str) -> None:
        """Raise if the work was cancelled or is late.

        `doing` names the present part of the work in the message.

        Raises:
            CancelledError: of ``concurrent.futures``, the work was cancelled.
            DeadlineExceededError: the deadline has passed.
        """
        if self._cancelled:
            raise CancelledError
        check(self._at, doing)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParameters:
    """Languages, truncation and deadline: the parameters that all tasks share.

    Attributes:
        source_language: language of the texts; None or empty: the model's default.
        target_language: language of the translations; None or empty: the model's default.
        truncate: True to cut texts that are longer than the model's limit, instead of refusing them.
        deadline: last moment for the results, in `time.monotonic()` seconds; None: no limit.
        caller: key of the caller; callers share the engine by work.

    Raises:
        InvalidArgumentError: a language is not a string.
    """

    source_language: str | None = None
    target_language: str | None = None
    truncate: bool = False
    deadline: float | None = None
    caller: str = ""

    def __post_init__(self) -> None:
        for role, tag in (("source", self.source_language), ("target", self.target_language)):
            if tag is not None and not isinstance(tag, str):
                field = f"{role}_language_code"
                raise InvalidArgumentError(f"{field} must be a string, got {type(tag).__name__}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationParameters(TextParameters):
    """Parameters of a translation, one set for all texts of a request.

    Attributes:
        options: decoding options.
        attention: True to add cross-attention to every hypothesis.
        split_sentences: True to translate the sentences of each text one by one.
        later_sentences: sentences of the same request that come later; their work is checked now.
        cut_long_sentences: True to cut sentences that are too long for the model into parts; None: if sentences are
            split and texts are not truncated.
        copy_unreadable: True to copy sentences that have nothing that the model can read.
        markup: markup of the texts; None: plain.
        markup_rules: rules for its elements.
        terms: finds the terms of a text; None: there are none.
    """

    options: DecodingOptions = DecodingOptions()  # noqa: RUF009 - frozen
    attention: bool = False
    split_sentences: bool = False
    later_sentences: int = 0
    cut_long_sentences: bool | None = None
    copy_unreadable: bool = False
    markup: MarkupKind | None = None
    markup_rules: MarkupRules = MarkupRules()  # noqa: RUF009 - frozen
    terms: TermFinder | None = None

    def __post_init__(self) -> None:
        TextParameters.__post_init__(self)
        if self.markup not in {None, "html", "xml"}:
            raise InvalidArgumentError(f"markup must be 'html', 'xml' or None, got {self.markup!r}", field="markup")

    @property
    def cuts(self) -> bool:
        """True if long sentences are cut."""
        return (
            self.split_sentences and not self.truncate if self.cut_long_sentences is None else self.cut_long_sentences
        )

    @property
    def attends_to_hypotheses(self) -> bool:
        """True if the attention of hypotheses is computed after decoding."""
        return self.attention or bool(self.options.coverage_penalty or self.options.replace_unknowns)

    @property
    def attends(self) -> bool:
        """True if any attention is computed after decoding."""
        return self.attends_to_hypotheses or self.markup is not None

    @property
    def keeps_texts(self) -> bool:
        """True if texts are needed beside their tokens."""
        return self.terms is not None or bool(self.options.replace_unknowns)

    @property
    def in_parts(self) -> bool:
        """True if a translation is joined from parts."""
        return self.split_sentences or self.cuts or self.copy_unreadable or self.markup is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringParameters(TextParameters):
    """Parameters of a scoring.

    Attributes:
        length_penalty: exponent of the length that a sum of log-probabilities is divided by; None: the model's default.
    """

    length_penalty: float | None = None
