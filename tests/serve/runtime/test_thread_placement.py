import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from jumok_serve import Translator
from jumok_serve.runtime.sessions import place_threads

CORES = sorted(os.sched_getaffinity(0))
several_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core has nothing to place")


def affinities() -> dict[int, set[int]]:
    """Cores of each thread of this process."""
    found: dict[int, set[int]] = {}
    for task in map(int, os.listdir("/proc/self/task")):
        with suppress(ProcessLookupError):  # it has ended
            found[task] = os.sched_getaffinity(task)
    return found


@several_cores
def test_a_session_of_all_cores_gives_each_thread_its_own() -> None:
    placement = place_threads(len(CORES))
    assert placement.caller == {CORES[0]}
    assert placement.workers == tuple(CORES[1:])
    assert placement.affinities == ";".join(str(core + 1) for core in CORES[1:])


@pytest.mark.parametrize("threads", [None, 1, len(CORES) + 1])
def test_other_sessions_may_run_on_any_core(threads: int | None) -> None:
    placement = place_threads(threads)
    assert placement.caller == set(CORES)
    assert placement.affinities == ""


@several_cores
def test_an_engine_with_all_threads_keeps_them_apart(tiny_bundle: Path) -> None:
    before = set(affinities())
    with Translator(tiny_bundle, replicas=1, threads=len(CORES)) as translator:
        translator.translate(["a b"])
        new = {task: cores for task, cores in affinities().items() if task not in before}
        engines = {thread.native_id or 0 for thread in threading.enumerate() if thread.name.startswith("engine")}
        (engine,) = engines & new.keys()
        assert new[engine] == {CORES[0]}
        workers = [cores for task, cores in new.items() if task != engine]
        for core in CORES[1:]:
            assert {core} in workers
    assert os.sched_getaffinity(0) == set(CORES)


@several_cores
def test_an_engine_with_fewer_threads_places_none(tiny_bundle: Path) -> None:
    before = set(affinities())
    with Translator(tiny_bundle, replicas=1, threads=1) as translator:
        translator.translate(["a b"])
        assert all(cores == set(CORES) for task, cores in affinities().items() if task not in before)
