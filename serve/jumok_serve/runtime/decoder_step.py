"""One decoder step, from arrays by slot to best candidates.

n sentences take part with K rows each, R = n * K. E: cache entries, S: source length, P: rows of the last step,
U: columns of the logits, C: candidates of a row.

    engine.batch.Batch.step
      |   DecoderInputs         tokens [slots, K]  positions [slots]  parents [slots, K]  lengths [slots]
      |   SelectionParameters   scores [R]  candidates C  constraints (row, column)  renormalize [R]
      v
    InPlaceDecoder.step                                     GatheringDecoder.step
      |   KVCache.allocate      entries [slots, K]            |   RowState.first_rows       [n, 1]
      |   by slot, as bound:                                  |   by slot, as bound:
      |     memory.*            [slots, ..., S, ...]          |     memory.*        [n, ..., S, ...]
      |     state.*             [slots, ..., E, ...]          |   given before each step:
      |     visible             [slots, K, E]                 |     state.*         [P, ...]
      |   gathered for the step:                              |   gathered for the step:
      |     token_ids           [n, K]                        |     token_ids       [R]
      |     positions           [n, K]                        |     positions       [R]
      |     places              [n, K, 3]: slot, 0, entry     |     parents         [R]: row in P
      |     entry_positions     [n, E]                        |
      |     source_lengths      [n]                           |     source_lengths  [n]
      |   with a shortlist:     bias [n, U] and the columns' weights
      v
    DecoderStep.run             scores [R]  candidates [1]  logit_rows [1]: R or 0  renormalize [N]: row numbers
      |                         {logit, log_prob}_{factors, biases}.places [N]: row * U + column, .values [N]
      v
    ONNX Runtime                decoder with log-softmax, constraints and top-k as its epilogue
      |
      v
    DecoderStep.run returns     tokens [R, C]: columns  totals [R, C]: running scores; on demand logits [R, U]
                                next_state.*: the buffers of state.* themselves, others, or new tensors [R, ...]
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.runtime.binding import Tensors, View, as_value
from jumok_serve.runtime.graphs import Floats, Graphs, Integers
from jumok_serve.runtime.step_inputs import SelectionParameters, constraint_arrays, never_empty
from jumok_serve.search import NO_CONSTRAINTS, Constraints


class DecoderStep:
    """A decoder step with its selection, over tensors with constant addresses.

    Args:
        arrays: the decoder's inputs by row and by sentence, which the caller writes into; others are ignored.
        memory: encoder memory, [B, ...], or by slot; other tensors are ignored.
        state: KV cache by slot, written in place; empty if `give_state` gives a state before each run.
        columns: inputs that describe the columns of the logits.
        width: columns of the logits, U.
        addresses: addresses of arrays, for native code.

    Attributes:
        memory: the given tensors, to detect moved memory.
        columns: the given inputs, to detect changed columns.
        rows: R.
        width: U.
    """

    def __init__(
        self,
        graphs: Graphs,
        arrays: Mapping[str, NDArray[Any]],
        memory: Mapping[str, OrtValue | View],
        state: Mapping[str, OrtValue | View],
        *,
        columns: Mapping[str, OrtValue] = MappingProxyType({}),
        width: int,
        addresses: tuple[int, ...] = (),
    ) -> None:
        self.arrays = arrays
        self.memory = memory
        self.columns = columns
        self.addresses = addresses
        self.rows = math.prod(arrays["token_ids"].shape)
        self.width = width
        self._binding = graphs.bind_decoder(self.rows)
        self._inputs = graphs.decoder_inputs
        self._for_device = graphs.for_device
        self._state: Tensors = {}  # given last
        self._selection: SelectionParameters | None = None  # bound; None: to be compared with what is bound
        self._scores: Floats | None = None
        self._candidates = 0
        self._with_logits = False
        self._renormalize: NDArray[np.bool_] | None = None
        self._on_logits = self._on_log_probs = NO_CONSTRAINTS
        self._tokens = np.zeros((self.rows, 0), np.int64)
        self._totals = np.zeros((self.rows, 0), np.float32)
        for name, array in arrays.items():
            if name in graphs.decoder_inputs:
                self._binding.bind_shared_array(name, array if graphs.in_place else array.reshape(-1))
        for name, value in {**memory, **columns, **state}.items():
            if name in graphs.decoder_inputs:
                self._binding.bind_input(name, value)
        self._bind_sizes()
        self._bind_renormalize(None)
        self._bind_constraints("logit", NO_CONSTRAINTS)
        self._bind_constraints("log_prob", NO_CONSTRAINTS)
        self._binding.bind_output("logits")
        for name, value in state.items():
            self._binding.bind_output(f"next_{name}", value)

    def give_columns(self, columns: Mapping[str, OrtValue], width: int) -> None:
        """Bind the inputs that describe the columns of the next runs, if they are others."""
        bound, self.columns = self.columns, columns
        for name, value in columns.items():
            if name in self._inputs and value is not bound.get(name):
                self._binding.bind_input(name, value)
        if width == self.width:
            return
        self.width = width
        self._binding.bind_output("logits")  # a binding keeps the shape that an output had
        if min(self._candidates, width) != self._tokens.shape[1]:
            self._candidates = 0  # to be bound before the next run
        self._give_constraints(NO_CONSTRAINTS, NO_CONSTRAINTS)  # whose places do not depend on the width
        self._selection = None

    def give_state(self, state: Tensors, following: Tensors) -> None:
        """Bind the state [P, ...] of the next run, unless it is bound; release the last.

        Args:
            following: tensors for the state that the run makes, [R, ...]; empty: the run allocates them.
        """
        if state is self._state and following:
            return
        self._state = state
        for name, value in state.items():
            self._binding.bind_input(name, value)
            self._binding.bind_output(f"next_{name}", following.get(name))

    def new_state(self) -> Tensors:
        """Return the state [R, ...] that the last run made."""
        _, *values = self._binding.outputs()[: 1 + len(self._state)]
        return dict(zip(self._state, values, strict=True))

    def run(self, selection: SelectionParameters) -> tuple[Integers, Floats]:
        """Run the decoder, after binding the inputs that have changed.

        Returns:
            Columns and running scores [R, C] of the best candidates. The next run overwrites them.
        """
        if selection is not self._selection:
            self._give(selection)
        self._binding.run()
        return self._tokens, self._totals

    def logits(self) -> OrtValue:
        """The logits [R, U] of the last run, decoded again if necessary."""
        if not self._with_logits:
            self._return_logits(True)
            self._selection = None  # its next run returns none
            self._binding.run()
        return self._binding.outputs()[0]

    def _give(self, selection: SelectionParameters) -> None:
        """Bind those parameters of a selection that are not bound."""
        if selection.scores is not self._scores:
            self._scores = selection.scores
            self._binding.bind_shared_array("scores", selection.scores)
        if selection.with_logits != self._with_logits:
            self._return_logits(selection.with_logits)
        if selection.renormalize is not self._renormalize:
            self._renormalize = selection.renormalize
            self._bind_renormalize(selection.renormalize)
        self._give_constraints(selection.on_logits, selection.on_log_probs)
        if selection.candidates != self._candidates:
            self._bind_candidates(selection.candidates)
        self._selection = selection

    def _give_constraints(self, on_logits: Constraints, on_log_probs: Constraints) -> None:
        """Bind constraints, unless they are bound."""
        if on_logits is not self._on_logits:
            self._on_logits = on_logits
            self._bind_constraints("logit", on_logits)
        if on_log_probs is not self._on_log_probs:
            self._on_log_probs = on_log_probs
            self._bind_constraints("log_prob", on_log_probs)

    def _bind_sizes(self) -> None:
        """Bind sizes on the host; copies them if the device reads them."""
        self._binding.bind_input("candidates", as_value(np.array([self._candidates])))
        self._binding.bind_input("logit_rows", as_value(np.array([self.rows if self._with_logits else 0])))

    def _bind_candidates(self, candidates: int) -> None:
        self._candidates = candidates
        self._bind_sizes()
        shape = (self.rows, min(candidates, self.width))
        self._tokens, self._totals = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        self._binding.bind_output("tokens", as_value(self._tokens))
        self._binding.bind_output("totals", as_value(self._totals))

    def _return_logits(self, with_logits: bool) -> None:
        self._with_logits = with_logits
        self._bind_sizes()
        self._binding.bind_output("logits")  # a binding keeps the shape that an output had

    def _bind_constraints(self, stage: str, constraints: Constraints) -> None:
        constraints = never_empty(constraints) if self._for_device else constraints
        for name, array in constraint_arrays(stage, constraints, self.width).items():
            self._binding.bind_array(name, array)

    def _bind_renormalize(self, renormalize: NDArray[np.bool_] | None) -> None:
        rows = np.zeros(0, np.int64) if renormalize is None else np.flatnonzero(renormalize)
        if self._for_device:  # takes no empty tensors: one row at least, that may not ask for it
            self._binding.bind_array("renormalize.asked", np.full(max(1, len(rows)), len(rows) > 0))
            rows = rows if len(rows) else np.zeros(1, np.int64)
        self._binding.bind_array("renormalize", rows)
