"""Parameters of a step's selection: constraints and candidates, found again only if they change."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from jumok_serve.runtime.graphs import Booleans, Floats, Integers
from jumok_serve.runtime.output_columns import Columns
from jumok_serve.runtime.step_inputs import SelectionParameters
from jumok_serve.search import BatchSearch, Constraints, SharedConstraints, concatenate_constraints, with_boosts


class StepSelection:
    """Makes the parameters of each step's selection."""

    def __init__(self, beam_size: int) -> None:
        self._beam_size = beam_size
        self._constrained: dict[int, _StepConstraints] = {}  # by the number of sentences
        self._candidates: tuple[Integers | None, int, int] = None, 0, 0  # of each row, with their slots and `changes`
        self._scores: _RowScores | None = None
        self._last: tuple[_StepConstraints, SelectionParameters] | None = None

    def parameters(self, slots: Integers, searches: BatchSearch, columns: Columns) -> SelectionParameters:
        """Make the selection's parameters, without constraints on rows that draw.

        The object and its scores stay the same as long as nothing but the values of the scores changes.

        Args:
            slots: slots of the step, ascending, [n].
            searches: searches by slot.
            columns: columns of the logits.
        """
        inputs, arrays = columns.inputs(len(slots)), searches.arrays
        kept = self._constrained.get(len(slots))
        # Most steps have the constraints of an earlier step, maybe of other sentences.
        if kept is None or not kept.hold(inputs, searches, slots):
            draws, acting = arrays.draws[slots].tolist(), arrays.on_logits[slots].tolist()
            renormalizes = arrays.renormalizes[slots]
            on_logits, on_log_probs = (
                columns.to_columns(
                    concatenate_constraints(
                        (index * self._beam_size, searches.constraints[slot])
                        for index, slot in enumerate(slots.tolist())
                        if not draws[index] and acting[index] == of_logits
                    )
                )
                for of_logits in (True, False)
            )
            kept = self._constrained[len(slots)] = _StepConstraints(
                version=searches.constraints_version,
                slots=slots,
                shared=searches.shared_constraints(slots),
                inputs=inputs,
                on_logits=on_logits,
                on_log_probs=on_log_probs,
                renormalize=np.repeat(renormalizes, self._beam_size) if renormalizes.any() else None,
                with_logits=any(draws),
            )
        elif kept.slots is not slots or kept.version != searches.constraints_version:
            kept = self._constrained[len(slots)] = kept.held_by(slots, searches.constraints_version)
        on_log_probs = kept.on_log_probs
        if searches.has_boosts:
            on_log_probs = with_boosts(on_log_probs, columns.to_columns(searches.boosts(slots)))
        scores, candidates = self._scores_of(slots, arrays.scores), self._candidates_of(slots, searches)
        if self._last is not None and self._last[0] is kept:
            last = self._last[1]
            if last.scores is scores and last.candidates == candidates and last.on_log_probs is on_log_probs:
                return last
        parameters = SelectionParameters(
            scores=scores,
            candidates=candidates,
            on_logits=kept.on_logits,
            on_log_probs=on_log_probs,
            renormalize=kept.renormalize,
            with_logits=kept.with_logits,
        )
        self._last = kept, parameters
        return parameters

    def renew_scores(self) -> None:
        """Give the last parameters the present scores of the same slots."""
        if self._scores is not None:
            self._scores.renew()

    def _scores_of(self, slots: Integers, scores: Floats) -> Floats:
        """Return the running scores of the step's rows, [R], in the same array as long as possible."""
        rows = self._scores
        if rows is None or rows.slots is not slots or rows.by_slot is not scores:
            rows = self._scores = _RowScores.of(slots, scores, rows)
        rows.renew()
        return rows.scores

    def _candidates_of(self, slots: Integers, searches: BatchSearch) -> int:
        """Return the candidates that the next step needs of each row, C."""
        arrays = searches.arrays
        known, changes, candidates = self._candidates
        if known is not slots or changes != arrays.changes:
            candidates = int(np.maximum.reduce(arrays.num_candidates[slots]))
            self._candidates = slots, arrays.changes, candidates
        return candidates


class _RowScores(NamedTuple):
    """Running scores of the rows of a step.

    Attributes:
        slots: slots of the step, [n].
        by_slot: running scores by slot, [slots, K].
        scores: running scores of the rows, [R]; part of `by_slot` if the slots are 0 .. n-1.
        gathered: the same memory [n, K], to be filled before a step; None: part of `by_slot`.
    """

    slots: Integers
    by_slot: Floats
    scores: Floats
    gathered: Floats | None

    def renew(self) -> None:
        """Gather the present scores, if they are gathered."""
        if self.gathered is not None:
            self.by_slot.take(self.slots, axis=0, out=self.gathered, mode="clip")  # "raise" would copy once more

    @classmethod
    def of(cls, slots: Integers, by_slot: Floats, earlier: "_RowScores | None") -> "_RowScores":
        """Make the scores of a step, in the array of earlier ones if it fits; gathered ones have no values yet."""
        first = bool(slots[-1] == len(slots) - 1)
        fits = earlier is not None and earlier.by_slot is by_slot and len(earlier.slots) == len(slots)
        if earlier is not None and fits and first == (earlier.gathered is None):
            return earlier._replace(slots=slots)
        if first:
            return cls(slots, by_slot, by_slot[: len(slots)].reshape(-1), None)
        gathered = np.empty((len(slots), by_slot.shape[1]), by_slot.dtype)
        return cls(slots, by_slot, gathered.reshape(-1), gathered)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepConstraints:
    """Constraints of all sentences of a step, concatenated.

    Attributes:
        version: `BatchSearch.constraints_version` at that step.
        slots: slots of the step, [n].
        shared: constraints that all sentences share, or None.
        inputs: decoder inputs for the columns.
        on_logits: constraints on columns of logits.
        on_log_probs: constraints on columns of log-probabilities.
        renormalize: True if a log-softmax follows them, [n * K]; None: in no row.
        with_logits: True if some rows draw.
    """

    version: int
    slots: Integers
    shared: SharedConstraints | None
    inputs: Mapping[str, object]
    on_logits: Constraints
    on_log_probs: Constraints
    renormalize: Booleans | None
    with_logits: bool

    def hold(self, inputs: Mapping[str, object], searches: BatchSearch, slots: Integers) -> bool:
        """True if these parameters hold for the next step in `slots` too."""
        if self.inputs is not inputs:
            return False
        if self.slots is slots and self.version == searches.constraints_version:
            return True
        return self.shared is not None and self.shared.equals(searches.shared_constraints(slots))

    def held_by(self, slots: Integers, version: int) -> "_StepConstraints":
        """Return the same parameters for other slots, where they `hold`."""
        return replace(self, slots=slots, version=version)
