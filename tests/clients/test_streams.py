"""``translate_stream`` and ``translate_iter`` of both clients against a fake server: order, errors, broken calls."""

import asyncio
import gc
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, closing
from functools import partial
from typing import Any

import pytest

import jumok
from jumok._transport.retry import MAX_ATTEMPTS
from jumok.testing import FakeServer
from tests.support.clients import await_, wait
from tests.support.hang import HANG_S

TEXTS = [f"text {number}" for number in range(1000)]
CAPITALS = [text.upper() for text in TEXTS]


Iterate = Callable[..., Any]


def iterate_asynchronous_lines(server: str | list[str], lines: Iterable[str], **settings: Any) -> Any:
    async def each() -> AsyncIterator[str]:
        for line in lines:
            await asyncio.sleep(0)
            yield line

    return await_("translate_iter", server, each(), max_attempts=MAX_ATTEMPTS, **settings)


def ways(method: str) -> list[Iterate]:
    return [partial(call, method, max_attempts=MAX_ATTEMPTS) for call in (wait, await_)]


all_ways = pytest.mark.parametrize("translate", [*ways("translate_iter"), iterate_asynchronous_lines])
both_streams = pytest.mark.parametrize("translate", ways("translate_stream"))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as fake:
        yield fake


# --- translate_stream ---


@both_streams
def test_updates_add_up_to_the_translation(translate: Callable[..., Any], server: FakeServer) -> None:
    updates = translate(server.address, "a b c", beam_size=3, target_prefix="A", model="m", truncate=True)
    assert [update.text for update in updates] == ["A", "A B", "A B C"]
    assert "".join(update.added for update in updates) == "A B C"
    assert [update.translation for update in updates[:-1]] == [None, None]
    assert updates[-1].translation.text == "A B C"
    (request,) = server.requests
    assert (request.options.beam_size, request.target_prefix, request.model) == (3, "A", "m")  # type: ignore[attr-defined]


@both_streams
def test_a_stream_is_retried_only_before_its_first_update(translate: Callable[..., Any], server: FakeServer) -> None:
    server.fail(jumok.UnavailableError("busy"), times=2)
    assert translate(server.address, "a b")[-1].text == "A B"
    server.fail(jumok.UnavailableError("gone"), after=1)
    with pytest.raises(jumok.UnavailableError, match="gone"):
        translate(server.address, "a b c")


@both_streams
def test_bad_arguments_of_translate_stream_are_refused(translate: Callable[..., Any], server: FakeServer) -> None:
    for text, settings, field in (
        ("a\ud800", {}, "content"),
        (["a"], {}, "content"),
        ("a", {"top_p": "1"}, "options.top_p"),
    ):
        with pytest.raises(jumok.InvalidArgumentError) as refused:
            translate(server.address, text, **settings)
        assert refused.value.field == field
    assert server.requests == []


def test_a_closed_stream_is_cancelled(server: FakeServer) -> None:
    with jumok.Client(server.address) as client, closing(client.translate_stream("a b c")) as updates:
        assert next(updates).text == "A"
    with jumok.Client(server.address) as client:
        assert client.translate("a").text == "A"


# --- translate_iter ---


@pytest.mark.parametrize("lines", ["A dog", b"A dog", {"A", "dog"}, {"A": "dog"}])
@pytest.mark.parametrize("client", [jumok.Client, jumok.AsyncClient])
def test_lines_without_an_order_are_refused(client: Any, lines: object) -> None:
    async def scenario() -> None:
        with pytest.raises(
            jumok.InvalidArgumentError, match=r"^lines: must be an iterable of texts in order"
        ) as refused:
            client("unused:1").translate_iter(lines)
        assert refused.value.field == "lines"

    asyncio.run(scenario())


@all_ways
@pytest.mark.parametrize("window", [1, 7, 1024])
def test_all_texts_are_translated_in_order(translate: Iterate, server: FakeServer, window: int) -> None:
    texts = TEXTS if window > 1 else TEXTS[:50]
    results = translate(server.address, iter(texts), window=window, beam_size=2, target_language="de")
    assert [(result.index, result.text) for result in results] == list(enumerate(texts))
    assert [result.translation.text for result in results] == CAPITALS[: len(texts)]
    settings = [request.settings for request in server.requests if request.HasField("settings")]  # type: ignore[attr-defined]
    assert [(each.window, each.options.beam_size, each.target_language_code) for each in settings] == [
        (window, 2, "de")
    ]


@all_ways
def test_no_texts_need_no_server(translate: Iterate) -> None:
    assert translate("127.0.0.1:1", []) == []


@all_ways
def test_a_bad_text_has_its_own_error(translate: Iterate) -> None:
    with FakeServer({"a": "A", "b": "B"}) as server:
        results = translate(server.address, ["a", "x", "lone \ud800", "b"])
    assert [result.error is None for result in results] == [True, False, False, True]
    assert [results[0].translation.text, results[3].translation.text] == ["A", "B"]
    for result in results[1:3]:
        with pytest.raises(jumok.InvalidArgumentError) as raised:
            _ = result.translation
        assert raised.value is result.error
        assert raised.value.field == "content"
    assert "no translation of 'x'" in str(results[1].error)


@all_ways
def test_wrong_settings_end_the_corpus(translate: Iterate, server: FakeServer) -> None:
    for settings in ({"window": 0}, {"window": 1025}, {"start": -1}, {"beam_size": "x"}, {"timeout_s": 0}):
        with pytest.raises(jumok.InvalidArgumentError):
            translate(server.address, TEXTS, **settings)
    server.fail(jumok.NotFoundError("no such model"))
    with pytest.raises(jumok.NotFoundError, match="no such model"):
        translate(server.address, TEXTS)


@all_ways
def test_broken_calls_lose_repeat_and_reorder_no_result(translate: Iterate, server: FakeServer) -> None:
    for after in (0, 1, 100, 64, 3, 250):
        server.fail(jumok.UnavailableError("restarting"), after=after)
    server.fail(jumok.ResourceExhaustedError("full", details=jumok.Details(retry_after_s=0.01)), after=5)
    results = translate(server.address, TEXTS, window=50)
    assert [result.index for result in results] == list(range(len(TEXTS)))
    assert [result.translation.text for result in results] == CAPITALS
    assert len(server.texts) > len(TEXTS)


@all_ways
def test_a_server_that_is_not_there_goes_away_or_is_silent_ends_the_corpus(
    translate: Iterate, server: FakeServer
) -> None:
    with pytest.raises(jumok.UnavailableError, match=r"cannot reach a server at 127\.0\.0\.1:1"):
        translate("127.0.0.1:1", ["a"])
    for timeout_s in (2.0, 20.0, HANG_S):  # longer only where the machine was too slow for a second call
        server.fail(jumok.UnavailableError("gone"), after=3)
        server.fail(jumok.UnavailableError("gone"), times=1000)
        with pytest.raises((jumok.UnavailableError, jumok.DeadlineExceededError)) as ended:
            translate(server.address, TEXTS, timeout_s=timeout_s)
        if isinstance(ended.value, jumok.UnavailableError):
            break
    assert "gone" in str(ended.value)
    with FakeServer(delay_s=60.0) as silent, pytest.raises(jumok.DeadlineExceededError, match="no text was answered"):
        translate(silent.address, TEXTS, timeout_s=0.1)


@all_ways
def test_an_error_of_the_lines_comes_after_earlier_results(translate: Iterate, server: FakeServer) -> None:
    def lines() -> Iterable[str]:
        yield from TEXTS[:100]
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        translate(server.address, lines())
    with jumok.Client(server.address) as client:
        results = client.translate_iter(lines())
        assert [next(results).index for _ in range(100)] == list(range(100))
        with pytest.raises(OSError, match="the file is gone"):
            next(results)


@all_ways
def test_start_continues_a_stopped_program(translate: Iterate, server: FakeServer) -> None:
    results = translate(server.address, iter(TEXTS), start=990)
    assert [(result.index, result.translation.text) for result in results] == list(enumerate(CAPITALS))[990:]
    assert server.texts == TEXTS[990:]


def test_the_window_bounds_reading(server: FakeServer) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for read in itertools.count(1):
            yield f"text {read}"

    with jumok.Client(server.address) as client, closing(client.translate_iter(endless(), window=10)) as results:
        for taken in range(1, 200):
            assert next(results).translation.text == f"TEXT {taken}"
            assert read <= taken + 10

    async def scenario() -> None:
        nonlocal read
        read = 0
        async with (
            jumok.AsyncClient(server.address) as client,
            aclosing(client.translate_iter(endless(), window=10)) as several,
        ):
            taken = 0
            async for _ in several:
                taken += 1
                assert read <= taken + 10
                if taken == 200:
                    break

    asyncio.run(scenario())


def test_a_line_is_answered_before_the_next_arrives(server: FakeServer) -> None:
    answered = threading.Semaphore(0)

    def typed() -> Iterator[str]:
        for text in TEXTS[:20]:
            yield text
            assert answered.acquire(timeout=HANG_S)

    with jumok.Client(server.address) as client:
        for result, capitals in zip(client.translate_iter(typed()), CAPITALS, strict=False):
            assert result.translation.text == capitals
            answered.release()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("CorpusRun.")]


def test_a_closed_iteration_ends_its_threads(server: FakeServer) -> None:
    with jumok.Client(server.address) as client:
        results = client.translate_iter(itertools.cycle(TEXTS))
        next(results)
        running = threads()
        assert running
        results.close()
        for thread in running:
            thread.join(HANG_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("taken", [0, 1, 10, None])
def test_no_call_is_freed_at_exit(server: FakeServer, taken: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeing it takes a lock, which a thread may hold that has been stopped by then: the program would never end."""
    monkeypatch.setattr("jumok._corpus.sync.END_S", 60.0)  # time for a loaded machine; only a failure takes it
    server.fail(jumok.UnavailableError("restarting"), times=2, after=3)  # so that some fail, and the last ends well
    gc.collect()
    gc.disable()
    try:
        with jumok.Client(server.address) as client, closing(client.translate_iter(TEXTS[:20], window=4)) as results:
            assert len(list(itertools.islice(results, taken))) == (20 if taken is None else taken)
        calls = [found for found in gc.get_objects() if type(found).__name__ == "_MultiThreadedRendezvous"]
    finally:
        gc.enable()
    assert not calls
    assert not any(thread.name == "CorpusRun._run" for thread in threading.enumerate())


def test_closing_the_client_ends_its_iterations(server: FakeServer) -> None:
    client = jumok.Client(server.address)
    results = client.translate_iter(itertools.cycle(TEXTS), window=4)
    next(results)
    client.close()
    with pytest.raises((jumok.CallCancelledError, ValueError)):
        list(itertools.islice(results, 1000))

    async def scenario() -> None:
        async_client = jumok.AsyncClient(server.address)
        several = async_client.translate_iter(itertools.cycle(TEXTS), window=4)
        await anext(several)
        await async_client.close()
        with pytest.raises((jumok.CallCancelledError, ValueError)):
            async for _ in several:
                pass

    asyncio.run(scenario())


def test_a_cancelled_task_leaves_no_task(server: FakeServer) -> None:
    async def scenario() -> None:
        async with jumok.AsyncClient(server.address) as client:

            async def forever() -> None:
                async for _ in client.translate_iter(itertools.cycle(TEXTS)):
                    started.set()

            started = asyncio.Event()
            task = asyncio.ensure_future(forever())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gc.collect()
            assert (await client.translate("a")).text == "A"

    asyncio.run(scenario())


# --- several servers ---


@all_ways
def test_another_server_takes_over(translate: Iterate) -> None:
    with FakeServer(), FakeServer() as first, FakeServer() as second:
        for fake in (first, second):
            # A client that waited for the server that refused would hang.
            fake.fail(jumok.UnavailableError("stopping", details=jumok.Details(retry_after_s=2 * HANG_S)), after=400)
        results = translate([first.address, "127.0.0.1:1", second.address], TEXTS[:700], window=20)
        assert [result.translation.text for result in results] == CAPITALS[:700]
        assert first.texts
        assert second.texts


def test_calls_rotate_and_skip_unreachable_servers() -> None:
    with FakeServer() as first, FakeServer() as second:
        servers = f"{first.address}, 127.0.0.1:1,localhost:{second.port}"
        with jumok.Client(servers) as client:
            for text in TEXTS[:20]:
                assert client.translate(text).text == text.upper()
        assert min(len(first.texts), len(second.texts)) >= 5
        assert len(first.texts) + len(second.texts) == 20


def test_a_call_is_retried_until_max_attempts() -> None:
    busy = jumok.ResourceExhaustedError("full", details=jumok.Details(reason="OVERLOADED", retry_after_s=0.01))
    with FakeServer() as server, jumok.Client(server.address) as client:
        server.fail(busy, times=2)
        server.fail(jumok.UnavailableError("starting"), times=2)
        assert client.translate("a").text == "A"
        server.fail(busy, times=5)
        with pytest.raises(jumok.ResourceExhaustedError) as refused:
            client.translate("a")
        assert (refused.value.reason, refused.value.retry_after_s) == ("OVERLOADED", 0.01)
        assert client.translate("b").text == "B"
        server.fail(jumok.InternalError("bug"))
        with pytest.raises(jumok.InternalError):
            client.translate("c")
        assert server.texts == ["a"] * 10 + ["b", "c"]
        # Not past the caller's limit: the server is not asked again where it would be too late.
        server.fail(jumok.UnavailableError("later", details=jumok.Details(retry_after_s=30.0)))
        with pytest.raises(jumok.UnavailableError, match="later"):
            client.translate("d", timeout_s=25)


def test_a_fake_server_is_a_server(server: FakeServer) -> None:
    with jumok.Client(server.address) as client:
        (model,) = client.list_models()
        assert client.get_model(model.name) == model
        with pytest.raises(jumok.NotFoundError, match="'x' is not loaded"):
            client.get_model("x")
        assert client.score(["a"], ["b c"])[0].score == -2.0
        assert server.texts == ["a"]
