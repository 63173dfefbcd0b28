"""Futures are done once, tell everybody who asked, and wait no longer than they are let."""

import threading
from concurrent.futures import CancelledError

import pytest

from jumok_serve.engine.future import Future


@pytest.fixture
def future() -> Future[int]:
    return Future()


def test_what_comes_first_stays(future: Future[int]) -> None:
    assert not future.done()
    assert future.set_result(1)
    assert future.done()
    assert not future.set_result(2)
    assert not future.set_exception(ValueError("late"))
    assert not future.cancel()
    assert (future.result(), future.exception(), future.cancelled()) == (1, None, False)


def test_an_error_is_raised(future: Future[int]) -> None:
    error = ValueError("no result")
    assert future.set_exception(error)
    assert future.exception() is error
    with pytest.raises(ValueError, match="no result"):
        future.result()


def test_who_gives_up_gets_nothing(future: Future[int]) -> None:
    told: list[str] = []
    future.add_cancel_callback(lambda: told.append("before"))
    assert future.cancel()
    assert future.cancel()
    future.add_cancel_callback(lambda: told.append("after"))
    assert not future.set_result(1)
    assert (future.done(), future.cancelled(), told) == (True, True, ["before", "after"])
    with pytest.raises(CancelledError):
        future.result()
    with pytest.raises(CancelledError):
        future.exception()


def test_nobody_is_told_of_a_cancellation_that_came_too_late(future: Future[int]) -> None:
    told: list[None] = []
    future.add_cancel_callback(lambda: told.append(None))
    future.set_result(1)
    assert not future.cancel()
    assert not told


def test_a_cancellation_is_told_before_callbacks(future: Future[int]) -> None:
    told: list[str] = []
    future.add_done_callback(lambda _: told.append("done"))
    future.add_cancel_callback(lambda: told.append("cancelled"))
    future.cancel()
    assert told == ["cancelled", "done"]


def test_callbacks_are_called_once_whatever_others_do(future: Future[int], caplog: pytest.LogCaptureFixture) -> None:
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


def test_it_is_waited_for(future: Future[int]) -> None:
    with pytest.raises(TimeoutError, match=r"0\.001 s"):
        future.result(timeout=0.001)
    found: list[int] = []
    waiting = [threading.Thread(target=lambda: found.append(future.result(60))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    future.set_result(1)
    for thread in waiting:
        thread.join()
    assert found == [1, 1, 1]


def test_one_of_several_completes_it(future: Future[int]) -> None:
    together = threading.Barrier(8)
    won: list[int] = []

    def complete(number: int) -> None:
        together.wait()
        if future.set_result(number):
            won.append(number)

    threads = [threading.Thread(target=complete, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [future.result()]


def test_everybody_is_called_who_asks_while_it_is_completed() -> None:
    for _ in range(200):
        future: Future[int] = Future()
        together = threading.Barrier(4)
        seen: list[int] = []

        def ask(future: Future[int], together: threading.Barrier, seen: list[int]) -> None:
            together.wait()
            future.add_done_callback(lambda done: seen.append(done.result()))

        threads = [threading.Thread(target=ask, args=(future, together, seen)) for _ in range(3)]
        for thread in threads:
            thread.start()
        together.wait()
        future.set_result(1)
        for thread in threads:
            thread.join()
        assert seen == [1, 1, 1]
