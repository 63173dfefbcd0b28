"""Computations in threads and in forked processes, and what exports compute in them."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch

from jumok_export import parallel
from jumok_export.graphs import tracing
from jumok_export.graphs.storage import WeightsFile
from jumok_export.models.transformer import Transformer
from jumok_export.parallel import WORKERS, both, concurrently, forked, raise_if_cancelled, threads_each
from jumok_export.training.vocabulary import Vocabulary
from jumok_export.verification import trial
from jumok_export.verification.comparison import UNBOUNDED, make_check
from jumok_export.verification.runtime_side import GraphFailedError, RuntimeSide
from jumok_export.verification.sides import Side, TorchSide
from jumok_export.verification.trial import report
from jumok_serve import Translator
from jumok_serve.manifest.manifest import Check
from tests.support.hang import HANG_S
from tests.support.processes import children


@contextmanager
def pytorch_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def eight_threads() -> Iterator[None]:
    with pytorch_threads(8):
        yield


def test_workers_share_the_threads_and_keep_the_order(eight_threads: None) -> None:
    all_at_once = threading.Barrier(WORKERS, timeout=HANG_S)

    def compute(item: int) -> tuple[int, int]:
        all_at_once.wait()
        return item, torch.get_num_threads()

    items = range(3 * WORKERS)
    assert threads_each() == 4
    assert concurrently(compute, items) == [(item, 4) for item in items]
    assert torch.get_num_threads() == 8


@pytest.mark.parametrize(("threads", "each"), [(8, 4), (1, 1)])
def test_calls_in_a_worker_divide_the_threads_no_more(threads: int, each: int) -> None:
    def inner(_: int) -> int:
        return torch.get_num_threads()

    with pytorch_threads(threads):
        assert threads_each() == each
        found = concurrently(lambda _: [*concurrently(inner, range(3)), torch.get_num_threads()], range(4))
        assert found == [[each] * 4] * 4
        assert torch.get_num_threads() == threads


def test_one_item_has_all_threads(eight_threads: None) -> None:
    def compute(item: int) -> tuple[int, int, threading.Thread]:
        return item, torch.get_num_threads(), threading.current_thread()

    assert concurrently(compute, iter([5])) == [(5, 8, threading.current_thread())]
    assert concurrently(compute, []) == []
    ((nested,),) = concurrently(lambda item: concurrently(lambda _: concurrently(compute, [item]), [item]), [6])
    assert nested == [(6, 8, threading.current_thread())]


def test_an_error_of_a_worker_is_raised_and_threads_are_restored(eight_threads: None) -> None:
    with pytest.raises(ZeroDivisionError):
        concurrently(lambda item: 1 // item, (1, 0, 1))
    assert torch.get_num_threads() == 8


def test_two_values_are_computed_at_the_same_time() -> None:
    both_run = threading.Barrier(WORKERS, timeout=HANG_S)
    assert both(lambda: (both_run.wait(), 1)[1], lambda: (both_run.wait(), "two")[1]) == (1, "two")


def test_an_error_of_one_value_ends_the_computation_of_the_other() -> None:
    running, ended = threading.Event(), threading.Event()

    def fail() -> int:
        assert running.wait(HANG_S)
        raise ZeroDivisionError

    def compute_on() -> int:
        running.set()
        for _ in range(int(HANG_S * 100)):
            time.sleep(0.01)
            try:
                raise_if_cancelled()
            except CancelledError:
                ended.set()
                raise
        return 1

    with pytest.raises(ZeroDivisionError):
        both(fail, compute_on)
    assert ended.is_set()


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, whatever handler other code of this process has left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_first_of_two_values_at_once(ctrl_c: None) -> None:
    ended = threading.Event()

    def compute() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert ended.wait(HANG_S)

    def compute_beside() -> None:
        try:
            while True:
                time.sleep(0.01)
                raise_if_cancelled()
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        both(compute, compute_beside)
    assert ended.is_set()


def test_an_error_in_a_nested_call_ends_no_other_computation() -> None:
    failed = threading.Event()

    def fail(item: int) -> int:
        raise ZeroDivisionError(item)

    def outer(item: int) -> str:
        if item:
            assert failed.wait(HANG_S)
            raise_if_cancelled()
            return "finished"
        with pytest.raises(ZeroDivisionError):
            concurrently(fail, range(2))
        failed.set()
        return "caught"

    assert concurrently(outer, range(2)) == ["caught", "finished"]


@pytest.mark.parametrize("nested", [False, True])
def test_an_interrupt_ends_computations_at_the_next(
    nested: bool, tiny_model: Transformer, tiny_bundle: Path, ctrl_c: None
) -> None:
    running = threading.Barrier(WORKERS, timeout=HANG_S)
    ended: Queue[str] = Queue()
    end = time.monotonic() + HANG_S

    def compute(side: Side | None) -> None:
        if side is None:
            ended.put("an item that began after the interrupt")
            return
        if running.wait() == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            while time.monotonic() < end:
                side.encode(np.array([[5, 6, 2]]), np.array([3]))
            ended.put("no interrupt came")
        except CancelledError:
            ended.put(type(side).__name__)
            raise

    with Translator(tiny_bundle, precision="fp32", threads=1) as translator:
        sides: list[Side | None] = [TorchSide(tiny_model), RuntimeSide(translator.graphs), None]
        groups = [sides, []] if nested else [sides]  # a single one is computed in this thread
        with pytest.raises(KeyboardInterrupt):
            concurrently(partial(concurrently, compute), groups)
        assert {ended.get(timeout=HANG_S) for _ in range(WORKERS)} == {"RuntimeSide", "TorchSide"}
    assert ended.empty()
    raise_if_cancelled()  # this thread is no worker


def test_checks_are_reported_in_their_order_beside_one_that_does_not_run() -> None:
    failed = threading.Event()
    order: list[str] = []

    def late() -> list[Check]:
        assert failed.wait(HANG_S)
        order.append("late")
        return [make_check("late", 1, 0.0, 1.0, ""), make_check("later", 1, 0.0, 1.0, "")]

    def of_a_graph() -> list[Check]:
        failed.set()
        raise GraphFailedError("encoder did not run")

    def largest() -> list[Check]:
        order.append("largest")
        raise GraphFailedError("scorer did not run")

    found = [(check.name, check.worst) for check in report(late, of_a_graph, last=largest).checks]
    assert found == [("late", 0.0), ("later", 0.0), ("of a graph", UNBOUNDED), ("largest", UNBOUNDED)]
    assert order == ["late", "largest"]


def test_the_check_that_takes_longest_begins_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "concurrently", lambda compute, items: [*map(compute, items)])
    order: list[str] = []

    def begin(name: str) -> list[Check]:
        order.append(name)
        return [make_check(name, 1, 0.0, 1.0, "")]

    short, shorter, long = (partial(begin, name) for name in ("short", "shorter", "long"))
    assert [check.name for check in report(short, shorter, long, first=long).checks] == ["short", "shorter", "long"]
    assert order == ["long", "short", "shorter"]


def test_a_value_comes_from_another_process_with_one_thread(caplog: pytest.LogCaptureFixture) -> None:
    with forked(lambda: (os.getpid(), torch.get_num_threads(), b"a" * 2**22)) as value:
        process, threads, content = value()
    assert process != os.getpid()
    assert threads == 1
    assert content == b"a" * 2**22
    assert not caplog.messages


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise ValueError("no such axis\nhint: none")


def refuse_fork() -> int:
    raise OSError("too many processes")


@pytest.mark.parametrize(
    ("compute", "replaced", "reason"),
    [
        (refuse, None, "ValueError: no such axis"),
        (lambda: os._exit(9), None, "it ended with status 9"),
        (kill_itself, None, "signal 9 ended it"),
        (threading.Lock, None, "TypeError: cannot pickle '_thread.lock' object"),
        (lambda: time.sleep(HANG_S), (parallel, "_LEAST_S", 0.0), r"it took more than \d+ seconds"),
        (os.getpid, (os, "fork", refuse_fork), "it did not start: too many processes"),
    ],
    ids=["error", "status", "signal", "no pickle", "too long", "no process"],
)
def test_a_process_that_fails_gives_nothing_but_a_warning(
    compute: Callable[[], Any],
    replaced: tuple[object, str, object] | None,
    reason: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if replaced is not None:
        monkeypatch.setattr(*replaced)
    with forked(compute) as value:
        assert value() is None
    (message,) = caplog.messages
    assert re.fullmatch(f"a second process gave no result, so the first one computes it: {reason}", message)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert all("fork_posix" in line for line in printed.err.splitlines())  # gRPC's line, if other tests have used it


def test_this_process_leaves_a_core_to_the_other_one(eight_threads: None) -> None:
    with forked(os.getpid) as value:
        assert torch.get_num_threads() == 7
        assert value()
    assert torch.get_num_threads() == 8


def test_a_process_ends_with_its_context() -> None:
    before = children()
    with forked(lambda: time.sleep(HANG_S)):
        assert len(children() - before) == 1
    assert children() <= before  # others may end meanwhile


@pytest.mark.parametrize("compute", ["lambda: time.sleep(10**6)", "lambda: bytes(2**22)"])
def test_a_process_ends_with_one_that_is_killed(compute: str) -> None:
    """It would keep standard output open, for which this test waits."""
    program = f"""
import os, signal, time
from jumok_export.parallel import forked
with forked({compute}):
    print("forked", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=HANG_S, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, b"forked\n")


def test_a_graph_that_is_traced_in_another_process_is_the_same(
    tiny_model: Transformer, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = []

    @contextmanager
    def recorded(compute: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
        with forked(compute) as value:

            def wait() -> object:
                values.append(value())
                return values[-1]

            yield wait

    monkeypatch.setattr(tracing, "forked", recorded)
    monkeypatch.setattr(tracing, "can_fork", lambda: True)
    found = {}
    for least in (2**40, 0):
        monkeypatch.setattr(tracing, "BESIDE_PARAMETERS", least)
        folder = tmp_path / f"{least:020}"  # of one length, which the files have too
        with WeightsFile(folder / "weights.bin") as file:
            graphs = tracing.export_graphs(tiny_model, len(vocabulary), len(vocabulary), file)
        contents = {
            name: graph.model.SerializeToString(deterministic=True).replace(str(folder).encode(), b"")
            for name, graph in graphs.items()
        }
        specs = {name: (graph.inputs, graph.outputs) for name, graph in graphs.items()}
        found[least] = list(graphs), contents, specs, (folder / "weights.bin").read_bytes()
    (traced,) = values
    assert isinstance(traced, tracing._Traced)
    assert found[0] == found[2**40]
