"""Scores of given translations: how likely a model finds each token of them, by forced decoding."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast, overload

from jumok_proto.results import Score
from jumok_serve.engine.deadline import Patience, deadline_after
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.search.search import normalized_score
from jumok_serve.tasks.teacher_forcing import GivenTarget, TeacherForcing
from jumok_serve.tokenizers.input_processor import Source
from jumok_serve.tokenizers.tokenizer import Tokenizer


class Scoring:
    """Targets that are to be scored; nothing is computed before ``collect``.

    Args:
        manifest: of the model.
        tokenizer: of the model.
        scorer: the model.
        sources: the texts as they are read; one without content has an empty target.
        targets: token ids of a translation of each, EOS included.
        start: what the decoder is fed first.
        forced: the first token that the model is made to write, if it is.
        length_penalty: sums of log-probabilities are divided by length^length_penalty.
        patience: how long it is waited for.
    """

    def __init__(
        self,
        *,
        manifest: Manifest,
        tokenizer: Tokenizer,
        scorer: TeacherForcing,
        sources: Sequence[Source],
        targets: Sequence[Sequence[int]],
        start: int,
        forced: int | None,
        length_penalty: float,
        patience: Patience,
    ) -> None:
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._scorer = scorer
        self._sources = sources
        self._targets = targets
        self._start = start
        self._forced = forced
        self._length_penalty = length_penalty
        self._patience = patience

    def cancel(self) -> None:
        """Gives up what is not scored yet."""
        self._patience.cancel()

    def collect(self) -> list[Score]:
        """Scores the targets in this thread, and returns the scores in their order.

        Raises:
            DeadlineExceededError: the deadline has passed.
        """
        pairs = list(zip(self._sources, self._targets, strict=True))
        given = [GivenTarget(source.token_ids, self._start, target) for source, target in pairs if target]
        found = iter(self._scorer.scores(given, self._patience))
        return [self._score(source, target, next(found) if target else []) for source, target in pairs]

    def _score(self, source: Source, target: Sequence[int], token_scores: list[float]) -> Score:
        if target and target[0] == self._forced:  # the only token there can be is certain
            token_scores = [0.0, *token_scores[1:]]
        return Score(
            score=normalized_score(math.fsum(token_scores), len(target), self._length_penalty),
            tokens=tuple(self._tokenizer.tokens(target)),
            token_ids=tuple(target),
            token_scores=tuple(token_scores),
            source_token_count=len(source.token_ids),
            source_truncated=source.truncated,
            model=self._manifest.name,
            model_version=self._manifest.version,
        )


class ScoresTexts(ABC):
    """What scores translations of texts: the part of `Translator` that does."""

    @overload
    def score(  # type: ignore[overload-overlap]  # a str is a Sequence[str] to the type checker
        self,
        texts: str,
        targets: str,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        length_penalty: float | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> Score: ...

    @overload
    def score(
        self,
        texts: Sequence[str],
        targets: Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        length_penalty: float | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> list[Score]: ...

    def score(
        self,
        texts: str | Sequence[str],
        targets: str | Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        length_penalty: float | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> Score | list[Score]:
        """Scores a given translation of a text, or one of each of several, in this thread and beside the queue.

        Scores are the model's own: no option, and no constraint of the bundle's, takes part but a first token that it
        is made to write. A text without content has only the empty translation, of no tokens and with score 0.

        Args:
            texts: a text, or a sequence of them.
            targets: their translations.
            source_language: language of the texts; left out: the bundle's default.
            target_language: language of the translations; left out: the bundle's default.
            length_penalty: scores are sums of log-probabilities / length^length_penalty; None: the bundle's default.
            truncate: cut texts that are longer than the model's limit instead of refusing them; never the targets.
            timeout_s: give up after so many seconds.

        Raises:
            InvalidArgumentError: a text, a target or an option cannot be used; `field` names it.
            LanguageNotFoundError: the model does not have a language, or not this pair.
            ScoringUnavailableError: the bundle lacks the graph for it.
            DeadlineExceededError: `timeout_s` has passed.
            UnavailableError: the translator is closed.
        """
        alone = isinstance(texts, str)
        scores = self.scoring(
            [texts] if isinstance(texts, str) else texts,
            cast("Sequence[str]", [targets] if alone else targets),
            source_language=source_language,
            target_language=target_language,
            length_penalty=length_penalty,
            truncate=truncate,
            deadline=deadline_after(timeout_s),
        ).collect()
        return scores[0] if alone else scores

    @abstractmethod
    def scoring(
        self,
        texts: Sequence[str],
        targets: Sequence[str | Sequence[int]],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        length_penalty: float | None = None,
        truncate: bool = False,
        deadline: float | None = None,
    ) -> Scoring:
        """Reads texts and translations of them; `collect` of what it returns scores them.

        Args:
            texts: as in `score`.
            targets: a translation of each: a text, or the token ids of a hypothesis, which are scored as they are.
            source_language: as in `score`.
            target_language: as in `score`.
            length_penalty: as in `score`.
            truncate: as in `score`.
            deadline: in `time.monotonic()` seconds.

        Raises:
            As `score`.
        """
