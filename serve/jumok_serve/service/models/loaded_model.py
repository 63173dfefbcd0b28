"""What the service asks of a model."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jumok_proto.alignments import Alignment
from jumok_proto.results import Score
from jumok_serve.engine.counters import EngineCounters
from jumok_serve.engine.future import Future
from jumok_serve.engine.occupancy import Load
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.tasks.attention_query import AttentionQuery
from jumok_serve.tasks.parameters import ScoringParameters, TextParameters, TranslationParameters
from jumok_serve.tasks.translation import Pending


class Scoring(Protocol):
    """Translations to be scored."""

    def cancel(self) -> None:
        """Give up what is not done; may be called while they are scored."""

    def collect(self) -> list[Score]:
        """Score all, in the caller's thread."""


class Aligning(Protocol):
    """Translations to be aligned, given ones and such as are under way."""

    @property
    def futures(self) -> Sequence[Future[Any]]:
        """One for each that is under way."""

    def cancel(self) -> None:
        """Give up what is not done; may be called while they are aligned."""

    def collect(self) -> list[Alignment]:
        """Align all, in the caller's thread, once the futures are done."""


class LoadedModel(Protocol):
    """What the service asks of a translator."""

    @property
    def manifest(self) -> Manifest:
        """What the bundle says of itself."""

    @property
    def precision(self) -> str:
        """What it runs in."""

    @property
    def device(self) -> str:
        """Where it runs."""

    def submit(
        self,
        texts: Sequence[str],
        parameters: TranslationParameters,
        *,
        target_prefixes: Sequence[str | None] | None = None,
        on_progress: Callable[[], None] | None = None,
    ) -> Pending:
        """Queue texts; see `Translator.submit`."""

    def scoring(self, texts: Sequence[str], targets: Sequence[str], parameters: ScoringParameters) -> Scoring:
        """Read texts and translations of them, to score these."""

    def aligning(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None,
        query: AttentionQuery,
        parameters: TextParameters,
    ) -> Aligning:
        """Read texts and translations of them, to align these, and queue the texts without."""

    @property
    def full(self) -> bool:
        """Whether its queue has no room worth mentioning."""

    @property
    def ready(self) -> bool:
        """Whether its engine decodes: not while it is started anew after a failure."""

    def on_ready_change(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called, in any thread, whenever ``ready`` has changed."""

    def load(self) -> Load:
        """Say what waits and what is decoded now."""

    def counters(self) -> EngineCounters:
        """Say what its engine has done so far."""

    def close(self, *, drain: bool = True) -> None:
        """End its engine."""
