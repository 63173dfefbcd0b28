"""The engine step by step: admission, bounds, deadlines, cancellation, failing sentences, and closing."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jumok_proto.results import FinishReason
from jumok_serve import DeadlineExceededError, DecodingOptions, OverloadedError, Translator
from jumok_serve.engine.batch import Batch
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.engine.scheduler import AHEAD_SHARE
from jumok_serve.engine.sentence import Sentence
from jumok_serve.engine.statistics import Load
from jumok_serve.errors import ModelFailedError
from jumok_serve.interrupts import SHORT_TEXTS
from jumok_serve.runtime.graphs import Integers
from jumok_serve.runtime.tensors import Binding, padded_length
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.text.translation import PendingTexts
from jumok_serve.tokenizers.input_processor import InputProcessor
from tests.support.calls import noted_calls
from tests.support.hang import HANG_S, wait_until
from tests.support.refusals import refused

IDLE = Load(queued_requests=0, queued_tokens=0, running_sentences=0, rows=0)
TEXTS = ["A dog runs.", "Two men are cooking food.", "A girl.", "The old woman reads a book in the park."]
PATIENCE_S = HANG_S
"""Bound on every wait; reached only where something is broken."""


class Gate:
    """Holds every decoder step until a test permits it; notes rows and longest source."""

    def __init__(self, translator: Translator) -> None:
        self.rows: list[int] = []
        self.sources: list[int] = []
        self._permits = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self._open = False
        graphs = translator.graphs
        bind_decoder = graphs.bind_decoder

        def gated_bind_decoder(rows: int) -> Binding:
            binding = bind_decoder(rows)
            share, run = binding.bind_shared_array, binding.run
            arrays: dict[str, Integers] = {}

            def noted_share(name: str, array: Any) -> None:
                arrays[name] = array
                share(name, array)

            def gated_run() -> None:
                self._pass(arrays["token_ids"].ravel(), arrays["source_lengths"])
                run()

            vars(binding).update(bind_shared_array=noted_share, run=gated_run)
            return binding

        vars(graphs).update(bind_decoder=gated_bind_decoder)

    def _pass(self, token_ids: Integers, source_lengths: Integers) -> None:
        self._arrived.release()
        if not self._open and not self._permits.acquire(timeout=PATIENCE_S):
            raise AssertionError("no permit for a step")
        self.rows.append(len(token_ids))
        self.sources.append(int(source_lengths.max()))

    def arrive(self) -> None:
        """Wait until the engine is before its next step."""
        assert self._arrived.acquire(timeout=PATIENCE_S)

    def step(self) -> None:
        """Permit a step, and wait until the engine is before the next."""
        self._permits.release()
        self.arrive()

    def open(self) -> None:
        """Permit all steps from now on."""
        self._open = True
        self._permits.release()


@contextmanager
def gated(bundle: Path, **limits: int) -> Iterator[tuple[Translator, Gate]]:
    """Open a translator with such limits, and with a gate, which opens before it closes."""
    with Translator(bundle, precision="fp32", replicas=1, threads=1, limits=EngineLimits(**limits)) as translator:
        gate = Gate(translator)
        try:
            yield translator, gate
        finally:
            gate.open()


def submit(translator: Translator, texts: list[str], length: int, beam_size: int = 1, **more: Any) -> PendingTexts:
    """Submit texts by the number of tokens that each translation has."""
    options = DecodingOptions(beam_size=beam_size, min_length=length, max_length=length)
    return translator.submit(texts, TranslationParameters(options=options, **more))


@pytest.fixture
def gate(translator: Translator) -> Iterator[Gate]:
    gate = Gate(translator)
    yield gate
    gate.open()


def wait_until_idle(translator: Translator) -> None:
    """Wait until the load is zero: the last future is done a moment before its rows leave."""
    wait_until(lambda: translator.load() == IDLE)


def test_sentences_join_between_steps_and_rows_follow(translator: Translator, gate: Gate) -> None:
    first = submit(translator, TEXTS[:1], 8, beam_size=3)
    gate.arrive()
    second = submit(translator, TEXTS[1:3], 8, beam_size=3)
    gate.step()
    assert translator.load().rows == 9
    gate.open()
    first.collect()
    second.collect()
    # The first starts alone, then all three are decoded; the first ends its 8 steps one step before the others.
    assert gate.rows == [3, *[9] * 7, 6]
    wait_until_idle(translator)


def test_different_beam_sizes_take_turns(translator: Translator, gate: Gate) -> None:
    wide = submit(translator, TEXTS[:2], 3, beam_size=4)
    gate.arrive()
    narrow = submit(translator, TEXTS[:3], 3)
    gate.open()
    assert (len(wide.collect()), len(narrow.collect())) == (2, 3)
    assert gate.rows == [8, 8, 3, 8, 3, 3]


def test_a_cancelled_sentence_leaves_before_the_next_step(translator: Translator, gate: Gate) -> None:
    first, leaving, last = submit(translator, TEXTS[:3], 20, beam_size=2).futures
    gate.arrive()
    gate.step()
    gate.step()
    assert leaving.cancel()
    gate.open()
    with pytest.raises(CancelledError):
        leaving.result()
    for other in (first, last):
        assert len(other.result().hypotheses[0].token_ids) == 20
    # The engine stood before its third step when the future was cancelled; the fourth is without its rows.
    assert gate.rows[:4] == [6, 6, 6, 4]
    wait_until_idle(translator)


@pytest.mark.parametrize("end", ["done", "cancelled"])
def test_long_work_goes_on_once_no_short_text_is_decoded(translator: Translator, gate: Gate, end: str) -> None:
    heavy = submit(translator, TEXTS[:1] * 100, 40, beam_size=4, caller="many")
    gate.arrive()
    light = submit(translator, TEXTS[:1], 8, beam_size=4, caller="few")
    assert SHORT_TEXTS.wait(0)
    gate.step()
    assert not SHORT_TEXTS.wait(0)
    heavy.cancel()
    if end == "cancelled":
        light.cancel()
    gate.open()
    if end == "done":
        light.collect()
    wait_until_idle(translator)
    assert SHORT_TEXTS.wait(HANG_S)


def test_collecting_ends_with_a_cancellation(translator: Translator, gate: Gate) -> None:
    pending = submit(translator, TEXTS[:3], 20)
    gate.arrive()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pending.collect)
        assert pending.futures[1].cancel()
        with pytest.raises(CancelledError):
            waiting.result(PATIENCE_S)
    assert all(future.cancelled() for future in pending.futures)
    gate.open()
    wait_until_idle(translator)


def test_a_cancelled_sentence_never_leaves_the_queue_for_the_batch(tiny_bundle: Path) -> None:
    with gated(tiny_bundle, max_batch_tokens=1) as (translator, gate):
        first = submit(translator, TEXTS[:1], 4)
        gate.arrive()
        waiting = submit(translator, TEXTS[1:2], 4)
        assert translator.load().queued_requests == 1
        waiting.cancel()
        gate.open()
        first.collect()
        wait_until_idle(translator)
        assert gate.rows == [1] * 4


def test_a_sentence_cancelled_before_its_encoder_run_is_not_encoded(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, cancelled = threading.Event(), threading.Event()
    runs, encode = noted_calls(monkeypatch, Batch, "encode"), Batch.encode

    def hold(batch: Batch, sentences: Sequence[Sentence]) -> None:
        begun.set()
        assert cancelled.wait(PATIENCE_S)
        encode(batch, sentences)

    monkeypatch.setattr(Batch, "encode", hold)
    short, long = submit(translator, ["a dog", "a dog " * 12], 3).futures
    assert begun.wait(PATIENCE_S)
    assert long.cancel()
    cancelled.set()
    assert short.result(PATIENCE_S)
    assert [len(sentences) for _, sentences in runs] == [1]
    wait_until_idle(translator)


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the clock ahead."""
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + seconds)


def test_a_deadline_in_the_batch_and_in_the_queue(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gated(tiny_bundle, max_batch_tokens=1) as (translator, gate):
        deadline = time.monotonic() + 600
        decoding = submit(translator, TEXTS[:1], 10, deadline=deadline)
        gate.arrive()
        waiting = submit(translator, TEXTS[1:2], 10, deadline=deadline)
        pass_time(monkeypatch, 600)
        gate.open()
        for pending, place in ((decoding, "being translated"), (waiting, "in the queue")):
            with pytest.raises(DeadlineExceededError, match=place):
                pending.collect()
        wait_until_idle(translator)
        assert len(gate.rows) == 1
        assert translator.translate(TEXTS[0], beam_size=1).hypotheses


def test_a_timeout_of_translate(translator: Translator, gate: Gate) -> None:
    opener = threading.Timer(0.1, gate.open)
    opener.start()
    with pytest.raises(DeadlineExceededError):
        translator.translate(TEXTS[0], timeout_s=0.01)
    opener.join()


@pytest.mark.parametrize("budget", [1, 300])
def test_a_batch_stays_within_its_tokens_or_has_one_sentence(tiny_bundle: Path, budget: int) -> None:
    with gated(tiny_bundle, max_batch_tokens=budget) as (translator, gate):
        gate.open()
        assert len(translator.translate(TEXTS * 4, beam_size=2, max_length=5)) == 4 * len(TEXTS)
        sizes = list(zip(gate.rows, gate.sources, strict=True))
        assert all(rows == 2 or rows * source <= budget for rows, source in sizes)
        assert (max(gate.rows) > 2) == (budget == 300)


@pytest.mark.parametrize(
    ("limits", "texts", "message"),
    [
        ({"max_queue_requests": 2}, TEXTS, "a request takes at most 2 sentences here, got 4"),
        ({"max_queue_tokens": 5}, TEXTS, "a request takes at most 5 tokens here, got"),
        ({}, [], "send at least one"),
    ],
)
def test_a_request_that_never_fits_is_an_invalid_argument(
    tiny_bundle: Path, limits: dict[str, int], texts: list[str], message: str
) -> None:
    with gated(tiny_bundle, **limits) as (translator, gate):
        gate.open()
        with refused("contents", message):
            translator.translate(texts)
        assert translator.load() == IDLE
        assert translator.translate("a").model == translator.name


def test_a_full_queue_refuses_all_texts_of_a_request(tiny_bundle: Path) -> None:
    with gated(tiny_bundle, max_batch_tokens=1, max_queue_requests=4) as (translator, gate):
        running = submit(translator, TEXTS[:1], 3)
        gate.arrive()
        waiting = submit(translator, TEXTS[1:], 3)
        assert not translator.is_full()
        with pytest.raises(OverloadedError, match="holds 3 of at most 4 sentences: no room for 2 more") as full:
            submit(translator, TEXTS[:2], 3)
        assert full.value.retry_after_s == 1.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InputProcessor, "sources", None)  # refused before anything is tokenized
            with pytest.raises(OverloadedError):
                submit(translator, TEXTS[:2], 3)
        assert translator.load().queued_requests == 3
        last = submit(translator, TEXTS[:1], 3)
        assert translator.is_full()
        with pytest.raises(OverloadedError):
            submit(translator, TEXTS[:1], 3)
        gate.open()
        assert len(running.collect() + waiting.collect() + last.collect()) == 5
        assert not translator.is_full()
        wait_until_idle(translator)


def test_a_sentence_for_which_the_model_computes_nan_fails_alone(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = translator.graphs.encode

    def spoil(source_ids: Integers, source_lengths: Integers) -> Any:
        memory, first_state = encode(source_ids, source_lengths)
        for value in memory.values():
            broken = value.numpy().copy()
            broken[source_lengths == middle + 1] = np.nan
            value.update_inplace(broken)
        return memory, first_state

    expected = submit(translator, TEXTS[:3], 3, beam_size=2).collect()
    lengths = [len(translator.tokenizer.encode(text)) for text in TEXTS[:3]]
    middle = lengths[1]
    assert lengths.count(middle) == 1
    monkeypatch.setattr(translator.graphs, "encode", spoil)
    futures = submit(translator, TEXTS[:3], 3, beam_size=2).futures
    errors = [future.exception(PATIENCE_S) for future in futures]
    assert [type(error) for error in errors if error] == [ModelFailedError]
    for future, error, other in zip(futures, errors, expected, strict=True):
        assert error or future.result().hypotheses[0].token_ids == other.hypotheses[0].token_ids
    wait_until_idle(translator)


@pytest.mark.parametrize(("beam_size", "sample"), [(1, False), (1, True), (3, False)])
def test_constraints_that_leave_no_token_end_the_translation(
    translator: Translator, beam_size: int, sample: bool
) -> None:
    (eos,) = translator.manifest.special_tokens.eos
    special = translator.manifest.special_tokens.suppress
    writable = [token for token in range(translator.manifest.tokenizer.target_vocab_size) if token not in special]
    writable.remove(eos)
    two = DecodingOptions(
        beam_size=beam_size, sample=sample, suppress_tokens=writable[2:], no_repeat_ngram_size=1, min_length=20
    )
    others = DecodingOptions(beam_size=beam_size, sample=False)
    pending = [
        translator.submit(TEXTS[:2], TranslationParameters(options=two)),
        translator.submit(TEXTS[2:], TranslationParameters(options=others)),
    ]
    cut, free = (one.collect() for one in pending)
    for translation in cut:
        assert {len(h.token_ids) for h in translation.hypotheses} == {2}
        assert set(translation.hypotheses[0].token_ids) == set(writable[:2])
        assert translation.hypotheses[0].finish_reason is FinishReason.LENGTH
    assert [t.text for t in free] == [
        t.text for t in translator.submit(TEXTS[2:], TranslationParameters(options=others)).collect()
    ]


@pytest.mark.parametrize("name", ["threads", "replicas"])
def test_numbers_are_checked(tiny_bundle: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Translator(tiny_bundle, **{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_batch_tokens must be at least 1, got 0"):
        EngineLimits(max_batch_tokens=0)


def test_sentences_encoded_ahead_are_translated_as_if_alone(
    translator: Translator, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" ".join(TEXTS[: 1 + number % 2]) for number in range(4 * AHEAD_SHARE)]
    whole = translator.translate(texts, split_sentences=False, beam_size=2, max_length=6)
    longest = max(one.source_token_count for one in whole)
    with gated(tiny_bundle, max_batch_tokens=2 * padded_length(longest)) as (narrow, gate):
        runs = noted_calls(monkeypatch, Batch, "encode")
        pending = narrow.submit(texts, TranslationParameters(options=DecodingOptions(beam_size=2, max_length=6)))
        gate.arrive()
        assert sum(len(sentences) for _, sentences in runs) == 1 + (len(texts) - 1) // AHEAD_SHARE
        assert narrow.load().queued_requests == len(texts) - 1
        gate.open()
        assert [one.hypotheses for one in pending.collect()] == [one.hypotheses for one in whole]
        assert gate.rows[0] == 2
        assert sum(len(sentences) for _, sentences in runs) == len(texts) > len(runs)


def test_cancelled_sentences_encoded_ahead_are_not_decoded(tiny_bundle: Path) -> None:
    with gated(tiny_bundle, max_batch_tokens=32) as (narrow, gate):
        pending = submit(narrow, TEXTS * 4 * AHEAD_SHARE, 4)
        gate.arrive()
        pending.cancel()
        gate.open()
        wait_until_idle(narrow)
        assert len(gate.rows) == 1
