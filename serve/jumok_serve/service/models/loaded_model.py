"""Protocols of a model and its jobs, as the service uses them."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from jumok_proto.alignments import Alignment
from jumok_proto.results import Score
from jumok_serve.engine.future import Future
from jumok_serve.engine.statistics import EngineCounters, Load
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.tasks.attention_query import AttentionQuery
from jumok_serve.tasks.parameters import ScoringParameters, TextParameters, TranslationParameters
from jumok_serve.tasks.translation import PendingTexts


class Scoring(Protocol):
    """Translations to score."""

    def cancel(self) -> None:
        """Cancel the scoring, from any thread."""

    def pieces(self) -> Generator[int, None, list[Score]]:
        """Score all, in the threads that ask for the next piece; yields the work of each piece before it is done."""


class Aligning(Protocol):
    """Translations to align, given or still to be decoded."""

    @property
    def futures(self) -> Sequence[Future[Any]]:
        """One future for each translation to be decoded."""

    def cancel(self) -> None:
        """Cancel the alignment, from any thread."""

    def collect(self) -> list[Alignment]:
        """Align all in the calling thread, after the futures are done."""


class LoadedModel(Protocol):
    """A model that is ready for requests."""

    @property
    def manifest(self) -> Manifest:
        """Manifest of its bundle."""

    @property
    def precision(self) -> str:
        """Precision variant."""

    @property
    def device(self) -> str:
        """Device that it runs on."""

    def submit(
        self,
        texts: Sequence[str],
        parameters: TranslationParameters,
        *,
        target_prefixes: Sequence[str | None] | None = None,
        on_progress: Callable[[], None] | None = None,
    ) -> PendingTexts:
        """Queue texts, [n], with forced beginnings of their translations, [n] or None.

        ``on_progress`` is called from any thread when stable texts may have grown.
        """

    def scoring(self, texts: Sequence[str], targets: Sequence[str], parameters: ScoringParameters) -> Scoring:
        """Tokenize texts and their translations for scoring."""

    def aligning(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None,
        query: AttentionQuery,
        parameters: TextParameters,
    ) -> Aligning:
        """Tokenize texts and their translations for alignment, and queue texts without a translation."""

    def is_full(self, caller: str) -> bool:
        """True if its queue takes no more texts of a caller."""

    def is_crowded(self, caller: str) -> bool:
        """True if the rest of its queue is kept for single calls, or for other callers."""

    @property
    def ready(self) -> bool:
        """True if its engine decodes; False while it restarts after a failure."""

    def on_ready_change(self, callback: Callable[[], None], /) -> None:
        """Call ``callback``, in any thread, after every change of ``ready``."""

    def load(self) -> Load:
        """Queued and running work."""

    def counters(self) -> EngineCounters:
        """Counters of its engine."""

    def close(self, *, drain: bool = True) -> None:
        """Stop its engine."""
