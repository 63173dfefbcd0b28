"""`Translator`: a bundle, ready to translate in this process."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import TracebackType
from typing import Self

from jumok_proto.errors import (
    AttentionUnavailableError,
    InvalidArgumentError,
    SamplingUnavailableError,
    ScoringUnavailableError,
    UnavailableError,
)
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.bundle.shortlist import Shortlist
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.engine.batch import Sentence
from jumok_serve.engine.counters import EngineCounters
from jumok_serve.engine.deadline import Patience
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.engine.occupancy import Load
from jumok_serve.engine.statistics import Progress
from jumok_serve.engine.warm_up import WARM_UP, Trial
from jumok_serve.errors import BundleError
from jumok_serve.manifest.languages import Direction
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.runtime.device import CudaSettings, candidate_devices
from jumok_serve.runtime.graphs import Integers
from jumok_serve.runtime.loader import load_graphs
from jumok_serve.search import make_search
from jumok_serve.search.options import DecodingOptions, SearchOptions
from jumok_serve.tasks.alignment import Aligning, AlignsTexts
from jumok_serve.tasks.attention_query import AttentionQuery
from jumok_serve.tasks.scoring import ScoresTexts, Scoring
from jumok_serve.tasks.teacher_forcing import TeacherForcing
from jumok_serve.tasks.translation import Job, Pending, check_attention
from jumok_serve.tokenizers.input_processor import MOST_REMEMBERED, Reader
from jumok_serve.translating import TranslatesTexts

logger = logging.getLogger(__name__)


class Translator(AlignsTexts, ScoresTexts, TranslatesTexts):
    """Translates with the model of a bundle; calls may come from any number of threads and share one batch.

    Args:
        path: the bundle's folder.
        precision: a variant of the bundle, or "auto": int8 on a CPU and fp16 on CUDA, where the bundle has them.
        device: "cpu", "cuda", or "auto": CUDA if it can be used.
        cuda: how a GPU is used.
        replicas: threads that decode, each what it takes from one queue; None: as many as suit precision and device,
            see `load_graphs`. With several, the weights of encoder and decoder are in memory twice, but
            for small models, and for weights that native kernels multiply with.
        threads: threads for the operators of each replica; None: as many as make, in all replicas together, one for
            every core this process may use. A replica that works alone has the threads of all, but for small models.
        shortlist: write only those tokens that the bundle's shortlist has for a text, which is faster and changes a few
            translations. Texts in another direction than the shortlist's may be translated with all tokens.
        max_batch_tokens: bound on what is decoded at the same time; see `EngineLimits`.
        max_queue_requests: texts that may wait.
        max_queue_tokens: source tokens of the texts that may wait.

    Raises:
        BundleError: the bundle cannot be used, or lacks a shortlist; lists everything that is wrong with it.
        DeviceError: the device cannot be used; it is never replaced by another unless `device` is "auto".
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        precision: str = "auto",
        device: str = "cpu",
        cuda: CudaSettings | None = None,
        replicas: int | None = None,
        threads: int | None = None,
        shortlist: bool = False,
        max_batch_tokens: int = EngineLimits.max_batch_tokens,
        max_queue_requests: int = EngineLimits.max_queue_requests,
        max_queue_tokens: int = EngineLimits.max_queue_tokens,
    ) -> None:
        for what, number in (("replicas", replicas), ("threads", threads)):
            if number is not None and number < 1:
                raise ValueError(f"{what} must be at least 1, got {number}")
        limits = EngineLimits(
            max_batch_tokens=max_batch_tokens,
            max_queue_requests=max_queue_requests,
            max_queue_tokens=max_queue_tokens,
        )
        devices = candidate_devices(device, cuda)
        self._bundle = Bundle.open(path)
        shortlisted = self._bundle.shortlist() if shortlist else None
        self._shortlisted = shortlist
        loaded = load_graphs(self._bundle, precision, devices, replicas=replicas, threads=threads, listed=shortlist)
        self._graphs, self._device, self._precision = loaded.graphs, loaded.device, loaded.precision
        pad = self.manifest.special_tokens.pad
        self._reader = Reader(self._bundle.tokenizer, self.manifest)
        self._variant = self._bundle.variant(self._precision)
        self._teacher_forcing = TeacherForcing(
            self._graphs, self._variant, pad=pad, vocabulary=self._bundle.tokenizer.vocab_size
        )
        self._resolved = lru_cache(MOST_REMEMBERED)(partial(_resolve, self.manifest, self._bundle.tokenizer.vocab_size))
        self._listed = partial(_listed, self.manifest, shortlisted)
        self._trial = Trial(self.manifest, self._bundle.tokenizer, resolve=self._resolved, listed=self._listed)
        self._shared = loaded.shared
        self._engine = Engine(
            self._graphs,
            pad=pad,
            limits=replace(
                limits,
                max_batch_rows=loaded.max_batch_rows,
                max_alone_rows=loaded.max_alone_rows or limits.max_alone_rows,
            ),
            name=self.name,
            replicas=loaded.replicas,
            shared=loaded.shared,
            trial=self._trial.run,
        )
        self._closed = threading.Event()

    @property
    def manifest(self) -> Manifest:
        """What the bundle says of itself."""
        return self._bundle.manifest

    @property
    def name(self) -> str:
        """The model's name."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """The model's version."""
        return self.manifest.version

    @property
    def precision(self) -> str:
        """The variant that is loaded."""
        return self._precision

    @property
    def device(self) -> str:
        """Where it runs: "cpu" or "cuda"."""
        return self._device.name

    @property
    def shortlisted(self) -> bool:
        """Whether translations are made of the tokens of a shortlist."""
        return self._shortlisted

    def submit(
        self,
        texts: Sequence[str],
        options: DecodingOptions,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefixes: Sequence[str | None] | None = None,
        attention: bool = False,
        truncate: bool = False,
        deadline: float | None = None,
        on_progress: Callable[[], None] | None = None,
    ) -> Pending:
        """See `SplitsTexts`."""
        started = time.monotonic()
        if attention and not self._teacher_forcing.can_align:
            raise AttentionUnavailableError.of(self.name)
        direction = self._reader.direction(source_language, target_language)
        search_options = self._resolved(options, direction.forced_first, ())
        if search_options.sampling is not None and "sampler" not in self._variant.graphs:
            raise SamplingUnavailableError.of(self.name)
        self._engine.check_room(sum(isinstance(text, str) and bool(text.strip()) for text in texts))
        sources = self._reader.sources(texts, direction, truncate=truncate, deadline=deadline)
        prefixes = self._reader.prefixes(target_prefixes, len(texts), search_options.forced_first_token)
        if attention:
            check_attention(sources, prefixes, search_options)
        jobs, sentences = [], []
        start = (self._reader.start(direction),)
        for index, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            prompt = (*start, *prefix) if prefix else start
            future = progress = None
            if source.token_ids:
                try:
                    of_text = self._resolved(options, direction.forced_first, prefix) if prefix else search_options
                except InvalidArgumentError as error:
                    if error.field == "target_prefix":  # say of which text
                        error.field = f"target_prefixes[{index}]"
                    raise
                search = make_search(of_text, prompt[0], prefix, source.token_ids)
                progress = None if on_progress is None else Progress(on_progress)
                sentence = Sentence(
                    source_ids=source.token_ids,
                    search=search,
                    listed=self._listed(source.token_ids, direction),
                    deadline=deadline,
                    progress=progress,
                )
                sentences.append(sentence)
                future = sentence.future
            jobs.append(Job(source, prompt, future, progress))
        if on_progress is None:
            # Nobody sees which is first. Those of like lengths are encoded together, without padding, and the last to
            # run are short.
            sentences.sort(key=_source_length, reverse=True)
        self._engine.submit(sentences)
        return Pending(
            manifest=self.manifest,
            tokenizer=self._bundle.tokenizer,
            direction=direction,
            jobs=jobs,
            aligner=self._teacher_forcing if attention else None,
            patience=Patience(deadline),
            started=started,
        )

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
        """See `ScoresTexts`."""
        if self._closed.is_set():
            raise UnavailableError("the model is being stopped", retry_after_s=RETRY_AFTER_S)
        if not self._teacher_forcing.can_score:
            raise ScoringUnavailableError.of(self.name)
        direction = self._reader.direction(source_language, target_language)
        try:
            options = self._resolved(DecodingOptions(length_penalty=length_penalty), direction.forced_first, ())
        except InvalidArgumentError as error:
            error.field = "length_penalty"  # which is no part of any options here
            raise
        forced = options.forced_first_token
        sources = self._reader.sources(texts, direction, truncate=truncate, deadline=deadline)
        return Scoring(
            manifest=self.manifest,
            tokenizer=self._bundle.tokenizer,
            scorer=self._teacher_forcing,
            sources=sources,
            targets=self._reader.targets(targets, sources, forced),
            start=self._reader.start(direction),
            forced=forced,
            length_penalty=options.length_penalty,
            patience=Patience(deadline),
        )

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
        """See `AlignsTexts`."""
        if self._closed.is_set():
            raise UnavailableError("the model is being stopped", retry_after_s=RETRY_AFTER_S)
        query.check(self.name, self._teacher_forcing)
        direction = self._reader.direction(source_language, target_language)
        options = self._resolved(DecodingOptions(), direction.forced_first, ())
        sources = self._reader.sources(texts, direction, truncate=truncate, deadline=deadline)
        given = self._reader.targets_or_none(targets, sources, options.forced_first_token)
        lengths = [
            (len(source.token_ids), options.max_length if target is None else len(target.token_ids))
            for source, target in zip(sources, given, strict=True)
        ]
        query.check_size(self._teacher_forcing, lengths)
        own = [text for text, target in zip(texts, given, strict=True) if target is None]
        pending = None
        if own:
            pending = self.submit(
                own,
                DecodingOptions(),
                source_language=source_language,
                target_language=target_language,
                truncate=truncate,
                deadline=deadline,
            )
        return Aligning(
            manifest=self.manifest,
            tokenizer=self._bundle.tokenizer,
            aligner=self._teacher_forcing,
            query=query,
            direction=direction,
            start=self._reader.start(direction),
            forced=options.forced_first_token,
            sources=sources,
            targets=given,
            pending=pending,
            patience=Patience(deadline),
        )

    def warm_up(self) -> None:
        """Decodes made-up sentences of several shapes, with every session that will decode, before anybody waits.

        Raises:
            BundleError: it fails, or the model computes no numbers.
        """
        started = time.monotonic()
        shapes = [shape for shape in WARM_UP if not shape.sample or "sampler" in self._variant.graphs]
        try:
            for graphs in dict.fromkeys((self._graphs, self._shared)):
                for shape in shapes:
                    self._trial.run(graphs, shape)
        except Exception as error:
            raise BundleError(self._bundle.path, [f"decoding with it fails: {error or repr(error)}"]) from error
        logger.info("warmed up %s %s in %.2f s", self.name, self.version, time.monotonic() - started)

    @property
    def full(self) -> bool:
        """Whether its queue has no room worth mentioning."""
        return self._engine.full

    @property
    def ready(self) -> bool:
        """Whether its engine decodes: not while it is started anew after a failure."""
        return self._engine.ready

    def on_ready_change(self, tell: Callable[[], None]) -> None:
        """Has `tell` called when `ready` may have changed, in a thread of the engine; who was told before is not."""
        self._engine.on_ready_change(tell)

    def load(self) -> Load:
        """What waits and what is decoded now; all zero when idle."""
        return self._engine.load()

    def counters(self) -> EngineCounters:
        """What its engine has done so far."""
        return self._engine.counters()

    def close(self, *, drain: bool = True) -> None:
        """Finishes what was submitted (without `drain`: fails it with UnavailableError) and ends the engine's thread."""
        self._closed.set()
        self._engine.close(drain=drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(drain=error is None)


def _source_length(sentence: Sentence) -> int:
    return len(sentence.source_ids)


def _resolve(
    manifest: Manifest, vocabulary: int, options: DecodingOptions, forced_first: int | None, prefix: tuple[int, ...]
) -> SearchOptions:
    return options.resolve(
        manifest.generation,
        manifest.special_tokens,
        manifest.limits,
        vocabulary=vocabulary,
        forced_first=forced_first,
        prefix=prefix,
    )


def _listed(
    manifest: Manifest, shortlist: Shortlist | None, source_ids: Sequence[int], direction: Direction
) -> Integers | None:
    """The tokens that a text may be translated with; None: all."""
    described = manifest.shortlist
    if shortlist is None or described is None:
        return None
    if (direction.source, direction.target) != (described.source, described.target):
        return None
    return shortlist.of(source_ids)
