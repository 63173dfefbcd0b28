"""What streams give: updates of one translation, and the results of many texts."""

from dataclasses import dataclass

from jumok_proto.errors import JumokError
from jumok_proto.results import Translation


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationUpdate:
    """How far a translation has come."""

    text: str
    """What the translation begins with for certain, the target prefix included; in the last update all of it."""
    added: str
    """What of ``text`` the update before did not have: written one after the other they make the translation."""
    translation: Translation | None = None
    """The result with its scores, tokens and timings; in the last update alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextResult:
    """What has become of one text of many."""

    index: int
    """Which text it is, counted from 0 in what was given to ``translate_iter``."""
    text: str
    """The text itself."""
    outcome: Translation | JumokError
    """Its translation, or why it has none."""

    @property
    def error(self) -> JumokError | None:
        """Why the text has no translation; None where it has one."""
        return self.outcome if isinstance(self.outcome, JumokError) else None

    @property
    def translation(self) -> Translation:
        """The translation; raises ``error`` where there is none."""
        if isinstance(self.outcome, JumokError):
            raise self.outcome
        return self.outcome
