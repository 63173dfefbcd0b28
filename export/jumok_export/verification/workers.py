"""Threads that verify at the same time.

PyTorch and ONNX Runtime seldom keep two cores busy with one small step, but two steps do.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

WORKERS = 2

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def threads_each() -> int:
    """Threads of PyTorch's or ONNX Runtime's for each worker, so that all workers together use PyTorch's number."""
    return max(1, torch.get_num_threads() // WORKERS)


def concurrently(compute: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Compute a function of all items in some threads; returns the results in the items' order."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads_each())
    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(compute, items))
    finally:
        torch.set_num_threads(before)
