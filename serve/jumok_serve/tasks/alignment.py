"""Alignment: attention between given texts and translations, by teacher forcing."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jumok_proto.alignments import Alignment
from jumok_proto.attention import ATTENTION_KINDS, AlignedToken, AttentionKind, AttentionWeights, Matrix
from jumok_proto.errors import AttentionUnavailableError, InvalidArgumentError
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.sentence import Future
from jumok_serve.interrupts import Deadline
from jumok_serve.manifest.languages import Direction
from jumok_serve.runtime.graphs import Floats
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TaskModel, TextParameters, TranslationParameters
from jumok_serve.tasks.teacher_forcing import GivenTarget, TeacherForcing
from jumok_serve.tasks.translation import PendingSentences, submit_sources
from jumok_serve.tokenizers.input_processor import Source, Target

MAX_WEIGHTS = 2**23
"""Limit for all weights of a request together, if translations that are not given had the maximum length."""
NAMES: dict[AttentionKind, str] = {
    "cross": "cross-attention",
    "encoder": "self-attention in its encoder",
    "decoder": "self-attention in its decoder",
}
"""Kinds of attention, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionQuery:
    """Kinds, layers and heads of attention that a request names.

    Attributes:
        layer: index of the only layer; None: all layers.
        head: index of the only head; None: all heads.
        each_head: True to return the weights of each layer and head, besides their mean.

    Raises:
        InvalidArgumentError: a kind is unknown or repeated, or a layer or head is not an index from 0.
    """

    kinds: Sequence[AttentionKind] = ("cross",)
    layer: int | None = None
    head: int | None = None
    each_head: bool = False

    def __post_init__(self) -> None:
        known = ", ".join(ATTENTION_KINDS)
        if isinstance(self.kinds, str) or not isinstance(self.kinds, Sequence) or not self.kinds:
            raise InvalidArgumentError(
                f"kinds must be a sequence of some of {known}, got {self.kinds!r}", field="kinds"
            )
        for index, kind in enumerate(self.kinds):
            if kind not in ATTENTION_KINDS:
                raise InvalidArgumentError(f"kinds are {known}, got {kind!r}", field=f"kinds[{index}]")
            if kind in self.kinds[:index]:
                raise InvalidArgumentError(f"kinds has {kind!r} twice", field=f"kinds[{index}]")
        for name, value in (("layer", self.layer), ("head", self.head)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InvalidArgumentError(f"{name} must be a number from 0, got {value!r}", field=name)

    def check(self, model: str, aligner: TeacherForcing) -> None:
        """Check that the model has this attention.

        Raises:
            AttentionUnavailableError: the model has no aligner, or no attention of a kind.
            InvalidArgumentError: the model has no such layer or head.
        """
        if not aligner.can_align:
            raise AttentionUnavailableError.of(model)
        for kind in self.kinds:
            counts = aligner.heads(kind)
            if 0 in counts:
                raise AttentionUnavailableError.of(model, NAMES[kind])
            for name, value, count in zip(("layer", "head"), (self.layer, self.head), counts, strict=True):
                if value is not None and value >= count:
                    raise InvalidArgumentError(
                        f"{name} must be 0 to {count - 1}, got {value}: model {model!r} has no other {NAMES[kind]}",
                        field=name,
                    )

    def check_size(self, aligner: TeacherForcing, lengths: Iterable[tuple[int, int]]) -> None:
        """Check the number of weights of a request.

        Args:
            lengths: tokens of each text and of its translation.

        Raises:
            InvalidArgumentError: the number is over MAX_WEIGHTS.
        """
        matrices = {kind: 1 + self.each_head * math.prod(map(len, self.selected(aligner, kind))) for kind in self.kinds}
        weights = sum(
            count * {"cross": source * target, "encoder": source * source, "decoder": target * target}[kind]
            for source, target in lengths
            for kind, count in matrices.items()
        )
        if weights > MAX_WEIGHTS:
            raise InvalidArgumentError(
                f"the attention could be {weights} weights, more than the {MAX_WEIGHTS} of a request: send several "
                "requests, give targets, or name a layer or a head",
                field="contents",
            )

    def selected(self, aligner: TeacherForcing, kind: AttentionKind) -> tuple[range, range]:
        """Return the indices of the layers and heads."""
        layers, heads = aligner.heads(kind)
        return _one_or_all(self.layer, layers), _one_or_all(self.head, heads)

    def reduce(self, weights: Floats) -> Floats:
        """Select weights, [B, layers, heads, rows, columns], or average them over layers and heads."""
        layers, heads = _one_or_all(self.layer, weights.shape[1]), _one_or_all(self.head, weights.shape[2])
        selected = weights[:, layers.start : layers.stop, heads.start : heads.stop]
        return selected if self.each_head else selected.mean(axis=(1, 2), keepdims=True, dtype=np.float32)


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
        selected = [self.query.selected(self.model.teacher_forcing, kind) for kind in kinds]
        empty = [np.zeros((len(layers), len(heads), 0, 0), np.float32) for layers, heads in selected]
        return [self._alignment(source, target, next(found) if target.token_ids else empty) for source, target in pairs]

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
            **by_kind,
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
    engine.check_open()
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


def _one_or_all(index: int | None, count: int) -> range:
    return range(count) if index is None else range(index, index + 1)
