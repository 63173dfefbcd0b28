"""One text in work."""

from collections.abc import Sequence
from dataclasses import dataclass

from jumok_serve.engine.sentence import Decoded, Future
from jumok_serve.engine.statistics import Progress
from jumok_serve.tasks.teacher_forcing import GivenTarget
from jumok_serve.tasks.terms import SentenceTerms
from jumok_serve.tokenizers.input_processor import Source


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One text in work.

    Attributes:
        prompt: start token and target prefix.
        future: result of the engine; None for a text without content, which is not decoded.
        progress: tokens so far; None if the caller does not follow the progress.
        terms: terms of the text, or None.
        beam_size: beam size if terms needed a larger one, or None.
    """

    source: Source
    prompt: tuple[int, ...]
    future: Future[Decoded] | None
    progress: Progress | None = None
    terms: SentenceTerms | None = None
    beam_size: int | None = None

    def given(self, token_ids: Sequence[int]) -> GivenTarget:
        """Return a hypothesis as a target of the aligner, the target prefix included."""
        start, *prefix = self.prompt
        return GivenTarget(self.source.token_ids, start, [*prefix, *token_ids])
