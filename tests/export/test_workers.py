"""Threads that verify at the same time."""

import threading
from collections.abc import Iterator

import pytest
import torch

from jumok_export.parallel import WORKERS, concurrently, threads_each
from jumok_export.verification.comparison import UNBOUNDED, make_check
from jumok_export.verification.runtime_side import GraphFailedError
from jumok_export.verification.trial import report
from jumok_serve.manifest.manifest import Check
from tests.support.hang import HANG_S


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_workers_share_the_threads_and_keep_the_order(four_threads: None) -> None:
    all_at_once = threading.Barrier(WORKERS, timeout=HANG_S)

    def compute(item: int) -> tuple[int, int]:
        all_at_once.wait()
        return item, torch.get_num_threads()

    items = range(3 * WORKERS)
    assert threads_each() == 2
    assert concurrently(compute, items) == [(item, 2) for item in items]
    assert torch.get_num_threads() == 4


def test_an_error_of_a_worker_is_raised_and_threads_are_restored(four_threads: None) -> None:
    with pytest.raises(ZeroDivisionError):
        concurrently(lambda item: 1 // item, (1, 0, 1))
    assert torch.get_num_threads() == 4


def test_checks_are_reported_in_their_order_beside_one_that_does_not_run() -> None:
    failed = threading.Event()

    def late() -> list[Check]:
        assert failed.wait(HANG_S)
        return [make_check("late", 1, 0.0, 1.0, ""), make_check("later", 1, 0.0, 1.0, "")]

    def of_a_graph() -> list[Check]:
        failed.set()
        raise GraphFailedError("encoder did not run")

    found = report(late, of_a_graph).checks
    assert [(check.name, check.worst) for check in found] == [("late", 0.0), ("later", 0.0), ("of a graph", UNBOUNDED)]
