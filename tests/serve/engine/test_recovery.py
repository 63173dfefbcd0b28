"""A failing engine: errors of its sentences, restarts, and recovery."""

import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from jumok_proto.errors import EngineFailedError
from jumok_serve import DecodingOptions, Translator
from jumok_serve.engine.batch import Batch
from jumok_serve.engine.scheduler import Scheduler
from jumok_serve.engine.sentence import Sentence
from jumok_serve.errors import BundleError
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.tasks.warm_up import WarmUp
from tests.serve.engine.test_engine import TEXTS, wait_until_idle
from tests.support.hang import HANG_S, wait_until


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (Batch, "step", RuntimeError("out of memory, say")),
        (Batch, "step", SystemExit("out of memory, say")),
        (Graphs, "encode", RuntimeError("out of memory, say")),
    ],
)
def test_a_failing_step_or_encoder_fails_its_sentences_and_the_engine_restarts(
    translator: Translator,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    error: BaseException,
) -> None:
    expected = translator.translate(TEXTS[0])
    original, calls = getattr(owner, name), count()

    def fails_once(*arguments: Any) -> Any:
        if next(calls) == 0:
            raise error
        return original(*arguments)

    with monkeypatch.context() as patched, caplog.at_level("INFO"):
        patched.setattr(owner, name, fails_once)
        with pytest.raises(EngineFailedError, match="failed while it translated") as failed:
            translator.translate(TEXTS)
        # It waits for the restart, which succeeds.
        assert translator.translate(TEXTS[0]) == expected
    assert failed.value.__cause__ is error
    assert failed.value.retry_after_s
    assert "out of memory, say" in caplog.text
    assert "the engine restarted" in caplog.text
    assert translator.ready
    wait_until_idle(translator)


def fail(*_: object) -> None:
    raise RuntimeError("the device is lost, say")


class Breakdown:
    """Makes every step fail, and ends waits for restarts when the test says; notes their seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.present = True
        self.waits: list[float] = []
        self._waiting = threading.Semaphore(0)
        self._over = threading.Semaphore(0)
        step, wait_for_close = Batch.step, Scheduler.wait_for_close

        def failing_step(batch: Batch) -> None:
            if self.present:
                fail()
            step(batch)

        def held_wait(scheduler: Scheduler, timeout_s: float) -> bool:
            self.waits.append(timeout_s)
            self._waiting.release()
            while not wait_for_close(scheduler, 0.01):  # a closed scheduler waits for no test
                if self._over.acquire(blocking=False):
                    return False
            return True

        monkeypatch.setattr(Batch, "step", failing_step)
        monkeypatch.setattr(Scheduler, "wait_for_close", held_wait)

    def wait_for_restart(self) -> None:
        """Wait until a restart has failed."""
        assert self._waiting.acquire(timeout=HANG_S)

    def end_wait(self) -> None:
        """Let the next restart begin."""
        self._over.release()


@pytest.fixture
def breakdown(monkeypatch: pytest.MonkeyPatch) -> Breakdown:
    return Breakdown(monkeypatch)


def test_requests_fail_at_once_while_restarts_fail_more_and_more_rarely(
    translator: Translator, breakdown: Breakdown
) -> None:
    changes = []
    translator.on_ready_change(lambda: changes.append(translator.ready))
    with pytest.raises(EngineFailedError, match="failed while it translated"):
        translator.translate("A dog runs.")
    for _ in range(9):
        breakdown.wait_for_restart()
        assert not translator.ready
        with pytest.raises(EngineFailedError, match="is restarting") as refused:
            translator.translate("A dog runs.")
        assert refused.value.retry_after_s is not None
        assert 0.1 <= refused.value.retry_after_s <= breakdown.waits[-1] + 0.1
        breakdown.end_wait()
    assert breakdown.waits[:9] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]  # the next may have begun
    breakdown.wait_for_restart()
    breakdown.present = False
    breakdown.end_wait()
    wait_until(lambda: translator.ready)
    assert translator.translate("A dog runs.").text
    wait_until(lambda: changes == [False] * 10 + [True])
    breakdown.present = True
    with pytest.raises(EngineFailedError):
        translator.translate("A dog runs.")
    breakdown.wait_for_restart()
    assert breakdown.waits[-1] == 0.1  # counted anew
    breakdown.present = False
    breakdown.end_wait()


def test_waiting_texts_fail_with_the_first_restart(
    tiny_bundle: Path, breakdown: Breakdown, monkeypatch: pytest.MonkeyPatch
) -> None:
    trying, fails = threading.Event(), threading.Event()

    def probe(warm_up: WarmUp, graphs: Graphs) -> None:
        trying.set()
        assert fails.wait(HANG_S)
        raise RuntimeError("still lost")

    monkeypatch.setattr(WarmUp, "run", probe)
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        with pytest.raises(EngineFailedError):
            translator.translate("A dog runs.")
        assert trying.wait(HANG_S)
        assert translator.ready
        waiting = translator.submit(["A dog runs."], TranslationParameters(options=DecodingOptions()))
        fails.set()
        with pytest.raises(EngineFailedError, match="is restarting"):
            waiting.collect()


def test_a_model_that_is_down_can_be_closed(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "step", fail)
    monkeypatch.setattr("jumok_serve.engine.engine.FIRST_RESTART_S", HANG_S)
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        with pytest.raises(EngineFailedError):
            translator.translate("A dog runs.")
        wait_until(lambda: not translator.ready)
        started = time.monotonic()
    assert time.monotonic() - started < HANG_S


def test_a_failure_without_any_text_is_not_retried_at_once(
    translator: Translator, breakdown: Breakdown, monkeypatch: pytest.MonkeyPatch
) -> None:
    breakdown.present = False
    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, "next_work", fail)
        with pytest.raises(EngineFailedError):  # wakes it
            translator.translate("A dog runs.", min_length=8)
        for _ in range(3):
            breakdown.wait_for_restart()
            breakdown.end_wait()
        breakdown.wait_for_restart()
    breakdown.end_wait()
    assert breakdown.waits == [0.1, 0.2, 0.4, 0.8]
    wait_until(lambda: translator.ready)
    assert translator.translate("A dog runs.").text


def test_other_replicas_go_on(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[str] = []
    step = Batch.step

    def failing_step(batch: Batch) -> None:
        name = threading.current_thread().name
        if not broken:
            broken.append(name)
        if name in broken:
            fail()
        step(batch)

    gave_up = threading.Event()
    give_up = Scheduler.give_up

    def noted(scheduler: Scheduler, replica: int, wait_s: float) -> list[Sentence]:
        waiting = give_up(scheduler, replica, wait_s)
        gave_up.set()
        return waiting

    monkeypatch.setattr(Batch, "step", failing_step)
    monkeypatch.setattr(Scheduler, "give_up", noted)
    monkeypatch.setattr("jumok_serve.engine.engine.FIRST_RESTART_S", HANG_S)
    with Translator(tiny_bundle, precision="fp32", replicas=2, threads=1) as translator:
        with pytest.raises(EngineFailedError):
            translator.translate("A dog runs.")
        assert gave_up.wait(HANG_S)
        assert len(translator.translate(["A dog runs.", "Two men are cooking food."] * 20)) == 40
        assert translator.ready
        assert len(broken) == 1


def test_warm_up_decodes_every_shape_and_reports_failures(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = []
    step = Batch.step

    def noted(batch: Batch) -> None:
        rows.append(batch.rows)
        step(batch)

    monkeypatch.setattr(Batch, "step", noted)
    with caplog.at_level("INFO"):
        translator.warm_up()
    assert rows == [2] * 8 + [1] * 8 + [16] * 8 + [1] * 8  # the model's beam, a beam of one, a batch, a sample
    assert "warmed up tiny-en-de 1 in " in caplog.text
    assert translator.counters().step_rows.total == 0  # warm-up steps are not counted
    monkeypatch.setattr(Batch, "step", fail)
    with pytest.raises(BundleError, match="decoding with it fails: the device is lost, say"):
        translator.warm_up()
