"""Inputs of a decoder step: tokens by slot, and selection parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jumok_serve.native import address
from jumok_serve.search import NO_CONSTRAINTS, Constraints, Draw, Entries

_LEAST, _MOST = np.finfo(np.float32).tiny, np.finfo(np.float32).max


class DecoderInputs:
    """Decoder inputs by slot, in arrays that stay where they are.

    Args:
        tokens: the last token of each row, [slots, K].
        positions: tokens that each sentence's rows have decoded, [slots]. At 0 a row sees no earlier state.
        parents: row of the same sentence that each row continues, [slots, K].
        lengths: source lengths, [slots].

    Attributes:
        addresses: addresses of the four arrays, in this order, for native code.
    """

    def __init__(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        parents: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> None:
        self.tokens = tokens
        self.positions = positions
        self.parents = parents
        self.lengths = lengths
        self.addresses = tuple(map(address, (tokens, positions, parents, lengths)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionParameters:
    """Parameters of log-softmax, constraints and top-k at the end of a step.

    Attributes:
        scores: running scores, [R]; an array that the caller may change between steps.
        candidates: candidates of each row, C; at most U are given.
        on_logits: constraints before the log-softmax.
        on_log_probs: constraints after the log-softmax.
        renormalize: True if a second log-softmax follows, [R]; None: in no row.
        with_logits: True if the logits of the step will be read too.
    """

    scores: NDArray[np.float32]
    candidates: int
    on_logits: Constraints = NO_CONSTRAINTS
    on_log_probs: Constraints = NO_CONSTRAINTS
    renormalize: NDArray[np.bool_] | None = None
    with_logits: bool = False


def constraint_arrays(stage: str, constraints: Constraints, width: int) -> dict[str, NDArray[Any]]:
    """A graph's inputs for sparse constraints.

    Args:
        stage: "logit" before the log-softmax, "log_prob" after it.
        constraints: entries by row and column.
        width: columns of the logits, U.

    Returns:
        Places in the flat scores, row * U + column, and values: [N] each, of factors and of biases.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, entries in ((f"{stage}_factors", constraints.factors), (f"{stage}_biases", constraints.biases)):
        arrays[f"{name}.places"] = entries.places[:, 0] * width + entries.places[:, 1]
        arrays[f"{name}.values"] = entries.values
    return arrays


_FIRST_PLACE = np.zeros((1, 2), np.int64)
_NEUTRAL_FACTOR = Entries(_FIRST_PLACE, np.ones(1, np.float32))
_NEUTRAL_BIAS = Entries(_FIRST_PLACE, np.zeros(1, np.float32))


def never_empty(constraints: Constraints) -> Constraints:
    """Put a neutral entry into empty lists, which devices refuse."""
    factors, biases = constraints
    return Constraints(
        factors if len(factors.values) else _NEUTRAL_FACTOR, biases if len(biases.values) else _NEUTRAL_BIAS
    )


def draw_arrays(
    rows: NDArray[np.int64],
    scores: NDArray[np.float32],
    draws: Sequence[Draw],
    on_logits: Constraints,
    columns: int,
) -> dict[str, NDArray[Any]]:
    """Make the sampler's inputs besides the logits; see `Graphs.sample`.

    Args:
        columns: columns of the logits, U.
    """
    temperature, top_k, top_p, uniform = zip(*draws, strict=True)
    return {
        "rows": rows,
        "scores": scores,
        **constraint_arrays("logit", on_logits, columns),
        # A value beyond the range of fp32 must become neither 0 nor infinite.
        "temperature": np.clip(temperature, _LEAST, _MOST).astype(np.float32),
        "top_k": np.array(top_k, np.int64),
        "top_p": np.maximum(top_p, _LEAST, dtype=np.float32),
        "uniform": np.array(uniform, np.float32),
    }
