"""Processes and threads as Linux lists them, where each may end between two looks."""

from contextlib import suppress
from pathlib import Path


def children(process: int | str = "self") -> set[int]:
    """Processes that the threads of a process have started."""
    found: set[int] = set()
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended; another one has its children
            found |= {int(child) for child in listed.read_text().split()}
    return found
