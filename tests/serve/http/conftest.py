"""Translators of the tiny model, a server, and what tests of several files need."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepl
import pytest

from jumok_serve.translator import Translator
from tests.support.servers.http_server import Served, serving_http


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator


@pytest.fixture
def own(tiny_bundle: Path) -> Iterator[Translator]:
    """A translator of the test's own, whose steps it may hold."""
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator


@pytest.fixture(scope="module")
def served(translator: Translator) -> Iterator[Served]:
    """A server without tokens."""
    with serving_http(translator) as served:
        yield served


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let DeepL's client show the first refusal."""
    monkeypatch.setattr(deepl.http_client, "max_network_retries", 0)


ThreadsOf = Callable[..., list[str]]


@pytest.fixture
def threads_of(monkeypatch: pytest.MonkeyPatch) -> ThreadsOf:
    """Have functions of a module or class note the threads that call them, from now on."""

    def note(holder: object, *names: str) -> list[str]:
        threads = list[str]()
        for name in names:
            work = getattr(holder, name)

            def noted(*arguments: Any, work: Callable[..., Any] = work) -> Any:
                threads.append(threading.current_thread().name)
                return work(*arguments)

            monkeypatch.setattr(holder, name, noted)
        return threads

    return note
