"""What is asked of the selection of tokens, and decoder steps over tensors that stay where they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.search import NO_CONSTRAINTS, Constraints


def as_value(array: NDArray[Any]) -> OrtValue:
    """The array as ONNX Runtime's tensor, without a copy on the CPU."""
    return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What continuations are asked for.

    Attributes:
        scores: [R], the rows' running scores.
        candidates: how many are wanted of each row, C; there are no more than columns.
        on_logits: constraints before the log-softmax.
        on_log_probs: constraints after it.
        renormalize: [R], whether a log-softmax follows these; None: in no row.
        with_logits: whether the step's logits will be asked for too.
    """

    scores: NDArray[np.float32]
    candidates: int
    on_logits: Constraints = NO_CONSTRAINTS
    on_log_probs: Constraints = NO_CONSTRAINTS
    renormalize: NDArray[np.bool_] | None = None
    with_logits: bool = False

    def feeds(self, width: int) -> dict[str, OrtValue]:
        """The inputs of a graph that selects from logits of this width."""
        return {
            "scores": as_value(self.scores.astype(np.float32, copy=False)),
            "candidates": as_value(np.array([self.candidates])),
            **constraint_feeds("logit", self.on_logits, width),
            **constraint_feeds("log_prob", self.on_log_probs, width),
            "renormalize": _rows(self.renormalize),
        }


def constraint_feeds(stage: str, constraints: Constraints, width: int) -> dict[str, OrtValue]:
    """The inputs that constraints of a stage are, which is "logit" or "log_prob", on scores of this width."""
    return {name: as_value(array) for name, array in constraint_arrays(stage, constraints, width).items()}


def constraint_arrays(stage: str, constraints: Constraints, width: int) -> dict[str, NDArray[Any]]:
    """The same as arrays."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, entries in ((f"{stage}_factors", constraints.factors), (f"{stage}_biases", constraints.biases)):
        arrays[f"{name}.places"] = entries.places[:, 0] * width + entries.places[:, 1]
        arrays[f"{name}.values"] = entries.values
    return arrays


def _rows(chosen: NDArray[np.bool_] | None) -> OrtValue:
    """The numbers of the rows [R] that are chosen."""
    return as_value(np.zeros(0, np.int64) if chosen is None else np.flatnonzero(chosen))


class BoundStep:
    """A decoder step, selection included, over tensors whose content may change but not their places.

    A decoder in place writes each row's new token into its state. For another one, `give_state` comes before every
    step, and `state` has what it made of it.

    Args:
        session: of the decoder.
        inputs: all but the state and what `Choice` has.
        state: of a decoder in place, [B, ..., E, ...]; of another, nothing.
        rows: R.
        width: of the logits, U.
    """

    def __init__(
        self, session: Any, inputs: Mapping[str, OrtValue], state: Mapping[str, OrtValue], *, rows: int, width: int
    ) -> None:
        self._given: tuple[str, ...] = ()
        self._session = session
        self.rows = rows
        self.width = width
        self._binding = session.io_binding()
        self._scores = np.zeros(rows, np.float32)
        self._candidates = np.zeros(1, np.int64)
        self._logit_rows = np.zeros(1, np.int64)
        self._renormalize: NDArray[np.bool_] | None = None
        self._constraints = {"logit": NO_CONSTRAINTS, "log_prob": NO_CONSTRAINTS}
        self._bound: dict[str, OrtValue] = {}  # a binding alone does not keep the arrays that values lie in
        self._tokens = np.zeros((rows, 0), np.int64)
        self._totals = np.zeros((rows, 0), np.float32)
        bound = {
            **inputs,
            **state,
            "scores": as_value(self._scores),
            "candidates": as_value(self._candidates),
            "renormalize": _rows(None),
            "logit_rows": as_value(self._logit_rows),
        }
        for stage, constraints in self._constraints.items():
            bound |= constraint_feeds(stage, constraints, width)
        self._bind(bound)
        self._binding.bind_output("logits")
        for name, value in state.items():
            self._binding.bind_ortvalue_output(f"next_{name}", value)

    def give_state(self, state: Mapping[str, OrtValue]) -> None:
        """Takes the state [P, ...] that the next step continues, and lets go of the one that the last step made."""
        self._bind(state)
        for name in state:
            self._binding.bind_output(f"next_{name}")
        self._given = tuple(state)

    @property
    def state(self) -> dict[str, OrtValue]:
        """What the last step made of the state that it was given, [R, ...]."""
        _, *values = self._binding.get_outputs()[: 1 + len(self._given)]
        return dict(zip(self._given, values, strict=True))

    def run(self, choice: Choice) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Columns and running scores [R, C] of the best candidates; they lie where those of the next step will."""
        self._scores[:] = choice.scores
        self._ask_for_logits(choice.with_logits)
        if choice.renormalize is not self._renormalize:
            self._renormalize = choice.renormalize
            self._bind({"renormalize": _rows(choice.renormalize)})
        for stage, constraints in (("logit", choice.on_logits), ("log_prob", choice.on_log_probs)):
            if constraints is not self._constraints[stage]:
                self._constraints[stage] = constraints
                self._bind(constraint_feeds(stage, constraints, self.width))
        if choice.candidates != self._candidates[0]:
            self._bind_candidates(choice.candidates)
        self._session.run_with_iobinding(self._binding)
        return self._tokens, self._totals

    def _bind(self, inputs: Mapping[str, OrtValue]) -> None:
        self._bound |= inputs
        for name, value in inputs.items():
            self._binding.bind_ortvalue_input(name, value)

    def _bind_candidates(self, candidates: int) -> None:
        self._candidates[0] = candidates
        shape = (len(self._scores), min(candidates, self.width))
        self._tokens, self._totals = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        self._binding.bind_ortvalue_output("tokens", OrtValue.ortvalue_from_numpy(self._tokens))
        self._binding.bind_ortvalue_output("totals", OrtValue.ortvalue_from_numpy(self._totals))

    def _ask_for_logits(self, wanted: bool) -> None:
        rows = len(self._scores) if wanted else 0
        if self._logit_rows[0] != rows:
            self._logit_rows[0] = rows
            self._binding.bind_output("logits")  # a binding keeps the shape that an output had

    def logits(self) -> OrtValue:
        """[R, U] of the last step, which is taken again where it was not known that they would be wanted."""
        if not self._logit_rows[0]:
            self._ask_for_logits(True)
            self._session.run_with_iobinding(self._binding)
        logits: OrtValue = self._binding.get_outputs()[0]
        return logits
