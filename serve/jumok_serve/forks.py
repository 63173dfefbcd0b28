"""Forked processes, which have no copy of their parent's threads: they are refused work, and end all the same."""

import ctypes
import os
import signal
import sys
import weakref

from jumok_proto.errors import FailedPreconditionError

_PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal that a process gets when the thread that started it ends."""
_made_in: list[int] = []
"""Id of the process that made the first translator."""


def check_not_inherited() -> None:
    """Refuse to load a model in a process that inherited ONNX Runtime without its threads.

    Loading would wait forever for those threads.

    Raises:
        FailedPreconditionError: a translator was made before this process was forked.
    """
    if not _made_in:
        _made_in.append(os.getpid())
    if _made_in[0] != os.getpid():
        raise FailedPreconditionError(
            "a translator was made before this process was forked, and ONNX Runtime's threads stayed behind: make "
            "translators after the fork only, or start processes by spawn"
        )


class ForkGuard:
    """Tells the process that made a translator from those that were forked from it.

    Args:
        name: name of the model, for the error.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = os.getpid()

    @property
    def forked(self) -> bool:
        """True in a process that was forked from the one that made the guard."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Refuse work in a forked process.

        Raises:
            FailedPreconditionError: this is one.
        """
        if self.forked:
            raise FailedPreconditionError(
                f"the translator of {self._name!r} was made before this process was forked, and its threads stayed "
                "behind: make it after the fork, in each worker"
            )


_with_threads: "weakref.WeakSet[object]" = weakref.WeakSet()


def keep_after_fork(holder: object) -> None:
    """Never destroy an object in a process that is forked from this one.

    Its destructor would wait forever for threads that stayed behind, also when the process ends.
    """
    _with_threads.add(holder)


def _leave_threads_behind() -> None:
    """Let a forked process end without a wait for threads that stayed behind.

    No destructor waits, neither of the objects nor, when the interpreter has ended, of ONNX Runtime's static ones: a
    handler that runs before those ends the process.
    """
    holders = list(_with_threads)
    for holder in holders:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))  # nothing drops this reference
    libc = ctypes.CDLL(None)
    if holders and hasattr(libc, "on_exit"):  # other libraries than glibc lack it
        libc.on_exit(libc._exit, None)  # called with the exit status


def end_with_parent() -> None:
    """Let Linux kill this process when the thread that started it ends; elsewhere it lives on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


os.register_at_fork(after_in_child=_leave_threads_behind)
