"""Scores of given translations: how likely a model finds each token of them, by forced decoding."""

import math
from collections.abc import Sequence

from jumok_proto.results import Score
from jumok_serve.manifest import Manifest
from jumok_serve.patience import Patience
from jumok_serve.reading import Source
from jumok_serve.search.protocol import normalised
from jumok_serve.teacher_forcing import GivenTarget, TeacherForcing
from jumok_serve.tokenizer import Tokenizer


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
            DeadlineExceeded: the deadline has passed.
        """
        pairs = list(zip(self._sources, self._targets, strict=True))
        given = [GivenTarget(source.token_ids, self._start, target) for source, target in pairs if target]
        found = iter(self._scorer.scores(given, self._patience))
        return [self._score(source, target, next(found) if target else []) for source, target in pairs]

    def _score(self, source: Source, target: Sequence[int], token_scores: list[float]) -> Score:
        if target and target[0] == self._forced:  # the only token there can be is certain
            token_scores = [0.0, *token_scores[1:]]
        return Score(
            score=normalised(math.fsum(token_scores), len(target), self._length_penalty),
            tokens=tuple(self._tokenizer.tokens(target)),
            token_ids=tuple(target),
            token_scores=tuple(token_scores),
            source_token_count=len(source.token_ids),
            source_truncated=source.truncated,
            model=self._manifest.name,
            model_version=self._manifest.version,
        )
