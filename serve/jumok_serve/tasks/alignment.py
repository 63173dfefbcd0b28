"""Alignment of texts with translations: which tokens a model attends to, by forced decoding."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, cast, overload

import numpy as np

from jumok_proto.alignments import AlignedToken, Alignment, AttentionKind, AttentionWeights, Matrix
from jumok_serve.engine.deadline import Patience, deadline_after
from jumok_serve.engine.future import Future
from jumok_serve.manifest.languages import Direction
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.runtime.graphs import Floats
from jumok_serve.tasks.attention_query import AttentionQuery
from jumok_serve.tasks.teacher_forcing import GivenTarget, TeacherForcing
from jumok_serve.tasks.translation import Pending
from jumok_serve.tokenizers.input_processor import Source, Target
from jumok_serve.tokenizers.tokenizer import Tokenizer


class Aligning:
    """Texts and translations that are to be aligned; attention is not computed before ``collect``.

    Args:
        manifest: of the model.
        tokenizer: of the model.
        aligner: the model.
        query: what is asked for.
        direction: what it translates from and to.
        start: what the decoder is fed first.
        forced: the first token that the model is made to write, if it is.
        sources: the texts as they are read.
        targets: a translation of each; None: the model's own is under way.
        pending: these; None: there is none.
        patience: how long it is waited for.

    Attributes:
        futures: to be waited for before ``collect``, which otherwise does.
    """

    def __init__(
        self,
        *,
        manifest: Manifest,
        tokenizer: Tokenizer,
        aligner: TeacherForcing,
        query: AttentionQuery,
        direction: Direction,
        start: int,
        forced: int | None,
        sources: Sequence[Source],
        targets: Sequence[Target | None],
        pending: Pending | None,
        patience: Patience,
    ) -> None:
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._aligner = aligner
        self._query = query
        self._direction = direction
        self._start = start
        self._forced = forced
        self._sources = sources
        self._targets = targets
        self._pending = pending
        self._patience = patience
        self.futures: tuple[Future[Any], ...] = () if pending is None else pending.futures

    def cancel(self) -> None:
        """Gives up what is not translated or aligned yet."""
        self._patience.cancel()
        if self._pending is not None:
            self._pending.cancel()

    def collect(self) -> list[Alignment]:
        """Waits for translations, computes attention in this thread, and returns it in the order of the texts.

        Raises:
            DeadlineExceededError: the deadline has passed.
            UnavailableError: the model has failed or was stopped.
        """
        best = () if self._pending is None else (answer.hypotheses[0] for answer in self._pending.collect())
        own = (Target(hypothesis.text, hypothesis.token_ids) for hypothesis in best)
        targets = [next(own) if target is None else target for target in self._targets]
        pairs = list(zip(self._sources, targets, strict=True))
        given = [
            GivenTarget(source.token_ids, self._start, target.token_ids) for source, target in pairs if target.token_ids
        ]
        kinds = self._query.kinds
        found = iter(self._aligner.attention_of(kinds, given, self._query.reduce, self._patience))
        nothing = [self._no_weights(kind) for kind in kinds]
        return [
            self._alignment(source, target, next(found) if target.token_ids else nothing) for source, target in pairs
        ]

    def _no_weights(self, kind: AttentionKind) -> Floats:
        layers, heads = self._query.chosen(self._aligner, kind)
        return np.zeros((len(layers), len(heads), 0, 0), np.float32)

    def _alignment(self, source: Source, target: Target, found: Sequence[Floats]) -> Alignment:
        source_tokens = tuple(self._source_tokens(source.token_ids))
        target_tokens = tuple(self._target_tokens(target.token_ids))
        start = AlignedToken(self._tokenizer.tokens([self._start])[0], special=True)
        decoder_tokens = (start, *target_tokens)[: len(target_tokens)]
        shapes = {
            "cross": (target_tokens, source_tokens),
            "encoder": (source_tokens, source_tokens),
            "decoder": (target_tokens, decoder_tokens),
        }

        def weights(kind: AttentionKind, of_kind: Floats) -> AttentionWeights:
            layers, heads = self._query.chosen(self._aligner, kind)
            rows, columns = shapes[kind]
            return AttentionWeights(
                rows=rows,
                columns=columns,
                layers=tuple(layers),
                heads=tuple(heads),
                mean=_matrix(of_kind.mean(axis=(0, 1), dtype=np.float32)),
                by_head=tuple(tuple(map(_matrix, layer)) for layer in of_kind) if self._query.each_head else None,
            )

        by_kind = {kind: weights(kind, of_kind) for kind, of_kind in zip(self._query.kinds, found, strict=True)}
        return Alignment(
            target=target.text,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            decoder_tokens=decoder_tokens,
            cross=by_kind.get("cross"),
            encoder=by_kind.get("encoder"),
            decoder=by_kind.get("decoder"),
            source_truncated=source.truncated,
            model=self._manifest.name,
            model_version=self._manifest.version,
        )

    def _source_tokens(self, token_ids: Sequence[int]) -> Iterator[AlignedToken]:
        """Those that the language puts around a text are special."""
        first = len(self._direction.source_prefix)
        end = len(token_ids) - len(self._direction.source_suffix)
        for place, text in enumerate(self._tokenizer.source_tokens(token_ids)):
            yield AlignedToken(text, special=not first <= place < end)

    def _target_tokens(self, token_ids: Sequence[int]) -> Iterator[AlignedToken]:
        """Special are those that end it, that never stand in it, and the one that it is made to begin with."""
        tokens = self._manifest.special_tokens
        special = {*tokens.eos, tokens.pad, tokens.start, self._start}
        for place, (token, text) in enumerate(zip(token_ids, self._tokenizer.tokens(token_ids), strict=True)):
            yield AlignedToken(text, special=token in special or (place == 0 and token == self._forced))


class AlignsTexts(ABC):
    """What aligns texts with translations of them: the part of `Translator` that does."""

    @overload
    def align(  # type: ignore[overload-overlap]  # a str is a Sequence[str] to the type checker
        self,
        texts: str,
        targets: str | None = None,
        *,
        kinds: Sequence[AttentionKind] = ("cross",),
        layer: int | None = None,
        head: int | None = None,
        each_head: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> Alignment: ...

    @overload
    def align(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None = None,
        *,
        kinds: Sequence[AttentionKind] = ("cross",),
        layer: int | None = None,
        head: int | None = None,
        each_head: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> list[Alignment]: ...

    def align(
        self,
        texts: str | Sequence[str],
        targets: str | Sequence[str | None] | None = None,
        *,
        kinds: Sequence[AttentionKind] = ("cross",),
        layer: int | None = None,
        head: int | None = None,
        each_head: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> Alignment | list[Alignment]:
        """Gives the attention of a text and a translation of it, or of several, computed in this thread.

        Args:
            texts: a text, or a sequence of them.
            targets: their translations; without one, or with an empty one, a text is aligned with the best translation
                that the model finds with its default options.
            kinds: which attention: "cross", "encoder", "decoder"; see `jumok_proto.alignments.AttentionKind`.
            layer: that of one layer alone, counted from 0.
            head: that of one head alone, counted from 0.
            each_head: give each layer's and head's, besides the mean over them.
            source_language: language of the texts; left out: the bundle's default.
            target_language: language of the translations; left out: the bundle's default.
            truncate: cut texts that are longer than the model's limit instead of refusing them; never the targets.
            timeout_s: give up after so many seconds.

        Raises:
            InvalidArgumentError: a text, a target or what is asked for cannot be used, or would have more than
                `jumok_serve.tasks.attention_query.MAX_WEIGHTS` weights in all; `field` names it.
            LanguageNotFoundError: the model does not have a language, or not this pair.
            AttentionUnavailableError: the bundle lacks the graph for it, or the model has no such attention.
            OverloadedError: the queue is full.
            DeadlineExceededError: `timeout_s` has passed.
            UnavailableError: the translator is closed.
        """
        alone = isinstance(texts, str)
        alignments = self.aligning(
            [texts] if isinstance(texts, str) else texts,
            cast("Sequence[str | None] | None", [targets] if alone else targets),
            AttentionQuery(kinds=kinds, layer=layer, head=head, each_head=each_head),
            source_language=source_language,
            target_language=target_language,
            truncate=truncate,
            deadline=deadline_after(timeout_s),
        ).collect()
        return alignments[0] if alone else alignments

    @abstractmethod
    def aligning(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None,
        query: AttentionQuery,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        truncate: bool = False,
        deadline: float | None = None,
    ) -> Aligning:
        """Reads texts and translations of them, and queues those texts that have none.

        Args:
            texts: as in `align`.
            targets: a translation of each, or None; None: there is none of any.
            query: which attention.
            source_language: as in `align`.
            target_language: as in `align`.
            truncate: as in `align`.
            deadline: in `time.monotonic()` seconds.

        Raises:
            As `align`.
        """


def _matrix(weights: Floats) -> Matrix:
    return tuple(map(tuple, weights.tolist()))
