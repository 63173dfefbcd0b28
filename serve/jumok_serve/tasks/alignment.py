"""Alignment: attention between given texts and translations, by teacher forcing."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jumok_proto.alignments import Alignment
from jumok_proto.attention import AlignedToken, AttentionKind, AttentionWeights, Matrix
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.sentence import Future
from jumok_serve.interrupts import Deadline
from jumok_serve.manifest.languages import Direction
from jumok_serve.runtime.graphs import Floats
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.attention_query import AttentionQuery
from jumok_serve.tasks.model import TaskModel, TextParameters, TranslationParameters
from jumok_serve.tasks.teacher_forcing import GivenTarget
from jumok_serve.tasks.translation import PendingSentences, submit_sources
from jumok_serve.tokenizers.input_processor import Source, Target


@dataclass(frozen=True, eq=False)
class PendingAlignments:
    """Texts and translations to align; `collect` computes the attention.

    Attributes:
        targets: a translation of each text; an entry None: the model's own, which the engine makes.
        forced_first: token that the model must write first, if any.
        own: the model's own translations; None: all targets are given.
    """

    model: TaskModel
    query: AttentionQuery
    direction: Direction
    sources: Sequence[Source]
    targets: Sequence[Target | None]
    start: int
    forced_first: int | None
    own: PendingSentences | None
    deadline: Deadline

    @property
    def futures(self) -> Sequence[Future[Any]]:
        """Results of the engine that `collect` needs."""
        return () if self.own is None else self.own.futures

    def cancel(self) -> None:
        """Cancel pending translations, and stop before the next batch; thread-safe."""
        self.deadline.cancel()
        if self.own is not None:
            self.own.cancel()

    def collect(self) -> list[Alignment]:
        """Wait for translations, and return attention in the order of the texts.

        The calling thread computes it.

        Raises:
            DeadlineExceededError: the deadline has passed.
            UnavailableError: the model has failed or was stopped.
            CancelledError: of `concurrent.futures`: `cancel` was called.
        """
        best = () if self.own is None else (translation.hypotheses[0] for translation in self.own.collect())
        own = (Target(hypothesis.text, hypothesis.token_ids) for hypothesis in best)
        targets = [next(own) if target is None else target for target in self.targets]
        pairs = list(zip(self.sources, targets, strict=True))
        given = [
            GivenTarget(source.token_ids, self.start, target.token_ids) for source, target in pairs if target.token_ids
        ]
        kinds = self.query.kinds
        found = iter(self.model.teacher_forcing.attention_of(kinds, given, self.query.reduce, self.deadline))
        self.model.weights.check()
        empty = [self._no_weights(kind) for kind in kinds]
        return [self._alignment(source, target, next(found) if target.token_ids else empty) for source, target in pairs]

    def _no_weights(self, kind: AttentionKind) -> Floats:
        layers, heads = self.query.selected(self.model.teacher_forcing, kind)
        return np.zeros((len(layers), len(heads), 0, 0), np.float32)

    def _alignment(self, source: Source, target: Target, found: Sequence[Floats]) -> Alignment:
        source_tokens = tuple(self._source_tokens(source))
        target_tokens = tuple(self._target_tokens(target.token_ids))
        start = AlignedToken(self.model.tokenizer.tokens([self.start])[0], special=True)
        decoder_tokens = (start, *target_tokens)[: len(target_tokens)]
        shapes = {
            "cross": (target_tokens, source_tokens),
            "encoder": (source_tokens, source_tokens),
            "decoder": (target_tokens, decoder_tokens),
        }

        def weights(kind: AttentionKind, of_kind: Floats) -> AttentionWeights:
            layers, heads = self.query.selected(self.model.teacher_forcing, kind)
            rows, columns = shapes[kind]
            return AttentionWeights(
                rows=rows,
                columns=columns,
                layers=tuple(layers),
                heads=tuple(heads),
                mean=_matrix(of_kind.mean(axis=(0, 1), dtype=np.float32)),
                by_head=tuple(tuple(map(_matrix, layer)) for layer in of_kind) if self.query.each_head else None,
            )

        by_kind = {kind: weights(kind, of_kind) for kind, of_kind in zip(self.query.kinds, found, strict=True)}
        return Alignment(
            target=target.text,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            decoder_tokens=decoder_tokens,
            cross=by_kind.get("cross"),
            encoder=by_kind.get("encoder"),
            decoder=by_kind.get("decoder"),
            source_truncated=source.truncated,
            model=self.model.manifest.name,
            model_version=self.model.manifest.version,
        )

    def _source_tokens(self, source: Source) -> Iterator[AlignedToken]:
        """Yield the tokens of a source; those around the text are special."""
        first = len(self.direction.source_prefix)
        end = len(source.token_ids) - len(self.direction.source_suffix)
        for index, (text, unknown) in enumerate(self.model.inputs.spelled(source, self.direction)):
            yield AlignedToken(text, special=not first <= index < end, unknown=unknown)

    def _target_tokens(self, token_ids: Sequence[int]) -> Iterator[AlignedToken]:
        """Yield a target's tokens; padding, start, EOS and forced first are special."""
        tokens = self.model.manifest.special_tokens
        special, lacking = {*tokens.eos, tokens.pad, tokens.start, self.start}, self.model.tokenizer.target_unknown
        for index, (token, text) in enumerate(zip(token_ids, self.model.tokenizer.tokens(token_ids), strict=True)):
            is_special = token in special or (index == 0 and token == self.forced_first)
            yield AlignedToken(text, special=is_special, unknown=token == lacking and not is_special)


def prepare_alignment(  # noqa: PLR0917 - model and engine, and the arguments of `Translator.aligning`
    model: TaskModel,
    engine: Engine,
    texts: Sequence[str],
    targets: Sequence[str | None] | None,
    query: AttentionQuery,
    parameters: TextParameters,
) -> PendingAlignments:
    """Read texts and their translations, and queue the texts that have none; see `Translator.aligning`."""
    model.check_open()
    query.check(model.manifest.name, model.teacher_forcing)
    direction = model.direction(parameters)
    options = model.resolve(DecodingOptions(), direction.forced_first, ())
    sources = model.inputs.sources(
        texts, direction, truncate=parameters.truncate, deadline=parameters.deadline, keep_unknown=True
    )
    given = model.inputs.targets_or_none(targets, sources, options.forced_first_token, parameters.deadline)
    lengths = [
        (len(source.token_ids), options.max_length if target is None else len(target.token_ids))
        for source, target in zip(sources, given, strict=True)
    ]
    query.check_size(model.teacher_forcing, lengths)
    engine.charge(parameters.caller, sum(len(target.token_ids) for target in given if target is not None))
    without = [source for source, target in zip(sources, given, strict=True) if target is None]
    own = None
    if without:
        translation = TranslationParameters(
            source_language=parameters.source_language,
            target_language=parameters.target_language,
            deadline=parameters.deadline,
            caller=parameters.caller,
        )
        own = submit_sources(model, engine, without, translation, started=time.monotonic())
    return PendingAlignments(
        model,
        query,
        direction,
        sources,
        given,
        start=model.inputs.start(direction),
        forced_first=options.forced_first_token,
        own=own,
        deadline=Deadline(parameters.deadline),
    )


def _matrix(weights: Floats) -> Matrix:
    return tuple(map(tuple, weights.tolist()))
