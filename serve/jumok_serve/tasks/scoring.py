"""Scoring: log-probabilities of given translations, by teacher forcing."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from jumok_proto.errors import InvalidArgumentError, ScoringUnavailableError
from jumok_proto.results import Score
from jumok_serve.engine.engine import Engine
from jumok_serve.interrupts import Deadline, finished
from jumok_serve.search.options import DecodingOptions, SearchOptions
from jumok_serve.search.search import normalized_score
from jumok_serve.tasks.model import ScoringParameters, TaskModel
from jumok_serve.tasks.teacher_forcing import GivenTarget
from jumok_serve.tokenizers.input_processor import Source


@dataclass(frozen=True, eq=False)
class PendingScores:
    """Targets to score; `collect` computes the scores.

    Attributes:
        sources: token ids of the texts; a text without content has an empty target.
        targets: token ids of the translations, EOS included.
        options: options with the length penalty, and with the token that the model must write first, if any.
    """

    model: TaskModel
    sources: Sequence[Source]
    targets: Sequence[Sequence[int]]
    start: int
    options: SearchOptions
    deadline: Deadline

    def cancel(self) -> None:
        """Stop before the next batch; safe in any thread."""
        self.deadline.cancel()

    def collect(self) -> list[Score]:
        """Score the targets in this thread and return the scores in their order.

        Raises:
            DeadlineExceededError: the deadline has passed.
            CancelledError: of `concurrent.futures`: `cancel` was called.
        """
        return finished(self.pieces())

    def pieces(self) -> Generator[int, None, list[Score]]:
        """Score the targets batch by batch; returns the scores as `collect` does.

        Yields:
            Before each batch: its tokens.
        """
        pairs = list(zip(self.sources, self.targets, strict=True))
        given = [GivenTarget(source.token_ids, self.start, target) for source, target in pairs if target]
        scores = yield from self.model.teacher_forcing.scores(given, self.deadline)
        self.model.weights.check()
        found = iter(scores)
        return [self._score(source, target, next(found) if target else []) for source, target in pairs]

    def _score(self, source: Source, target: Sequence[int], token_scores: list[float]) -> Score:
        if target and target[0] == self.options.forced_first_token:  # the only possible token has log-probability 0
            token_scores = [0.0, *token_scores[1:]]
        return Score(
            score=normalized_score(math.fsum(token_scores), len(target), self.options.length_penalty),
            tokens=tuple(self.model.tokenizer.tokens(target)),
            token_ids=tuple(target),
            token_scores=tuple(token_scores),
            source_token_count=len(source.token_ids),
            source_truncated=source.truncated,
            source_unknown_count=source.unknown,
            target_unknown_count=self.model.inputs.unknown_in_target(target),
            model=self.model.manifest.name,
            model_version=self.model.manifest.version,
        )


def prepare_scoring(
    model: TaskModel,
    engine: Engine,
    texts: Sequence[str],
    targets: Sequence[str | Sequence[int]],
    parameters: ScoringParameters,
) -> PendingScores:
    """Read texts and their translations; see `Translator.scoring`."""
    engine.check_open()
    if not model.teacher_forcing.can_score:
        raise ScoringUnavailableError.of(model.manifest.name)
    direction = model.direction(parameters)
    try:
        options = model.resolve(DecodingOptions(length_penalty=parameters.length_penalty), direction.forced_first, ())
    except InvalidArgumentError as error:
        error.field = "length_penalty"  # a parameter of its own here, not one of the options
        raise
    sources = model.inputs.sources(texts, direction, truncate=parameters.truncate, deadline=parameters.deadline)
    target_ids = model.inputs.targets(targets, sources, options.forced_first_token, parameters.deadline)
    engine.charge(parameters.caller, sum(map(len, target_ids)))
    return PendingScores(
        model,
        sources,
        target_ids,
        start=model.inputs.start(direction),
        options=options,
        deadline=Deadline(parameters.deadline),
    )
