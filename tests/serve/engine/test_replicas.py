"""Several replicas over one queue: equal results, shared work, and separate failures."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from jumok_proto.errors import EngineFailedError
from jumok_serve import DeadlineExceededError, DecodingOptions, EngineLimits, Translator, UnavailableError
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.engine.batch import Batch
from jumok_serve.engine.engine import Replica
from jumok_serve.engine.scheduler import SchedulingPolicy
from jumok_serve.runtime import sessions as sessions_module
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import FEW_ROWS, Graphs
from jumok_serve.runtime.loader import load_graphs
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.text.translation import PendingTexts
from tests.serve.engine.test_engine import IDLE, PATIENCE_S, TEXTS, pass_time, wait_until_idle
from tests.serve.engine.test_invariance import joining_at_random, most_off, scores_off, sentences, translated_together
from tests.support.calls import noted_calls

OPTIONS = DecodingOptions(beam_size=2, min_length=12, max_length=12)


def submit(translator: Translator, texts: list[str], deadline: float | None = None) -> PendingTexts:
    return translator.submit(texts, TranslationParameters(options=OPTIONS, deadline=deadline))


class Steps:
    """Notes the rows of every step by thread; holds steps until `opened`, and fails those of `failing` threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[str, list[int]] = defaultdict(list)
        self.failing: set[str] = set()
        self.opened = threading.Event()
        self._arrived = threading.Semaphore(0)
        step = Batch.step

        def noted(batch: Batch) -> None:
            name = threading.current_thread().name
            self.rows[name].append(batch.rows)
            self._arrived.release()
            assert self.opened.wait(PATIENCE_S)
            if name in self.failing:
                raise RuntimeError("out of memory, say")
            step(batch)

        monkeypatch.setattr(Batch, "step", noted)

    def arrive(self) -> None:
        """Wait until two more threads are before a step."""
        for _ in range(2):
            assert self._arrived.acquire(timeout=PATIENCE_S)


@pytest.fixture
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    limits = EngineLimits(max_alone_rows=1)
    with Translator(tiny_bundle, precision="fp32", replicas=2, threads=1, limits=limits) as translator:
        yield translator


@pytest.fixture
def steps(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Opened before the translator closes."""
    steps = Steps(monkeypatch)
    yield steps
    steps.opened.set()


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every model as large: a replica that runs alone uses the threads of all."""
    monkeypatch.setattr("jumok_serve.runtime.loader.SMALL_WEIGHTS", 0)
    monkeypatch.setattr("jumok_serve.runtime.loader.SEVERAL_IN_FP32", 0)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_replica_asks_the_scheduler_only_if_sentences_come_or_go(
    tiny_bundle: Path, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = noted_calls(monkeypatch, SchedulingPolicy, "take")
    numbers = set()
    for length in (3, 30):
        asked.clear()
        with Translator(tiny_bundle, precision="fp32", replicas=replicas, threads=1) as translator:
            translator.translate(TEXTS[0], beam_size=1, min_length=length, max_length=length)
        numbers.add(len(asked))
    assert max(numbers) - min(numbers) <= 2 * replicas  # idle replicas wake at random


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_several_replicas_give_the_results_of_one(
    tiny_bundle: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = sentences()[:80]
    with Translator(tiny_bundle, precision=precision, threads=1) as one:
        expected = translated_together(one, texts, 1) | translated_together(one, texts, 4)
    with Translator(
        tiny_bundle, precision=precision, replicas=2, threads=1, limits=EngineLimits(max_batch_tokens=1000)
    ) as translator:
        steps = Steps(monkeypatch)
        steps.opened.set()
        together, joining = translated_together(translator, texts, 4), joining_at_random(translator, texts, expected)
        off = scores_off(together, expected) + scores_off(joining, expected)
        assert off <= most_off(precision, len(together) + len(joining))
        assert len(steps.rows) == 2
        wait_until_idle(translator)


def test_a_replica_keeps_small_emptied_batches_of_other_beam_sizes(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        made = noted_calls(monkeypatch, Batch, "__init__")

        def made_for(texts: list[str], *beam_sizes: int) -> list[int]:
            made.clear()
            for beam_size in beam_sizes:
                translator.translate(texts, beam_size=beam_size)
                wait_until_idle(translator)
            return [beam_size for _, _, beam_size, _ in made]

        assert made_for(TEXTS[:1], 2, 3, 4, 2, 3, 4) == [2, 3, 4]
        assert made_for(TEXTS[:1], 6, 7) == [6, 7]  # in the place of the batch of size 2
        assert made_for(TEXTS[:1], 2, 4, 6, 7) == [2]
        assert made_for(TEXTS * 20, 4, 4) == []
        assert made_for(TEXTS[:1], 2, 4) == [4]  # which had become large


def test_a_sentence_that_leaves_before_its_first_step_is_forgotten(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, cancelled, step_all = threading.Event(), threading.Event(), Replica._step_all
    replicas: list[Replica] = []

    def held_once(replica: Replica) -> None:
        if replicas:
            step_all(replica)
            return
        replicas.append(replica)
        reached.set()
        assert cancelled.wait(PATIENCE_S)

    def first_tokens() -> int:
        return sum(replicas[0].counters.first_token_s.counts)

    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        translator.warm_up()
        wait_until_idle(translator)
        with monkeypatch.context() as patch:
            patch.setattr(Replica, "_step_all", held_once)
            (future,) = submit(translator, TEXTS[:1]).futures
            assert reached.wait(PATIENCE_S)
            before = first_tokens()
            assert future.cancel()
            cancelled.set()
            wait_until_idle(translator)
            translator.translate(TEXTS[1], beam_size=OPTIONS.beam_size)
            assert first_tokens() == before + 1


def test_idle_replicas_share_a_request_and_load_adds_up(translator: Translator, steps: Steps) -> None:
    pending = submit(translator, TEXTS * 2)
    steps.arrive()
    assert list(steps.rows.values()) == [[8], [8]]
    load = translator.load()
    assert (load.queued_requests, load.running_sentences, load.rows) == (0, 8, 16)
    steps.opened.set()
    assert len(pending.collect()) == 8
    assert list(steps.rows.values()) == [[8] * 12] * 2
    wait_until_idle(translator)


def test_a_failing_step_fails_its_replicas_sentences_alone(
    translator: Translator, steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    futures = submit(translator, TEXTS).futures
    steps.arrive()
    failing = next(iter(steps.rows))
    steps.failing.add(failing)
    steps.opened.set()
    errors = [future.exception(PATIENCE_S) for future in futures]
    assert [type(error) for error in errors if error] == [EngineFailedError] * 2
    assert "out of memory, say" in caplog.text
    assert [rows for rows in list(steps.rows[failing]) if rows != 2] == [4]  # trials have 2
    assert translator.ready
    steps.failing.clear()
    assert len(translator.translate(TEXTS)) == len(TEXTS)
    wait_until_idle(translator)


def test_cancelled_and_late_sentences_leave_every_replica_within_one_step(
    translator: Translator, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline = time.monotonic() + 600
    leaving = submit(translator, TEXTS[:2])
    steps.arrive()
    late = submit(translator, TEXTS[2:], deadline)
    for future in leaving.futures:
        assert future.cancel()
    pass_time(monkeypatch, 600)
    steps.opened.set()
    for future in leaving.futures:
        with pytest.raises(CancelledError):
            future.result()
    with pytest.raises(DeadlineExceededError):
        late.collect()
    wait_until_idle(translator)
    assert list(steps.rows.values()) == [[2], [2]]


@pytest.mark.parametrize("replicas", [1, 3])
def test_closing_finishes_the_sentences_of_all_replicas(tiny_bundle: Path, replicas: int) -> None:
    limits = EngineLimits(max_batch_tokens=100)
    translator = Translator(tiny_bundle, precision="fp32", replicas=replicas, threads=1, limits=limits)
    pending = translator.submit(TEXTS * 5, TranslationParameters(options=DecodingOptions(beam_size=2)))
    translator.close()
    assert len(pending.collect()) == 20
    with pytest.raises(UnavailableError, match="being stopped"):
        translator.translate(TEXTS[0])
    assert translator.load() == IDLE
    translator.close()


def test_closing_without_draining_fails_the_sentences_of_all_replicas(translator: Translator, steps: Steps) -> None:
    running = submit(translator, TEXTS).futures
    steps.arrive()
    waiting = submit(translator, TEXTS).futures
    closing = threading.Thread(target=translator.close, kwargs={"drain": False})
    closing.start()
    for future in waiting:
        with pytest.raises(UnavailableError, match="was stopped"):
            future.result(PATIENCE_S)
    steps.opened.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    for future in running:
        with pytest.raises(UnavailableError, match="was stopped"):
            future.result(timeout=0)
    assert list(map(len, steps.rows.values())) == [1, 1]
    assert translator.load() == IDLE


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("replicas", "threads", "made"), [(1, 1, [1]), (1, 3, [3]), (2, 1, [2, 1]), (2, 3, [6, 5]), (4, None, [4, 1])]
)
def test_pools_have_workers_for_one_replica_alone_and_for_all(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, replicas: int, threads: int | None, made: list[int]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    options = noted_calls(monkeypatch, sessions_module, "session_options")
    Translator(tiny_bundle, precision="fp32", replicas=replicas, threads=threads).close()
    assert [number or 0 for number, *_ in options] == made


@pytest.mark.parametrize(
    ("size", "precision", "cores", "threads", "replicas"),
    [
        ("small", "int8", 1, None, 1),
        ("small", "int8", 2, None, 2),
        ("small", "int8", 64, None, 4),
        ("small", "int8", 8, 4, 2),
        ("small", "fp32", 8, None, 4),
        ("large", "int8", 8, None, 4),
        ("large", "fp32", 8, None, 1),
    ],
)
def test_models_have_several_replicas_if_cores_suffice_large_ones_in_int8(
    tiny_bundle: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    size: str,
    precision: str,
    cores: int,
    threads: int | None,
    replicas: int,
) -> None:
    if size == "large":
        request.getfixturevalue("large")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    loaded = load_graphs(Bundle.open(tiny_bundle), precision, [CPU], replicas=None, threads=threads)
    assert loaded.replicas == replicas


@pytest.mark.usefixtures("large")
def test_few_rows_are_decoded_by_one_replica_with_the_threads_of_all(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[str, set[int]] = defaultdict(set)
    step = Batch.step

    def noted(batch: Batch) -> None:
        used[threading.current_thread().name].add(id(batch.graphs))
        step(batch)

    monkeypatch.setattr(Batch, "step", noted)
    with Translator(tiny_bundle, precision="fp32", replicas=2, threads=1) as translator:
        translator.translate(TEXTS, beam_size=4)
        assert list(used.values()) == [{id(translator.graphs)}]


def test_replicas_of_a_small_model_share_one_session_and_divide_few_rows_too(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_graphs(Bundle.open(tiny_bundle), "int8", [CPU], replicas=2, threads=1)
    assert loaded.shared is loaded.graphs
    steps = Steps(monkeypatch)
    with Translator(tiny_bundle, precision="int8", replicas=2, threads=1) as translator:
        pending = submit(translator, TEXTS[:2])
        steps.arrive()
        assert list(steps.rows.values()) == [[2], [2]]
        steps.opened.set()
        pending.collect()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_one_thread_decodes_few_rows_of_a_small_model(
    tiny_bundle: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Translator(tiny_bundle, precision=precision, replicas=1, threads=2) as translator,
        Translator(tiny_bundle, precision=precision, replicas=1, threads=1) as one,
    ):
        few = translator.graphs.few
        assert few is not None
        bound = noted_calls(monkeypatch, Graphs, "bind_decoder")
        for beam_size in (1, 3, 5):
            for texts in (TEXTS[:1], TEXTS):
                found, expected = (
                    [made.hypotheses[0].token_ids for made in each.translate(texts, beam_size=beam_size)]
                    for each in (translator, one)
                )
                assert found == expected
        of_few, of_all = ({rows for graphs, rows in bound if graphs is one} for one in (few, translator.graphs))
        assert {1, 3} <= of_few == {rows for rows in of_all if rows <= FEW_ROWS}
        assert max(of_all) > FEW_ROWS


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("threads", [1, 2])
def test_large_models_decode_few_rows_with_all_threads(tiny_bundle: Path, threads: int) -> None:
    assert load_graphs(Bundle.open(tiny_bundle), "int8", [CPU], replicas=1, threads=threads).graphs.few is None


@pytest.mark.parametrize(
    ("replicas", "threads", "said"),
    [
        (None, None, "replicas: 3, threads of each: 1"),
        (1, None, "replicas: 1, threads of each: 3"),
        (2, 2, "replicas: 2, threads of each: 2, cores that this process may use: 3"),
        (None, 4, "replicas: 1, threads of each: 4, cores that this process may use: 3"),
    ],
)
def test_the_log_says_how_many_there_are_and_warns_of_more_than_the_cores(
    tiny_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    replicas: int | None,
    threads: int | None,
    said: str,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(3)))
    with caplog.at_level("INFO", logger="jumok_serve.runtime.loader"):
        load_graphs(Bundle.open(tiny_bundle), "int8", [CPU], replicas=replicas, threads=threads)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said in caplog.text
    assert len(warned) == ("cores" in said)
