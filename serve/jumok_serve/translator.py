"""`Translator`: a bundle, ready to translate in this process."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypedDict, Unpack, cast, overload

from jumok_proto.alignments import Alignment
from jumok_proto.attention import AttentionKind
from jumok_proto.errors import FailedPreconditionError, GlossariesUnavailableError, naming_parameters
from jumok_proto.options import check_names
from jumok_proto.results import Score, Translation
from jumok_proto.text_options import TranslateOptions, separate, separate_terms, splits_sentences
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.engine.statistics import EngineCounters, Load
from jumok_serve.errors import BundleError
from jumok_serve.forks import check_not_inherited
from jumok_serve.interrupts import deadline_after
from jumok_serve.manifest.languages import is_auto
from jumok_serve.runtime.device import CudaSettings, candidate_devices
from jumok_serve.runtime.loader import load_graphs
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.alignment import AttentionQuery, PendingAlignments, prepare_alignment
from jumok_serve.tasks.model import (
    ScoringParameters,
    TaskModel,
    TextParameters,
    TranslationParameters,
)
from jumok_serve.tasks.scoring import PendingScores, prepare_scoring
from jumok_serve.tasks.terms import TermFinder
from jumok_serve.tasks.warm_up import WarmUp
from jumok_serve.text.detection import detect_source, group_by_language, in_order, sources_into
from jumok_serve.text.terms.glossary import placeholders_of, terminology
from jumok_serve.text.terms.store import GlossaryStore
from jumok_serve.text.translation import PendingTexts, blamed_texts, submit_texts
from jumok_serve.tokenizers.input_processor import check_count, check_text, check_texts

logger = logging.getLogger(__name__)


class _Parameters(TypedDict, total=False):
    """Parameters that all tasks share, by keyword; see `Translator.translate`."""

    source_language: str | None
    target_language: str | None
    truncate: bool
    timeout_s: float | None


class _TranslateParameters(_Parameters, TranslateOptions, total=False):
    attention: bool
    split_sentences: bool | None


class _ScoreParameters(_Parameters, total=False):
    length_penalty: float | None


class _AlignParameters(_Parameters, total=False):
    kinds: Sequence[AttentionKind]
    layer: int | None
    head: int | None
    each_head: bool


class Translator:
    """Translates with a bundle's model; calls from any number of threads share its batches.

    Make it after a fork (gunicorn's ``preload_app``, Celery, ``multiprocessing``): its threads are not forked, and a
    forked process cannot make others.

    Args:
        path: the bundle's folder.
        precision: a variant of the bundle, or "auto": int8 on a CPU and fp16 on CUDA, if the bundle has them
            and they are known to agree with fp32 well enough; see `jumok_serve.runtime.device`.
        device: "cpu", "cuda", or "auto": CUDA if it can be used.
        cuda: settings of the GPU.
        replicas: threads that decode sentences of one queue; None: chosen by precision and device, see `load_graphs`.
            With several, weights are in memory twice, except those of small models and of native kernels.
        threads: operator threads of each replica; None: one per core, divided among the replicas. If only one
            replica has work, it has the threads of all, except with small models.
        shortlist: restrict translations in the shortlist's direction to its tokens: faster, and a few change.
        limits: bounds of batches and queue.
        glossaries: stored glossaries, for the option `stored_glossary`.

    Attributes:
        manifest: the bundle's manifest.
        tokenizer: the bundle's tokenizer.
        graphs: the loaded graphs, with the threads of all replicas.
        name: the model's name.
        precision: the loaded variant.
        device: the device in use: "cpu" or "cuda".
        shortlisted: True if translations are restricted to a shortlist.

    Raises:
        BundleError: the bundle cannot be used, or has no shortlist; lists every problem.
        DeviceError: the device cannot be used; only "auto" falls back to another one.
        FailedPreconditionError: this process was forked from one that had made a translator.
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
        limits: EngineLimits = EngineLimits(),  # noqa: B008 - frozen
        glossaries: GlossaryStore | None = None,
    ) -> None:
        for name, number in (("replicas", replicas), ("threads", threads)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        check_not_inherited()
        self._process = os.getpid()
        devices = candidate_devices(device, cuda)
        self._bundle = Bundle.open(path)
        self.manifest, self.tokenizer = self._bundle.manifest, self._bundle.tokenizer
        self._glossaries = glossaries
        listed = self._bundle.shortlist() if shortlist else None
        loaded = load_graphs(self._bundle, precision, devices, replicas=replicas, threads=threads, listed=shortlist)
        self.graphs, self._shared = loaded.graphs, loaded.shared
        self.name, self.shortlisted = self.manifest.name, shortlist
        self.device, self.precision = loaded.device.name, loaded.precision
        alone_rows = loaded.max_alone_rows or limits.max_alone_rows
        self._model = TaskModel(self._bundle, loaded.precision, loaded.graphs, listed)
        self._warm_up = WarmUp(self._model)
        self._engine = Engine(
            self.graphs,
            pad=self.manifest.special_tokens.pad,
            limits=replace(limits, max_batch_rows=loaded.max_batch_rows, max_alone_rows=alone_rows),
            name=self.name,
            replicas=loaded.replicas,
            shared=loaded.shared,
            probe=self._warm_up.run,
        )

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] to the type checker
        self, texts: str, *, target_prefix: str | None = None, **parameters: Unpack[_TranslateParameters]
    ) -> Translation: ...

    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        target_prefix: Sequence[str | None] | None = None,
        **parameters: Unpack[_TranslateParameters],
    ) -> list[Translation]: ...

    @naming_parameters()
    def translate(
        self,
        texts: str | Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: str | Sequence[str | None] | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool | None = None,
        timeout_s: float | None = None,
        **options: Unpack[TranslateOptions],
    ) -> Translation | list[Translation]:
        """Translate one text, or several in their order.

        Args:
            texts: a text or a sequence of texts; one without content has an empty translation.
            source_language: language of the texts, in any case, with `-` or `_`; None: the bundle's default; "auto":
                that of each text is detected.
            target_language: language of the translations; None: the bundle's default.
            target_prefix: beginning of each translation, or None; part of a hypothesis' `text`, not of its tokens.
            attention: add cross-attention to every hypothesis, and `source_tokens` to every translation.
            truncate: cut texts that are longer than the model's limit instead of refusing them.
            split_sentences: translate the sentences of each text one by one; see `submit`. None: True unless
                `attention`, `target_prefix` or several hypotheses are given.
            timeout_s: seconds until the call gives up; None: no limit.
            options: options for texts and for decoding; see `jumok_proto.text_options.TranslateOptions`.

        Raises:
            InvalidArgumentError: a text or an option cannot be used; `field` names it.
            LanguageNotFoundError: the model does not have a language, or not this pair.
            AttentionUnavailableError, SamplingUnavailableError: the bundle lacks the graph.
            OverloadedError, UnavailableError: the queue is full; the translator is closed.
            DeadlineExceededError: `timeout_s` has passed.
            TypeError: an option does not exist.
        """
        alone = isinstance(texts, str)
        prefixes = [target_prefix] if alone and target_prefix is not None else target_prefix
        several = [texts] if isinstance(texts, str) else texts
        prefixes = cast("Sequence[str | None] | None", prefixes)  # other types are refused later
        parameters = partial(
            self._parameters,
            options,
            target_language=target_language,
            target_prefix=target_prefix,
            attention=attention,
            truncate=truncate,
            split_sentences=split_sentences,
            deadline=deadline_after(timeout_s),
        )
        if is_auto(source_language):
            translations = self._translate_detected(
                several, prefixes, target_language, parameters, copies=bool(options.get("copy_unreadable"))
            )
        else:
            pending = self.submit(several, parameters(source_language=source_language), target_prefixes=prefixes)
            translations = pending.collect()
        return translations[0] if alone else translations

    def _parameters(
        self,
        options: TranslateOptions,
        *,
        source_language: str | None,
        target_language: str | None,
        split_sentences: bool | None,
        target_prefix: object,
        attention: bool,
        **others: Any,
    ) -> TranslationParameters:
        """Make the parameters of a translation; `others` are those without a default of their own here.

        Raises:
            InvalidArgumentError: an option cannot be used.
            TypeError: an option does not exist.
        """
        text_options, decoding = separate(options)
        terms, for_parts = separate_terms(text_options)
        check_names(decoding)
        stored = terms.get("stored_glossary")
        splits = splits_sentences(split_sentences, attention=attention, target_prefix=target_prefix, options=decoding)
        return TranslationParameters(
            options=DecodingOptions(**decoding),
            source_language=source_language,
            target_language=target_language,
            attention=attention,
            split_sentences=splits,
            terms=terminology(terms, self._stored(stored, source_language, target_language) if stored else None),
            placeholders=placeholders_of(terms),
            **for_parts,
            **others,
        )

    def _stored(self, name: str, source: str | None, target: str | None) -> TermFinder:
        """Return a stored glossary of this process for a pair of languages.

        Raises:
            GlossariesUnavailableError: there is no store.
            GlossaryNotFoundError, InvalidArgumentError: errors of `GlossaryStore.terms`.
        """
        if self._glossaries is None:
            raise GlossariesUnavailableError("this translator keeps no glossaries: give it the parameter glossaries")
        direction = self.manifest.languages.direction(source or None, target or None)
        return self._glossaries.terms("", name, direction.source, direction.target)

    def _translate_detected(
        self,
        texts: Sequence[str],
        prefixes: Sequence[str | None] | None,
        target_language: str | None,
        parameters: Callable[..., TranslationParameters],
        *,
        copies: bool,
    ) -> list[Translation]:
        """Translate texts, each from its own language.

        Args:
            copies: True to keep texts in languages that the model does not translate.
            parameters: makes the parameters of the keyword ``source_language``.
        """
        check_texts(texts)
        for index, text in enumerate(texts):
            check_text(text, f"contents[{index}]")
        if prefixes is not None:
            check_count("target_prefixes", prefixes, len(texts))
        sources, target = sources_into(self.manifest.languages, target_language)
        detected = [
            detect_source(text, sources, target, copies=copies, field=f"contents[{index}]")
            for index, text in enumerate(texts)
        ]

        def of_language(language: str, indices: Sequence[int]) -> list[Translation]:
            own = None if prefixes is None else [prefixes[index] for index in indices]
            with blamed_texts(indices.__getitem__):
                chosen = parameters(source_language=language)
                return self.submit([texts[index] for index in indices], chosen, target_prefixes=own).collect()

        groups = group_by_language(detected).items()
        translated = ((indices, of_language(language, indices)) for language, indices in groups)
        return in_order(texts, detected, target, translated)

    @overload
    def score(  # type: ignore[overload-overlap]  # a str is a Sequence[str] to the type checker
        self, texts: str, targets: str, **parameters: Unpack[_ScoreParameters]
    ) -> Score: ...

    @overload
    def score(
        self, texts: Sequence[str], targets: Sequence[str], **parameters: Unpack[_ScoreParameters]
    ) -> list[Score]: ...

    @naming_parameters()
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
        """Score given translations of one text or several, in this thread.

        Scores are the model's own. Options and the bundle's constraints do not apply, except a first token that the
        model must write. A text without content has only the empty translation: no tokens, score 0.

        Args:
            texts, targets: a text and its translation, or a sequence of each; targets are never truncated.
            source_language, target_language, truncate, timeout_s: see `translate`.
            length_penalty: scores are sums of log-probabilities / length^length_penalty; None: the bundle's default.

        Raises:
            ScoringUnavailableError: the bundle lacks the graph. For others see `translate`.
        """
        alone = isinstance(texts, str)
        scores = self.scoring(
            [texts] if isinstance(texts, str) else texts,
            cast("Sequence[str]", [targets] if alone else targets),
            ScoringParameters(
                source_language=source_language,
                target_language=target_language,
                length_penalty=length_penalty,
                truncate=truncate,
                deadline=deadline_after(timeout_s),
            ),
        ).collect()
        return scores[0] if alone else scores

    @overload
    def align(  # type: ignore[overload-overlap]  # a str is a Sequence[str] to the type checker
        self, texts: str, targets: str | None = None, **parameters: Unpack[_AlignParameters]
    ) -> Alignment: ...

    @overload
    def align(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None = None,
        **parameters: Unpack[_AlignParameters],
    ) -> list[Alignment]: ...

    @naming_parameters()
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
        """Compute the attention of texts and translations, in this thread.

        Args:
            texts: a text or a sequence of texts.
            targets: translations of the texts, never truncated; None or empty: the model's best with default options.
            kinds: kinds of attention: "cross", "encoder", "decoder"; see `jumok_proto.attention.AttentionKind`.
            layer, head: index of the only layer or head to use; None: all.
            each_head: also return the weights of each layer and head, besides their mean.
            source_language, target_language, truncate, timeout_s: see `translate`.

        Raises:
            InvalidArgumentError: also if the result had more than `jumok_serve.tasks.alignment.MAX_WEIGHTS` weights.
            AttentionUnavailableError: the bundle lacks the graph, or the model has no such attention.
        """
        alone = isinstance(texts, str)
        alignments = self.aligning(
            [texts] if isinstance(texts, str) else texts,
            cast("Sequence[str | None] | None", [targets] if alone else targets),
            AttentionQuery(kinds=kinds, layer=layer, head=head, each_head=each_head),
            TextParameters(
                source_language=source_language,
                target_language=target_language,
                truncate=truncate,
                deadline=deadline_after(timeout_s),
            ),
        ).collect()
        return alignments[0] if alone else alignments

    def submit(
        self,
        texts: Sequence[str],
        parameters: TranslationParameters = TranslationParameters(),  # noqa: B008 - frozen
        *,
        target_prefixes: Sequence[str | None] | None = None,
        on_progress: Callable[[], None] | None = None,
    ) -> PendingTexts:
        """Queue texts, all or none, and return at once.

        With `split_sentences`, a translation is made of the best translations of its text's sentences, joined with the
        source's white space. Its score is the sum of all token scores / length^length_penalty.

        Args:
            texts, parameters: each text is decoded as one sentence, unless `split_sentences` is set.
            target_prefixes: beginning of each translation, or None; None: no translation has one.
            on_progress: called when `stable_texts` of the result grow, in a thread of the engine that it must not
                block, possibly before this method returns.

        Raises:
            JumokError: errors of `translate`; also if the texts cannot be done before the deadline.
        """
        self._check_process()
        check_texts(texts)
        return submit_texts(
            self._model, self._engine, texts, parameters, target_prefixes=target_prefixes, on_progress=on_progress
        )

    def scoring(
        self,
        texts: Sequence[str],
        targets: Sequence[str | Sequence[int]],
        parameters: ScoringParameters = ScoringParameters(),  # noqa: B008 - frozen
    ) -> PendingScores:
        """Prepare scoring of translations (texts or token ids); `collect` computes it."""
        self._check_process()
        return prepare_scoring(self._model, self._engine, texts, targets, parameters)

    def aligning(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None,
        query: AttentionQuery,
        parameters: TextParameters = TextParameters(),  # noqa: B008 - frozen
    ) -> PendingAlignments:
        """Prepare `align`, and queue texts without translation; `collect` computes the attention."""
        self._check_process()
        return prepare_alignment(self._model, self._engine, texts, targets, query, parameters)

    def warm_up(self) -> None:
        """Decode made-up sentences with every session; BundleError if that fails."""
        started = time.monotonic()
        try:
            self._warm_up.run_all((self.graphs, self._shared))
        except Exception as error:
            raise BundleError(self._bundle.path, [f"decoding with it fails: {error or repr(error)}"]) from error
        logger.info("warmed up %s %s in %.2f s", self.name, self.manifest.version, time.monotonic() - started)

    def is_full(self, caller: str = "") -> bool:
        """True if the queue is full for a caller, or nearly so."""
        return self._engine.is_full(caller)

    def is_crowded(self, caller: str = "") -> bool:
        """True if less than 1/8 of the queue is free for a caller."""
        return self._engine.is_crowded(caller)

    @property
    def ready(self) -> bool:
        """True if the engine decodes; False while it restarts after a failure."""
        return self._engine.ready

    def on_ready_change(self, tell: Callable[[], None]) -> None:
        """Set the callback for possible changes of `ready`, in an engine thread."""
        self._engine.on_ready_change = tell

    def load(self) -> Load:
        """Return the numbers of waiting and running sentences."""
        return self._engine.load()

    def counters(self) -> EngineCounters:
        """Return the engine's counters."""
        return self._engine.counters()

    def close(self, *, drain: bool = True) -> None:
        """Finish the submitted texts and stop the engine; without `drain`, fail them with UnavailableError."""
        if os.getpid() != self._process:  # there is nothing to stop
            return
        self._engine.close(drain=drain)

    def _check_process(self) -> None:
        """Refuse work in a process that was forked from the one that made this translator."""
        if os.getpid() != self._process:
            raise FailedPreconditionError(
                f"the translator of {self.name!r} was made before this process was forked, and its threads stayed "
                "behind: make it after the fork, in each worker"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close(drain=error is None)
