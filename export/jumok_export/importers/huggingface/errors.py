"""Errors of imports."""

from collections.abc import Sequence
from typing import Self

from jumok_export.errors import ExportError


class CheckpointError(ExportError):
    """A Hugging Face checkpoint cannot be imported."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("the checkpoint cannot be imported:" + "".join(f"\n  - {problem}" for problem in problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)  # exceptions are pickled by their message otherwise
