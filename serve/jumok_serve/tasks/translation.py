"""Texts on their way through the engine, and the translations that come of what it finds."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.results import FinishReason, Hypothesis, Timings, Translation
from jumok_serve.engine.batch import Decoded
from jumok_serve.engine.deadline import Patience
from jumok_serve.engine.future import Future
from jumok_serve.engine.statistics import Progress
from jumok_serve.manifest.languages import Direction
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.search import FinishedHypothesis
from jumok_serve.search.options import SearchOptions
from jumok_serve.tasks.teacher_forcing import GivenTarget, TeacherForcing
from jumok_serve.tokenizers.input_processor import Source
from jumok_serve.tokenizers.tokenizer import Tokenizer

MAX_ATTENTION_WEIGHTS = 2**23
"""Of all hypotheses of a request together, target prefixes included, if each were of the maximum length."""

NOTHING = Hypothesis(text="", score=0.0, tokens=(), token_ids=(), token_scores=(), finish_reason=FinishReason.EOS)
"""The translation of a text without content."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One text: as it is read, what its translation begins with (start token first), and what will come of it.

    ``future`` is None for a text without content, which is not decoded; ``progress`` where nobody asked to see it.
    """

    source: Source
    prompt: tuple[int, ...]
    future: Future[Decoded] | None
    progress: Progress | None = None


class _Together:
    """Waits for many futures."""

    def __init__(self, futures: Sequence[Future[Decoded]]) -> None:
        self._left = len(futures)
        self._failed = False
        self._lock = threading.Lock()
        self._over = threading.Event()
        if not futures:
            self._over.set()
        for future in futures:
            future.add_done_callback(self._see)

    def _see(self, future: Future[Decoded]) -> None:
        failed = future.cancelled() or future.exception() is not None
        with self._lock:
            self._left -= 1
            self._failed = self._failed or failed
            over = self._failed or not self._left
        if over:
            self._over.set()

    def failed(self) -> bool:
        """Waits until all have results, or one will have none; whether that is so."""
        self._over.wait()
        return self._failed


class Pending:
    """Texts on their way through the engine.

    Args:
        manifest: of the model.
        tokenizer: of the model.
        direction: what it translates from and to.
        jobs: one for each text.
        aligner: what computes attention; None: nobody asked for it.
        patience: how long it is waited for.
        started: when the texts arrived, in ``time.monotonic()`` seconds.

    Attributes:
        futures: one for each text that needs decoding; cancelling one frees its rows before the next step.
    """

    def __init__(
        self,
        *,
        manifest: Manifest,
        tokenizer: Tokenizer,
        direction: Direction,
        jobs: Sequence[Job],
        aligner: TeacherForcing | None,
        patience: Patience,
        started: float,
    ) -> None:
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._direction = direction
        self._jobs = jobs
        self._aligner = aligner
        self._patience = patience
        self._started = started
        self._decoded: list[Decoded] | None = None
        self._timings: Timings | None = None
        self.futures = tuple(job.future for job in jobs if job.future is not None)

    def cancel(self) -> None:
        """Gives up all texts that are not done, and attention that is not computed."""
        self._patience.cancel()
        for future in self.futures:
            future.cancel()

    def sure_texts(self) -> list[str]:
        """What the first hypothesis of each text is sure to begin with, so far; see `sure_text`."""
        return [self.sure_text(index) for index in range(len(self._jobs))]

    def sure_text(self, index: int) -> str:
        """What the first hypothesis of a text is sure to begin with: of one that is decoded, all of it.

        Of a text that is not decoded, nothing is sure where it is not watched.
        """
        job = self._jobs[index]
        _, *prefix = job.prompt
        if job.future is not None and self.is_decoded(index):
            best = next(iter(job.future.result().hypotheses), None)
            return "" if best is None else self._tokenizer.decode([*prefix, *best.token_ids])
        return "" if job.progress is None else self._tokenizer.decode_sure([*prefix, *job.progress.token_ids])

    def is_decoded(self, index: int) -> bool:
        """Whether a text has its hypotheses."""
        future = self._jobs[index].future
        return future is None or (future.done() and not future.cancelled() and future.exception() is None)

    def collect(self) -> list[Translation]:
        """Waits, and returns the translations in the order of the texts.

        If one text fails the others are given up, and its error is raised.

        Raises:
            DeadlineExceededError: the deadline has passed.
            UnavailableError: the model has failed or was stopped.
            CancelledError: of ``concurrent.futures``, one of the texts was given up.
        """
        try:
            found = self._hypotheses()
            hypotheses = [found.get(job) or (NOTHING,) for job in self._jobs]
            if self._aligner is not None:
                hypotheses = self._aligned(self._aligner, hypotheses)
        except BaseException:
            self.cancel()
            raise
        timings = self.timings()
        return [
            self._translation(job.source, of_text, timings) for job, of_text in zip(self._jobs, hypotheses, strict=True)
        ]

    def _hypotheses(self) -> dict[Job, tuple[Hypothesis, ...]]:
        """Those of all texts that are decoded."""
        if _Together(self.futures).failed():
            for future in self.futures:
                if future.done():
                    future.result()  # the others may take long where one has failed
        jobs = (job for job in self._jobs if job.future is not None)
        found = [(job, outcome.hypotheses) for job, outcome in zip(jobs, self._outcomes(), strict=True)]
        texts = iter(
            self._tokenizer.decode_all([(*job.prompt[1:], *one.token_ids) for job, of_text in found for one in of_text])
        )
        return {job: tuple(self._hypothesis(next(texts), one) for one in of_text) for job, of_text in found}

    def _outcomes(self) -> list[Decoded]:
        """Those of all texts that are decoded; waits, and raises what one has failed with."""
        if self._decoded is None:
            self._decoded = [future.result() for future in self.futures]
        return self._decoded

    def _hypothesis(self, text: str, hypothesis: FinishedHypothesis) -> Hypothesis:
        return Hypothesis(
            text=text,
            score=hypothesis.score,
            tokens=tuple(self._tokenizer.tokens(hypothesis.token_ids)),
            token_ids=hypothesis.token_ids,
            token_scores=hypothesis.token_scores,
            finish_reason=hypothesis.finish_reason,
        )

    def _aligned(
        self, aligner: TeacherForcing, hypotheses: Sequence[tuple[Hypothesis, ...]]
    ) -> list[tuple[Hypothesis, ...]]:
        """The hypotheses with the attention of their tokens: rows of start token and prefix are left out."""
        given = {}
        for text, (job, of_text) in enumerate(zip(self._jobs, hypotheses, strict=True)):
            start, *prefix = job.prompt
            for rank, hypothesis in enumerate(of_text):
                if hypothesis.token_ids:
                    given[text, rank] = GivenTarget(job.source.token_ids, start, [*prefix, *hypothesis.token_ids])
        weights = dict(zip(given, aligner.attention(list(given.values()), self._patience), strict=True))

        def rows(text: int, rank: int, hypothesis: Hypothesis) -> tuple[tuple[float, ...], ...]:
            if not hypothesis.token_ids:
                return ()
            return tuple(map(tuple, weights[text, rank][-len(hypothesis.token_ids) :].tolist()))

        return [
            tuple(replace(one, attention=rows(text, rank, one)) for rank, one in enumerate(of_text))
            for text, of_text in enumerate(hypotheses)
        ]

    def _translation(self, source: Source, hypotheses: tuple[Hypothesis, ...], timings: Timings) -> Translation:
        return Translation(
            hypotheses=hypotheses,
            source_token_count=len(source.token_ids),
            source_truncated=source.truncated,
            source_tokens=() if self._aligner is None else tuple(self._tokenizer.source_tokens(source.token_ids)),
            source_language=self._direction.source,
            target_language=self._direction.target,
            model=self._manifest.name,
            model_version=self._manifest.version,
            timings=timings,
        )

    def timings(self) -> Timings:
        """Where the time went, of the text that took longest in each part; waits until all are done.

        The total is that up to the first time that it was asked for.
        """
        if self._timings is None:
            decoded = self._outcomes()
            self._timings = Timings(
                queue_s=max((outcome.queue_s for outcome in decoded), default=0.0),
                encode_s=max((outcome.encode_s for outcome in decoded), default=0.0),
                decode_s=max((outcome.decode_s for outcome in decoded), default=0.0),
                total_s=time.monotonic() - self._started,
            )
        return self._timings


def check_attention(sources: Sequence[Source], prefixes: Sequence[Sequence[int]], options: SearchOptions) -> None:
    """Raise InvalidArgumentError for attention that could take up too much memory, that of the prefixes' tokens included."""
    weights = options.num_hypotheses * sum(
        len(source.token_ids) * (len(prefix) + options.max_length)
        for source, prefix in zip(sources, prefixes, strict=True)
    )
    if weights > MAX_ATTENTION_WEIGHTS:
        raise InvalidArgumentError(
            f"attention of all hypotheses together could be {weights} weights, and a request takes at most "
            f"{MAX_ATTENTION_WEIGHTS}: send several requests, or ask for a smaller max_length or fewer hypotheses",
            field="attention",
        )
