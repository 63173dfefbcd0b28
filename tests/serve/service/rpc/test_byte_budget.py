"""Budget of bytes in flight: bounds, turns and cancellation."""

import asyncio
import random
from contextlib import suppress

import pytest

from jumok_serve.service.rpc import request_reader
from jumok_serve.service.rpc.request_reader import Arrival, ByteBudget
from tests.support.hang import HANG_S


async def taking(budget: ByteBudget, caller: str, size: int) -> "asyncio.Task[None]":
    """Start to take bytes, as far as it goes at once."""
    task = asyncio.ensure_future(budget.take(caller, size))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


async def test_callers_wait_beyond_their_share_and_others_do_not() -> None:
    budget = ByteBudget(10, 5)
    await budget.take("a", 3)
    second = await taking(budget, "a", 3)
    assert not second.done()
    await budget.take("b", 5)
    assert budget.free == 2
    budget.give_back("a", 2)
    await second
    assert budget.free == 1
    budget.give_back("a", 4)
    budget.give_back("b", 5)
    assert budget.free == 10


async def test_those_who_wait_take_turns_by_caller() -> None:
    budget = ByteBudget(4, 4)
    await budget.take("x", 4)
    order: list[str] = []

    async def take(caller: str) -> None:
        await budget.take(caller, 4)
        order.append(caller)
        budget.give_back(caller, 4)

    tasks = [asyncio.ensure_future(take(caller)) for caller in "aaaabbc"]
    await asyncio.sleep(0)
    budget.give_back("x", 4)
    await asyncio.gather(*tasks)
    assert order == list("abcabaa")
    assert budget.free == 4


async def test_a_caller_gets_all_that_there_is_room_for() -> None:
    budget = ByteBudget(320, 160)
    await budget.take("a", 160)
    waiting = [await taking(budget, "a", 30) for _ in range(8)]
    budget.give_back("a", 160)
    await asyncio.gather(*waiting[:5])
    assert not any(one.done() for one in waiting[5:])
    budget.give_back("a", 60)
    await asyncio.gather(*waiting[5:7])
    assert not waiting[7].done()
    budget.give_back("a", 150)
    await waiting[7]
    budget.give_back("a", 30)
    assert budget.free == 320


async def test_a_wait_that_is_cancelled_leaves_no_trace() -> None:
    """Before its turn, at its turn, and after it."""
    budget = ByteBudget(4, 4)
    await budget.take("a", 4)
    waiting = [await taking(budget, caller, 4) for caller in "bcbd"]
    waiting[0].cancel()
    budget.give_back("a", 4)  # c has its turn
    waiting[1].cancel()
    await asyncio.gather(*waiting[2:3], *waiting[:2], return_exceptions=True)
    assert waiting[2].done()
    budget.give_back("b", 4)
    await waiting[3]
    budget.give_back("d", 4)
    assert budget.free == 4


async def test_any_order_of_takes_and_cancellations_ends_with_everything_free() -> None:
    draw = random.Random(3)
    budget = ByteBudget(20, 8)

    async def use(caller: str, size: int) -> None:
        await budget.take(caller, size)
        assert budget.free >= 0
        try:
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
        finally:
            budget.give_back(caller, size)

    tasks = []
    for _ in range(400):
        tasks.append(asyncio.ensure_future(use(draw.choice("abcd"), draw.randint(1, 8))))
        if draw.random() < 0.3:
            draw.choice(tasks).cancel()
        if draw.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert budget.free == 20
    assert all(task.cancelled() or task.exception() is None for task in tasks)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "PATIENCE_S", 0.001)


async def arrive(budget: ByteBudget, caller: str, size: int, begun: asyncio.Event, **options: object) -> Arrival:
    """Hold bytes of a request that never arrives, until it is given up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HANG_S) as timer:
            with budget.arriving(caller, Arrival(timer=timer, **{"patience_s": 0, **options})) as arrival:  # type: ignore[arg-type]
                await budget.take(caller, size)
                try:
                    begun.set()
                    await asyncio.Event().wait()
                finally:
                    budget.give_back(caller, size)
    return arrival


@pytest.mark.usefixtures("impatient")
async def test_the_oldest_slow_arrival_of_a_full_share_makes_room() -> None:
    budget, begun = ByteBudget(20, 10), [asyncio.Event() for _ in range(3)]
    other = asyncio.ensure_future(arrive(budget, "other", 5, begun[0]))
    await begun[0].wait()
    first = asyncio.ensure_future(arrive(budget, "a", 5, begun[1]))
    await begun[1].wait()
    second = asyncio.ensure_future(arrive(budget, "a", 5, begun[2]))
    await begun[2].wait()
    await budget.take("a", 5)
    assert (await first).given_up
    assert not other.done()
    assert not second.done()
    await budget.take("b", 5)
    await budget.take("b", 5)  # now the bytes of all are held
    assert (await other).given_up
    second.cancel()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("options", [{"busy": lambda: True}, {"patience_s": HANG_S}])
async def test_arrivals_are_kept_whose_sender_waits_or_has_time(options: dict[str, object]) -> None:
    budget, begun = ByteBudget(10, 5), asyncio.Event()
    kept = asyncio.ensure_future(arrive(budget, "a", 5, begun, **options))
    await begun.wait()
    waiting = await taking(budget, "a", 5)
    done, _ = await asyncio.wait({kept, waiting}, timeout=0.05)
    assert not done
    kept.cancel()
    await waiting


async def test_a_quick_arrival_is_kept() -> None:
    async with asyncio.timeout(HANG_S) as timer:
        arrival = Arrival(timer=timer, patience_s=0)
        arrival.received += 10 * request_reader.MIN_RATE * int(HANG_S)
        assert not arrival.give_up()
        assert not timer.expired()
        while not arrival.give_up():  # it has sent nothing since the last look
            pass
        timer.reschedule(None)


async def test_a_quick_arrival_is_slow_after_its_time_and_one_whose_bytes_are_unknown_too() -> None:
    async with asyncio.timeout(HANG_S) as timer:
        quick = Arrival(timer=timer, patience_s=0, fast_s=0, received=10 * request_reader.MIN_RATE * int(HANG_S))
        assert quick.give_up()
        timer.reschedule(None)
    async with asyncio.timeout(HANG_S) as timer:
        assert not Arrival(timer=timer, patience_s=0, shown=False).give_up()
        assert Arrival(timer=timer, patience_s=0, shown=False, fast_s=0).give_up()
        timer.reschedule(None)


async def test_requests_that_arrive_in_parts_do_not_wait_for_each_other() -> None:
    """Four that need eight bytes each share ten, in parts of one byte: the oldest always goes on."""
    budget = ByteBudget(10, 10)

    async def read(caller: str) -> str:
        async with asyncio.timeout(HANG_S) as timer:
            with budget.arriving(caller, Arrival(timer=timer)) as arrival:
                for _ in range(8):
                    await budget.take(caller, 1, arrival)
                    await asyncio.sleep(0)
        budget.give_back(caller, 8)
        return caller

    assert await asyncio.gather(*map(read, "aabb")) == list("aabb")
    assert budget.free == 10


@pytest.mark.usefixtures("impatient")
async def test_an_arrival_that_waits_for_room_is_not_slow() -> None:
    async with asyncio.timeout(HANG_S) as timer:
        arrival = Arrival(timer=timer, patience_s=0, waiting=(asyncio.Event().wait, 1))  # type: ignore[arg-type]
        assert not arrival.give_up()
        arrival.has_room()
        assert arrival.waiting is None


@pytest.mark.usefixtures("impatient")
async def test_the_oldest_of_a_caller_goes_on_beside_an_older_one_of_another() -> None:
    """Two of a share of eight need six bytes each, in parts; an older one of another caller stands still."""
    budget, begun = ByteBudget(20, 8), asyncio.Event()
    still = asyncio.ensure_future(arrive(budget, "other", 1, begun, patience_s=HANG_S))
    await begun.wait()

    async def read() -> None:
        async with asyncio.timeout(HANG_S) as timer:
            with budget.arriving("a", Arrival(timer=timer, patience_s=HANG_S)) as arrival:
                for _ in range(6):
                    await budget.take("a", 1, arrival)
                    await asyncio.sleep(0)
        budget.give_back("a", 6)

    await asyncio.gather(read(), read())
    assert budget.free == 19
    still.cancel()
