"""Verify native graphs against PyTorch or the plain graphs."""

from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jumok_export.parallel import concurrently
from jumok_export.verification.comparison import Differences, RelativeError, failed_check, likely
from jumok_export.verification.rollout import play
from jumok_export.verification.runtime_side import GraphFailedError, RuntimeSide
from jumok_export.verification.samples import InputBounds, Samples
from jumok_export.verification.shortlist import listed_steps
from jumok_export.verification.sides import Side, StepInputs
from jumok_export.verification.trial import Reference
from jumok_serve.manifest.manifest import Check
from jumok_serve.runtime.graphs import Graphs

PREFIX = "native: "
"""Prefix of the names of these checks."""
ROUNDING_ERROR = 0.1
"""Limit of the relative error of logits and state in int8, due to memory and state in int8.

Measured: 0.003 to 0.029 for random models; a wrong head or entry gives at least 0.5.
"""
STEPS, SENTENCES = 14, 8
"""Single steps that are compared, and sentences that are decoded; the plain graphs were compared on more."""

_Comparison = TypeVar("_Comparison", Differences, RelativeError)


def verify_native(
    expected: Side,
    graphs: Graphs,
    listed: Graphs | None,
    bounds: InputBounds,
    precision: str,
    *,
    reference: Reference | None = None,
    recorded: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Check, ...]:
    """Compare native graphs with the same computation: logits, state and selection.

    The encoder is not compared alone: an error in memory shows in the logits of whole decodes.

    Args:
        expected: in fp32 the model or the plain graphs; in int8 the plain graphs.
        listed: native graphs for shortlists, or None; compared with `graphs`.
        reference: measures the rounding of `expected`; None without the model.
        recorded: limits of the same checks when the plain graphs were verified, by name.
    """
    samples = Samples(bounds, expected)
    try:
        native = RuntimeSide(graphs)
        checks = (
            _compared(Differences, likely, samples, expected, native, reference, recorded)
            if precision == "fp32"
            else _compared(_rounded, np.asarray, samples, expected, native, reference, {})
        )
        if listed is not None:
            others = "those of the decoder without shortlists"
            checks.append(listed_steps(samples, RuntimeSide(graphs), listed, others, reference))
    except GraphFailedError as error:
        checks = [failed_check("decoder", error)]
    return tuple(check.model_copy(update={"name": f"{PREFIX}{check.name}"}) for check in checks)


def _rounded(name: str) -> RelativeError:
    return RelativeError(name, ROUNDING_ERROR)


def _compared(  # noqa: PLR0917 - one call, the parameters of `verify_native`
    make: Callable[[str], _Comparison],
    of_decode: Callable[[NDArray[Any]], NDArray[Any]],
    samples: Samples,
    expected: Side,
    native: RuntimeSide,
    reference: Reference | None,
    recorded: Mapping[str, float],
) -> list[Check]:
    rollout = samples.rollout(sentences=SENTENCES, beam_size=3)

    def measure(side: Side, other: Side) -> list[_Comparison]:
        step, state, decode = make("step logits"), make("step state"), make("decode")

        def compare(inputs: StepInputs) -> None:
            (logits, grown), (found, others) = side.step(inputs), other.step(inputs)
            step.compare(logits, found)
            for name, value in grown.items():
                state.compare(value, others[name])

        def steps() -> None:
            for inputs in islice(samples.steps(), STEPS):
                compare(inputs)

        def decodes() -> None:
            plays = (play(rollout, each, native.memory_specs, native.state_specs) for each in (side, other))
            for logits, found in zip(*plays, strict=True):
                decode.compare(of_decode(logits), of_decode(found))

        concurrently(lambda part: part(), (steps, decodes))
        compare(samples.longest()[1])  # alone, because it takes most memory
        return [step, state, decode]

    compared = measure(expected, native)
    if reference is not None and any(each.over for each in compared):
        for each, rounding in zip(compared, measure(reference.side, expected), strict=True):
            each.allow(rounding, reference.multiple, reference.of)
    for each, name in zip(compared, ("step logits", "step state", "decode, beam 3"), strict=True):
        each.limit = max(each.limit, recorded.get(name, 0.0))
    details = (
        "single steps over random memory and state, the longest that limits allow among them",
        "the state after these steps",
        f"logits of {SENTENCES} sentences in {len(rollout.steps)} steps, each side with its own state",
    )
    return [each.check(detail) for each, detail in zip(compared, details, strict=True) if each.cases]
