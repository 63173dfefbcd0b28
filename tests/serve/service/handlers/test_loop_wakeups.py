"""Tasks that wait for futures of other threads, and the number of wake-ups."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from jumok_serve.engine.sentence import Future
from jumok_serve.service.handlers.worker_pool import LoopWakeups


def futures(count: int) -> list[Future[int]]:
    return [Future() for _ in range(count)]


def complete(several: list[Future[int]]) -> None:
    for future in several:
        future.set_result(1)


async def test_who_waits_for_several_goes_on_when_all_are_done() -> None:
    wakeups, several = LoopWakeups(), futures(3)
    waiting = asyncio.ensure_future(wakeups.wait(several))
    await asyncio.sleep(0)
    complete(several[1:])
    others = futures(1)
    complete(others)
    await wakeups.wait(others)  # what was completed before has been seen now
    assert not waiting.done()
    complete(several[:1])
    await waiting


async def test_nothing_is_waited_for_at_once() -> None:
    await LoopWakeups().wait([])


async def test_the_first_failure_is_raised_and_leaves_the_others() -> None:
    wakeups, several = LoopWakeups(), futures(3)
    several[1].set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await wakeups.wait(several)
    assert not several[0].done()
    complete([several[0], several[2]])
    await wakeups.wait([several[0]])


async def test_a_task_that_is_cancelled_waits_no_longer_and_leaves_its_futures() -> None:
    wakeups, several = LoopWakeups(), futures(2)
    waiting = asyncio.ensure_future(wakeups.wait(several))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not any(future.cancelled() for future in several)
    complete(several)
    await wakeups.wait(several)


async def test_what_a_thread_completes_at_a_time_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    calls: list[Callable[..., object]] = []
    wake = loop.call_soon_threadsafe

    def count(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        calls.append(callback)
        return wake(callback, *args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    wakeups = LoopWakeups()
    for _ in range(2):
        several = futures(50)
        tasks = [asyncio.ensure_future(wakeups.wait([future])) for future in several]
        await asyncio.sleep(0)
        calls.clear()
        thread = threading.Thread(target=complete, args=(several,))
        thread.start()
        thread.join()  # the loop looks at nothing before all are done
        await asyncio.gather(*tasks)
        assert len(calls) == 1
