"""Futures are done once, tell everybody who asked, and wait no longer than they are let."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial

import pytest

from jumok_serve.engine.sentence import Future
from tests.support.hang import HANG_S


@pytest.fixture
def future() -> Future[int]:
    return Future()


def test_the_first_outcome_stays(future: Future[int]) -> None:
    calls: list[None] = []
    future.add_cancel_callback(lambda: calls.append(None))
    assert not future.done()
    assert future.set_result(1)
    assert future.done()
    assert not future.set_result(2)
    assert not future.set_exception(ValueError("late"))
    assert not future.cancel()
    assert (future.result(), future.exception(), future.cancelled()) == (1, None, False)
    assert not calls


def test_an_error_is_raised(future: Future[int]) -> None:
    error = ValueError("no result")
    assert future.set_exception(error)
    assert future.exception() is error
    with pytest.raises(ValueError, match="no result"):
        future.result()


def test_a_cancelled_future_has_no_result(future: Future[int]) -> None:
    calls: list[str] = []
    future.add_done_callback(lambda _: calls.append("done"))
    future.add_cancel_callback(lambda: calls.append("cancelled"))
    assert future.cancel()
    assert future.cancel()
    future.add_cancel_callback(lambda: calls.append("after"))
    assert not future.set_result(1)
    assert (future.done(), future.cancelled(), calls) == (True, True, ["cancelled", "done", "after"])
    for outcome in (future.result, future.exception):
        with pytest.raises(CancelledError):
            outcome()


def test_callbacks_are_called_once_even_if_others_fail(future: Future[int], caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[str, Future[int]]] = []
    future.add_done_callback(lambda done: seen.append(("first", done)))
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda done: seen.append(("last", done)))
    assert not seen
    future.set_result(1)
    future.set_result(2)
    future.add_done_callback(lambda done: seen.append(("late", done)))
    assert seen == [("first", future), ("last", future), ("late", future)]
    assert "ZeroDivisionError" in caplog.text


def in_threads(works: Sequence[Callable[[], object]], meanwhile: Callable[[], object] = bool) -> None:
    """Run each in a thread of its own, and something else meanwhile."""
    with ThreadPoolExecutor(len(works)) as pool:
        pending = [pool.submit(work) for work in works]
        meanwhile()
        for one in pending:
            one.result()


def test_result_waits_with_a_bound(future: Future[int]) -> None:
    with pytest.raises(TimeoutError, match=r"0\.001 s"):
        future.result(timeout=0.001)
    found: list[int] = []
    in_threads([lambda: found.append(future.result(HANG_S))] * 3, lambda: future.set_result(1))
    assert found == [1, 1, 1]


def test_one_of_several_threads_completes_it(future: Future[int]) -> None:
    together = threading.Barrier(8)
    won: list[int] = []

    def complete(number: int) -> None:
        together.wait()
        if future.set_result(number):
            won.append(number)

    in_threads([partial(complete, number) for number in range(8)])
    assert won == [future.result()]


def test_callbacks_added_during_completion_are_called() -> None:
    together = threading.Barrier(4)

    def ask(future: Future[int], seen: list[int]) -> None:
        together.wait()
        future.add_done_callback(lambda done: seen.append(done.result()))

    def complete(future: Future[int]) -> None:
        together.wait()
        future.set_result(1)

    for _ in range(200):
        future, seen = Future[int](), list[int]()
        in_threads([partial(ask, future, seen)] * 3, partial(complete, future))
        assert seen == [1, 1, 1]
