"""Budget of bytes in flight: bounds, turns and cancellation."""

import asyncio
import random

from jumok_serve.service.rpc.byte_budget import ByteBudget


async def taking(budget: ByteBudget, caller: str, size: int) -> "asyncio.Task[None]":
    """Start to take bytes, as far as it goes at once."""
    task = asyncio.ensure_future(budget.take(caller, size))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def test_callers_wait_beyond_their_share_and_others_do_not() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_those_who_wait_take_turns_by_caller() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_caller_gets_all_that_there_is_room_for() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_wait_that_is_cancelled_leaves_no_trace() -> None:
    """Before its turn, at its turn, and after it."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_any_order_of_takes_and_cancellations_ends_with_everything_free() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())
