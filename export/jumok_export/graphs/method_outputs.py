"""Checks of the outputs of a model's methods, before PyTorch's exporter traces them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from jumok_export.models.seq2seq import Tensors


@contextmanager
def shapes_noted(method: str, inputs: Mapping[str, Tensor]) -> Iterator[None]:
    """Add the shapes of a method's inputs to an exception that the method raises."""
    try:
        yield
    except Exception as error:
        shapes = ", ".join(f"{name} {_shape(value)}" for name, value in inputs.items())
        error.add_note(
            f"`{method}` was called with {shapes}; docs/own-model.md has the shapes of its inputs and outputs"
        )
        raise


def check_encoded(outputs: object, sentences: int) -> tuple[Tensors, Tensors]:
    """Check the outputs of `encode`.

    Args:
        outputs: memory and first state, [B, ...] each.
        sentences: B.

    Raises:
        ValueError: they are no such pair.
    """
    if not isinstance(outputs, tuple) or len(outputs) != 2:
        raise ValueError(
            f"`encode` returns {_described(outputs)}, expected memory and first state: two dictionaries of tensors, "
            "empty for none"
        )
    memory, first_state = outputs
    return _check_batch("memory", memory, sentences), _check_batch("first state", first_state, sentences)


def check_empty_state(empty: object, first_state: Tensors, *, carried: bool) -> Tensors:
    """Check the output of `empty_state`, [1, ...], and the first state of `encode` against it.

    Args:
        carried: True if loops over the target carry the state.

    Raises:
        ValueError: it is not one row, the first state is of another kind, or no loop can carry the state.
    """
    rows = _check_tensors("the output of `empty_state`", empty)
    for name, row in rows.items():
        if row.shape[:1] != (1,):
            raise ValueError(
                f"state {name!r} of `empty_state` has shape {_shape(row)}, expected one row [1, ...] of [rows, ...]: "
                "return state[None] if the axis of the rows is missing, state[:1] if there are several rows"
            )
    if first_state and first_state.keys() != rows.keys():
        raise ValueError(
            f"`encode` gives first states {sorted(first_state)} and `empty_state` has {sorted(rows)}: "
            "there must be one for each, or none"
        )
    if carried:
        _check_carried(rows, first_state)
    for name, first in first_state.items():
        _check_alike(f"first state {name!r} of `encode`", first, rows[name], "sentences")
    return rows


def _check_batch(role: str, given: object, sentences: int) -> Tensors:
    tensors = _check_tensors(f"the {role} of `encode`", given)
    for name, tensor in tensors.items():
        if tensor.shape[:1] != (sentences,):
            raise ValueError(
                f"{role} {name!r} of `encode` has shape {_shape(tensor)}, expected [{sentences}, ...] for {sentences} "
                "sentences: axis 0 must be the batch; transpose states [layers, B, width] of nn.GRU and nn.LSTM, and "
                "expand constants"
            )
    return tensors


def _check_carried(state: Tensors, first_state: Tensors) -> None:
    """Raise ValueError if a state cannot be carried through a loop over the target."""
    for name, row in state.items():
        if name not in first_state:
            raise ValueError(
                f"a model that scores by steps needs a first state {name!r} from `encode`, which gives none"
            )
        if 0 in row.shape:
            raise ValueError(f"a model that scores by steps has a state of one size, and {name!r} grows with time")


def check_step(method: str, outputs: object, rows: int, states: int, empty: Tensors) -> None:
    """Check the outputs of a step.

    Args:
        method: `step`, `step_in_place` or `attending_step`.
        outputs: logits [rows, V] and the next state [states, ...]; `attending_step` also returns attention.
        empty: the output of `empty_state`.

    Raises:
        ValueError: an output is missing, or has another shape.
    """
    attends = method == "attending_step"
    if not isinstance(outputs, tuple) or len(outputs) != 2 + attends:
        raise ValueError(
            f"`{method}` returns {_described(outputs)}, expected logits [R, V] and a dictionary of the next state"
            f"{', then attention [R, layers, heads, S]' if attends else ''}"
        )
    logits, state, *attention = outputs
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != rows:
        raise ValueError(f"the logits of `{method}` are {_described(logits)}, expected [R, V] with R = {rows} rows")
    state = _check_tensors(f"the next state of `{method}`", state)
    if state.keys() != empty.keys():
        raise ValueError(
            f"`{method}` returns next states {sorted(state)} and `empty_state` has {sorted(empty)}: "
            "there must be one for each"
        )
    for name, tensor in state.items():
        if tensor.shape[:1] != (states,):
            remedy = "keep its batch" if method == "step_in_place" else "continue the rows `parents` of the given state"
            raise ValueError(
                f"next state {name!r} of `{method}` has shape {_shape(tensor)}, expected [{states}, ...]: {remedy}"
            )
        _check_alike(f"next state {name!r} of `{method}`", tensor, empty[name], "rows")
    for weights in attention:
        _check_weights(method, weights, rows, "[R, layers, heads, S]")


def check_scores(scores: object, sentences: int, tokens: int) -> None:
    """Raise ValueError unless the output of `score` is log-probabilities [B, T]."""
    if not isinstance(scores, Tensor) or scores.shape != (sentences, tokens):
        raise ValueError(
            f"`score` returns {_described(scores)}, expected the log-probability of every target token, [B, T]: here "
            f"[{sentences}, {tokens}]"
        )


def check_attention(outputs: object, sentences: int) -> None:
    """Raise ValueError unless the outputs of `align` are three kinds of attention, [B, layers, heads, ...]."""
    if not isinstance(outputs, tuple) or len(outputs) != 3:
        raise ValueError(
            f"`align` returns {_described(outputs)}, expected attention of three kinds: cross, encoder and decoder"
        )
    for weights in outputs:
        _check_weights("align", weights, sentences, "[B, layers, heads, to, from]")


def _check_weights(method: str, weights: object, rows: int, expected: str) -> None:
    axes = expected.count(",") + 1
    if not isinstance(weights, Tensor) or weights.dim() != axes or len(weights) != rows:
        raise ValueError(f"attention of `{method}` is {_described(weights)}, expected {expected}, here [{rows}, ...]")


def _check_tensors(subject: str, tensors: object) -> Tensors:
    if not isinstance(tensors, dict):
        raise ValueError(
            f"{subject} is {_described(tensors)}, expected a dictionary of tensors by name, empty for none"
        )
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name!r} in {subject} is {_described(tensor)}, expected a tensor")
    return tensors


def _check_alike(subject: str, tensor: Tensor, row: Tensor, axis: str) -> None:
    """Raise ValueError if a state differs from `empty_state` in more than the rows and the axes that grow."""
    expected = row.shape[1:]
    fits = tensor.dim() == row.dim() and all(
        size in {0, got} for size, got in zip(expected, tensor.shape[1:], strict=True)
    )
    if not fits or tensor.dtype != row.dtype:
        raise ValueError(
            f"{subject} is {_described(tensor)} and that of `empty_state` {_described(row)}: give both one type, and "
            f"one shape after the axis of the {axis}; an axis of size 0 may grow"
        )


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {_shape(value)} of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"
