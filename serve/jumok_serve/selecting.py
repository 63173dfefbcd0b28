"""What the graphs that choose tokens are given, and their calls over tensors that stay where they are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.search import NO_CONSTRAINTS, Constraints


def as_value(array: NDArray[Any]) -> OrtValue:
    """The array as ONNX Runtime's tensor, without a copy on the CPU."""
    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def constraint_feeds(stage: str, constraints: Constraints) -> dict[str, OrtValue]:
    """The inputs that constraints of a stage are, which is "logit" or "log_prob"."""
    feeds = {}
    for name, entries in ((f"{stage}_factors", constraints.factors), (f"{stage}_biases", constraints.biases)):
        feeds[f"{name}.places"] = as_value(entries.places)
        feeds[f"{name}.values"] = as_value(entries.values)
    return feeds


class FreeSelection:
    """Selection without constraints from logits [R, U] that lie where they always do.

    Args:
        session: of the select graph.
        logits: what is chosen from.
    """

    def __init__(self, session: Any, logits: OrtValue) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._scores = np.zeros(logits.shape()[0], np.float32)
        self._candidates = np.zeros(1, np.int64)
        self._feeds = {
            "scores": as_value(self._scores),
            "candidates": as_value(self._candidates),
            **constraint_feeds("logit", NO_CONSTRAINTS),
            **constraint_feeds("log_prob", NO_CONSTRAINTS),
            "renormalize": as_value(np.zeros(len(self._scores), np.bool_)),
        }
        self._binding.bind_ortvalue_input("logits", logits)
        for name, value in self._feeds.items():
            self._binding.bind_ortvalue_input(name, value)

    def run(self, scores: NDArray[np.float32], candidates: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Columns [R, C] and running scores [R, C]."""
        self._scores[:] = scores
        if self._candidates[0] != candidates:
            self._candidates[0] = candidates
            for name in ("tokens", "totals"):  # a binding keeps the shapes that outputs had
                self._binding.bind_output(name)
        self._session.run_with_iobinding(self._binding)
        tokens, totals = self._binding.copy_outputs_to_cpu()
        return tokens, totals
