"""Results of streams: updates of one translation, and results of many texts."""

from dataclasses import dataclass

from jumok_proto.errors import JumokError
from jumok_proto.results import Translation


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationUpdate:
    """The progress of a translation."""

    text: str
    """The stable beginning of the translation, target prefix included; in the last update the whole text."""
    added: str
    """The part of ``text`` that is new in this update; concatenated, these parts are the translation."""
    translation: Translation | None = None
    """The result with scores, tokens and timings; only in the last update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextResult:
    """The result of one text of many."""

    index: int
    """Index of the text in ``lines`` of ``translate_iter``, from 0."""
    text: str
    """The text."""
    outcome: Translation | JumokError
    """The translation, or the error."""

    @property
    def error(self) -> JumokError | None:
        """The error of the text; None if it has a translation."""
        return self.outcome if isinstance(self.outcome, JumokError) else None

    @property
    def translation(self) -> Translation:
        """The translation; raises ``error`` if there is none."""
        if isinstance(self.outcome, JumokError):
            raise self.outcome
        return self.outcome
