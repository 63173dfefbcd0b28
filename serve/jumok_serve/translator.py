"""`Translator`: a bundle, ready to translate in this process."""

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self, overload

from jumok_proto.results import FinishReason, Hypothesis, Timings, Translation
from jumok_serve.batch import Decoded, Sentence
from jumok_serve.bundle import Bundle
from jumok_serve.device import Device, candidate_devices
from jumok_serve.engine import Engine, EngineLimits, Load
from jumok_serve.errors import DeadlineExceeded, DeviceError, InvalidRequest
from jumok_serve.languages import Direction
from jumok_serve.manifest import Manifest
from jumok_serve.options import DecodingOptions, EarlyStopping
from jumok_serve.search import FinishedHypothesis, make_search
from jumok_serve.session import Graphs
from jumok_serve.text import check_text

logger = logging.getLogger(__name__)

PREFERRED_PRECISIONS = {"cpu": ("int8", "fp32"), "cuda": ("fp16", "fp32")}
"""What precision "auto" takes on each device: the first that the bundle has."""

CHARACTERS_PER_TOKEN = 32
"""More than any token spells: SentencePiece's longest have 16 characters."""

NOTHING = Hypothesis(text="", score=0.0, tokens=(), token_ids=(), token_scores=(), finish_reason=FinishReason.EOS)
"""The translation of a text without content."""


class Translator:
    """Translates with the model of a bundle; calls may come from any number of threads and share one batch.

    Args:
        path: the bundle's folder.
        precision: a variant of the bundle, or "auto": int8 on a CPU and fp16 on CUDA, where the bundle has them.
        device: "cpu", "cuda", or "auto": CUDA if it can be used.
        threads: threads that the model's operators share; None: one for every core this process may use.
        max_batch_tokens: bound on what is decoded at the same time; see `EngineLimits`.
        max_queue_requests: texts that may wait.
        max_queue_tokens: source tokens of the texts that may wait.

    Raises:
        BundleError: the bundle cannot be used; lists everything that is wrong with it.
        DeviceError: the device cannot be used; it is never replaced by another unless `device` is "auto".
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        precision: str = "auto",
        device: str = "cpu",
        threads: int | None = None,
        max_batch_tokens: int = EngineLimits.max_batch_tokens,
        max_queue_requests: int = EngineLimits.max_queue_requests,
        max_queue_tokens: int = EngineLimits.max_queue_tokens,
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        limits = EngineLimits(
            max_batch_tokens=max_batch_tokens,
            max_queue_requests=max_queue_requests,
            max_queue_tokens=max_queue_tokens,
        )
        devices = candidate_devices(device)
        self._bundle = Bundle.open(path)
        self._graphs, self._device, self._precision = _load(
            self._bundle, precision, devices, threads or len(os.sched_getaffinity(0))
        )
        special = self.manifest.special_tokens
        self._engine = Engine(self._graphs, pad=special.pad, limits=limits, name=self.name)

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

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] to the type checker
        self,
        texts: str,
        *,
        beam_size: int | None = None,
        num_hypotheses: int | None = None,
        length_penalty: float | None = None,
        early_stopping: EarlyStopping | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> Translation: ...

    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        beam_size: int | None = None,
        num_hypotheses: int | None = None,
        length_penalty: float | None = None,
        early_stopping: EarlyStopping | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> list[Translation]: ...

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        beam_size: int | None = None,
        num_hypotheses: int | None = None,
        length_penalty: float | None = None,
        early_stopping: EarlyStopping | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> Translation | list[Translation]:
        """Translates one text, or several in the order they are given.

        Args:
            texts: a text, or a sequence of them; each is decoded as one sentence.
            beam_size: hypotheses kept at every step; 1 is greedy. Options left out are the bundle's defaults.
            num_hypotheses: translations to return for each text, best first.
            length_penalty: scores are divided by length to this power.
            early_stopping: when a beam search ends: False, True or "never", as Hugging Face's.
            min_length: least number of tokens before the end.
            max_length: most tokens of a translation.
            truncate: cut texts that are longer than the model's limit instead of refusing them.
            timeout_s: give up after so many seconds.

        Raises:
            InvalidRequest: a text or an option cannot be used; `field` names it.
            Overloaded: the queue is full.
            DeadlineExceeded: `timeout_s` has passed.
            Unavailable: the translator is closed.
        """
        options = DecodingOptions(
            beam_size=beam_size,
            num_hypotheses=num_hypotheses,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            min_length=min_length,
            max_length=max_length,
        )
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidRequest(f"timeout_s must be a number of seconds above 0, got {timeout_s!r}", field="timeout_s")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        alone = isinstance(texts, str)
        pending = self.submit(
            [texts] if isinstance(texts, str) else texts, options, truncate=truncate, deadline=deadline
        )
        translations = pending.collect()
        return translations[0] if alone else translations

    def submit(
        self,
        texts: Sequence[str],
        options: DecodingOptions,
        *,
        truncate: bool = False,
        deadline: float | None = None,
    ) -> "Pending":
        """Queues texts, all or none, and returns at once.

        Args:
            texts: one sentence each.
            options: how to decode them.
            truncate: cut texts that are too long instead of refusing them.
            deadline: in `time.monotonic()` seconds.

        Raises:
            InvalidRequest: a text or an option cannot be used; `field` is such as `contents[3]`.
            Overloaded: the queue is full.
            Unavailable: the translator is closed.
        """
        started = time.monotonic()
        if not texts:
            raise InvalidRequest("no texts: send at least one", field="contents")
        special, limits = self.manifest.special_tokens, self.manifest.limits
        direction = self.manifest.languages.direction()
        start = special.start if direction.start is None else direction.start
        search_options = options.resolve(
            self.manifest.generation,
            special,
            limits,
            vocabulary=self._bundle.tokenizer.vocab_size,
            forced_first=direction.forced_first,
        )
        sources = []
        for index, text in enumerate(texts):
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineExceeded("the deadline passed while the texts were tokenized")
            sources.append(self._source(text, f"contents[{index}]", direction, truncate=truncate))
        sentences = [
            Sentence(source_ids=source.token_ids, search=make_search(search_options, start), deadline=deadline)
            if source.token_ids
            else None
            for source in sources
        ]
        self._engine.submit([sentence for sentence in sentences if sentence is not None])
        return Pending(self, sources, [sentence.future if sentence else None for sentence in sentences], started)

    def _source(self, text: str, field: str, direction: Direction, *, truncate: bool) -> "_Source":
        check_text(text, field)
        if not text.strip():
            return _Source((), truncated=False)
        tokenizer, longest = self._bundle.tokenizer, self.manifest.limits.max_source_length
        most_characters = longest * CHARACTERS_PER_TOKEN  # more is too long for certain, and not worth tokenizing
        if len(text) > most_characters:
            text = text.strip()
        if len(text) > most_characters and not truncate:
            raise InvalidRequest(
                f"the text has {len(text)} characters, far more than the {longest} tokens that the model reads: split "
                "it, or ask for it to be truncated",
                field=field,
            )
        token_ids = tokenizer.encode(text[:most_characters])
        if not token_ids:
            return _Source((), truncated=False)
        prefix, suffix = direction.source_prefix, direction.source_suffix
        room = longest - len(prefix) - len(suffix)
        if len(token_ids) > room and not truncate:
            raise InvalidRequest(
                f"the text has {len(token_ids)} tokens and the model reads at most {room}: split it, or ask for it to "
                "be truncated",
                field=field,
            )
        return _Source(
            [*prefix, *token_ids[:room], *suffix], truncated=len(token_ids) > room or len(text) > most_characters
        )

    def _translation(
        self, source: "_Source", hypotheses: Sequence[FinishedHypothesis], timings: Timings
    ) -> Translation:
        tokenizer = self._bundle.tokenizer
        return Translation(
            hypotheses=tuple(
                Hypothesis(
                    text=tokenizer.decode(hypothesis.token_ids),
                    score=hypothesis.score,
                    tokens=tuple(tokenizer.tokens(hypothesis.token_ids)),
                    token_ids=hypothesis.token_ids,
                    token_scores=hypothesis.token_scores,
                    finish_reason=hypothesis.finish_reason,
                )
                for hypothesis in hypotheses
            )
            or (NOTHING,),
            source_token_count=len(source.token_ids),
            source_truncated=source.truncated,
            model=self.name,
            model_version=self.version,
            timings=timings,
        )

    def load(self) -> Load:
        """What waits and what is decoded now; all zero when idle."""
        return self._engine.load()

    def close(self, *, drain: bool = True) -> None:
        """Finishes what was submitted (without `drain`: fails it with Unavailable) and ends the engine's thread."""
        self._engine.close(drain=drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(drain=error is None)


class _Source:
    """A text as token ids; empty where it has no content."""

    __slots__ = ("token_ids", "truncated")

    def __init__(self, token_ids: Sequence[int], *, truncated: bool) -> None:
        self.token_ids = token_ids
        self.truncated = truncated


class Pending:
    """Texts on their way through the engine.

    Attributes:
        futures: one for each text that needs decoding; cancelling one frees its rows before the next step.
    """

    def __init__(
        self,
        translator: Translator,
        sources: Sequence[_Source],
        futures: Sequence["Future[Decoded] | None"],
        started: float,
    ) -> None:
        self._translator = translator
        self._sources = sources
        self._by_text = futures
        self._started = started
        self.futures = tuple(future for future in futures if future is not None)

    def cancel(self) -> None:
        """Gives up all texts that are not done."""
        for future in self.futures:
            future.cancel()

    def collect(self) -> list[Translation]:
        """Waits, and returns the translations in the order of the texts.

        If one text fails the others are given up, and its error is raised.

        Raises:
            DeadlineExceeded: the deadline has passed.
            Unavailable: the model has failed or was stopped.
        """
        try:
            decoded = [future.result() if future else None for future in self._by_text]
        except BaseException:
            self.cancel()
            raise
        timings = self.timings()
        return [
            self._translator._translation(source, outcome.hypotheses if outcome else (), timings)
            for source, outcome in zip(self._sources, decoded, strict=True)
        ]

    def timings(self) -> Timings:
        """Where the time went, of the text that took longest in each part; waits until all are done."""
        decoded = [future.result() for future in self.futures]
        return Timings(
            queue_s=max((outcome.queue_s for outcome in decoded), default=0.0),
            encode_s=max((outcome.encode_s for outcome in decoded), default=0.0),
            decode_s=max((outcome.decode_s for outcome in decoded), default=0.0),
            total_s=time.monotonic() - self._started,
        )


def _load(bundle: Bundle, precision: str, devices: Sequence[Device], threads: int) -> tuple[Graphs, Device, str]:
    """The bundle's graphs on the first of the devices that works."""
    *preferred, last = devices
    for device in preferred:
        try:
            return _load(bundle, precision, [device], threads)
        except DeviceError as error:
            logger.warning("not using %s: %s", device.name, error)
    if precision == "auto":
        present = bundle.manifest.precisions
        precision = next((name for name in PREFERRED_PRECISIONS[last.name] if name in present), next(iter(present)))
    return Graphs(bundle, precision, device=last, threads=threads), last, precision
