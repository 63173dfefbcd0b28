"""A Ray cluster of this machine: translations, replicas that are killed or change in number, and bad applications.

The commands of docs/operations/ray.md do the same from a terminal.
"""

import json
import os
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import jumok
from jumok_serve.ray import app
from jumok_serve.translator import Translator
from tests.serve.engine.test_invariance import sentences
from tests.serve.ray.conftest import Cluster
from tests.support.hang import HANG_S

pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Ray's own

OPTIONS: dict[str, Any] = {"beam_size": 1, "max_length": 12, "truncate": True}
TEXTS = sentences()
LONG = 48
"""Tokens of the longest translation."""
AT_ONCE: dict[str, Any] = {"look_back_period_s": 1, "upscale_delay_s": 0, "downscale_delay_s": 0}
"""Settings with which Ray scales without waiting."""


@pytest.fixture(scope="module")
def expected(tiny_bundle: Path) -> list[str]:
    with Translator(tiny_bundle, threads=1) as translator:
        return [answer.text for answer in translator.translate(TEXTS, **OPTIONS)]


@contextmanager
def load(cluster: Cluster, expected: list[str], **client_options: Any) -> Iterator[list[Exception]]:
    """Translate texts in three threads, one a call, until the block ends; yields errors as they come."""
    errors: list[Exception] = []
    ended = threading.Event()

    def call(first: int) -> None:
        with jumok.Client(cluster.address, **client_options) as client:
            number = first
            while not ended.is_set():
                index = number % len(TEXTS)
                try:
                    assert client.translate(TEXTS[index], **OPTIONS).text == expected[index]
                except Exception as error:
                    errors.append(error)
                number += 7

    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(call, first) for first in range(3)]
        try:
            yield errors
        finally:
            ended.set()
    for each in calls:
        each.result()


def translate_over_http(cluster: Cluster) -> str:
    """Translate the first text."""
    body = json.dumps({"contents": TEXTS[:1], "options": {"beam_size": 1, "max_length": 12}, "truncate": True})
    request = urllib.request.Request(
        f"{cluster.http}/v1/text:translate", body.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return str(json.load(response)["translations"][0]["hypotheses"][0]["text"])


def test_two_replicas_translate_as_one_server(cluster: Cluster, tiny_bundle: Path, expected: list[str]) -> None:
    cluster.run(tiny_bundle, num_replicas=2)
    with jumok.Client(cluster.address) as client:
        assert [one.text for one in client.translate(TEXTS, **OPTIONS)] == expected
        assert [client.translate(text, **OPTIONS).text for text in TEXTS[:20]] == expected[:20]
        results = list(client.translate_iter(TEXTS * 3, window=50, **OPTIONS))
        assert [result.translation.text for result in results] == expected * 3
        updates = [update.text for update in client.translate_stream(TEXTS[1], **OPTIONS)]
        assert updates[-1] == expected[1]
        for failing in (client.translate, lambda text, **options: list(client.translate_stream(text, **options))):
            with pytest.raises(jumok.InvalidArgumentError) as wrong:
                failing("a man", beam_size=0)
            assert wrong.value.field == "options.beam_size"
            assert wrong.value.request_id
        with pytest.raises(jumok.DeadlineExceededError):
            client.translate(TEXTS * 10, beam_size=5, timeout_s=0.05)
    assert translate_over_http(cluster) == expected[0]


def test_a_replica_that_is_killed_is_not_missed(cluster: Cluster, tiny_bundle: Path, expected: list[str]) -> None:
    cluster.run(tiny_bundle, num_replicas=2)
    with (
        load(cluster, expected) as errors,
        load(cluster, expected, max_attempts=1) as single,
        jumok.Client(cluster.address) as client,
    ):
        found = []
        for result in client.translate_iter(TEXTS * 5, window=50, **OPTIONS):
            found.append(result.translation.text)
            if len(found) == 150:
                cluster.kill(cluster.replicas()[0])
    assert found == expected * 5
    assert errors == []
    assert len(single) <= 3, single  # one in each thread
    assert all(isinstance(error, jumok.UnavailableError) for error in single)


def test_calls_wait_for_the_next_replica_if_all_are_killed(
    cluster: Cluster, tiny_bundle: Path, expected: list[str]
) -> None:
    """The replicas stand still, so that the calls are in the middle of their work for sure."""
    cluster.run(tiny_bundle, num_replicas=2)
    before = cluster.replicas()
    with jumok.Client(cluster.address, timeout_s=HANG_S) as client, ThreadPoolExecutor(3) as threads:
        for replica in before:
            os.kill(replica, signal.SIGSTOP)
        calls = [
            threads.submit(lambda: client.translate(TEXTS[0], **OPTIONS).text),
            threads.submit(lambda: [*client.translate_stream(TEXTS[0], **OPTIONS)][-1].text),
            threads.submit(lambda: next(iter(client.translate_iter(TEXTS[:1], **OPTIONS))).translation.text),
        ]
        for replica in before:
            cluster.kill(replica)
        assert [call.result(HANG_S) for call in calls] == expected[:1] * 3
    assert not set(before) & set(cluster.replicas())


def test_a_stream_that_has_begun_fails_if_its_replica_is_killed(
    cluster: Cluster, tiny_bundle: Path, expected: list[str]
) -> None:
    """A stream may end before the kill; another one is then killed."""
    cluster.run(tiny_bundle, num_replicas=1)
    ends: list[Exception] = []
    with jumok.Client(cluster.address, timeout_s=HANG_S) as client:
        while not ends:
            assert client.translate(TEXTS[0], **OPTIONS).text == expected[0]
            (replica,) = cluster.replicas()
            stream = client.translate_stream(TEXTS[0], beam_size=4, min_length=LONG, max_length=LONG, truncate=True)
            next(stream)
            cluster.kill(replica)
            try:
                list(stream)
            except jumok.JumokError as error:
                ends.append(error)
    assert [type(end) for end in ends] == [jumok.UnavailableError]


def corpus(cluster: Cluster, ended: threading.Event) -> list[str]:
    """Translate the texts again and again in one call, until an event ends it; returns all translations."""

    def texts() -> Iterator[str]:
        while not ended.is_set():
            yield from TEXTS

    with jumok.Client(cluster.address) as client:
        return [result.translation.text for result in client.translate_iter(texts(), window=20, **OPTIONS)]


def test_ray_starts_and_stops_replicas_by_the_open_calls(
    cluster: Cluster, tiny_bundle: Path, expected: list[str]
) -> None:
    """Corpora are the calls that stay open; the last one goes on wherever it is when a replica is stopped."""
    cluster.run(tiny_bundle, num_replicas=1, max_replicas=2, target_ongoing_requests=5, **AT_ONCE)
    ends = [threading.Event() for _ in range(8)]  # with the last corpus, at most four calls are open
    with load(cluster, expected, max_attempts=1) as errors, ThreadPoolExecutor(len(ends)) as threads:
        corpora = [threads.submit(corpus, cluster, end) for end in ends]
        try:
            cluster.wait_for(replicas=2)
            for end in ends[1:]:
                end.set()
            cluster.wait_for(replicas=1)
        finally:
            for end in ends:
                end.set()
        for each in corpora:
            found = each.result(HANG_S)
            assert found == expected * (len(found) // len(TEXTS))
    assert errors == []


def test_replicas_come_and_go_under_load(cluster: Cluster, tiny_bundle: Path, expected: list[str]) -> None:
    cluster.run(tiny_bundle, num_replicas=1)
    ended = threading.Event()
    with load(cluster, expected, max_attempts=1) as errors, ThreadPoolExecutor(1) as threads:
        translating = threads.submit(corpus, cluster, ended)
        try:
            for number in (2, 1):
                cluster.run(tiny_bundle, num_replicas=number)
        finally:
            ended.set()
        found = translating.result(HANG_S)
    assert errors == []
    assert found == expected * (len(found) // len(TEXTS))


@contextmanager
def second(application: Any) -> Iterator[Callable[[], Any]]:
    """Run another application until the block ends, without waiting for it; yields a function for its status."""
    from ray import serve

    target = serve.RunTarget(application, name="second", route_prefix="/second")
    serve.run_many([target], wait_for_applications_running=False)
    try:
        yield lambda: serve.status().applications["second"].deployments["jumok"]
    finally:
        serve.delete("second")


def test_an_application_without_room_leaves_the_other_alone(
    cluster: Cluster, tiny_bundle: Path, expected: list[str]
) -> None:
    cluster.run(tiny_bundle, num_replicas=1)
    with second(app({"bundles": str(tiny_bundle), "trusted_bundles": True, "num_cpus": 64, "grace_s": 0})) as status:
        assert status().status == "UPDATING"
        assert "RUNNING" not in status().replica_states
        assert translate_over_http(cluster) == expected[0]


def test_a_machine_with_another_version_starts_no_replica(
    cluster: Cluster, tiny_bundle: Path, expected: list[str], tmp_path: Path
) -> None:
    cluster.run(tiny_bundle, num_replicas=1)
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    application = app({"bundles": str(bundle), "trusted_bundles": True, "grace_s": 0})
    manifest = bundle / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": "9"}))
    with second(application) as status:
        end = time.monotonic() + HANG_S
        while "has version 9 on this machine, and the application was built with 1" not in status().message:
            assert time.monotonic() < end, status()
            time.sleep(0.1)
        assert translate_over_http(cluster) == expected[0]
