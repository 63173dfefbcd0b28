"""Refusal to work in a forked process, which has no copy of its parent's threads."""

import os

from jumok_proto.errors import FailedPreconditionError

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
