"""Verify native graphs against PyTorch or the plain graphs."""

from itertools import islice

from jumok_export.verification.comparison import Differences, RelativeError, failed_check
from jumok_export.verification.rollout import play
from jumok_export.verification.runtime_side import GraphFailedError, RuntimeSide
from jumok_export.verification.samples import InputBounds, Samples
from jumok_export.verification.shortlist import listed_steps
from jumok_export.verification.sides import Side
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


def verify_native(
    expected: Side, graphs: Graphs, listed: Graphs | None, bounds: InputBounds, precision: str
) -> tuple[Check, ...]:
    """Compare native graphs with the same computation: logits, state and selection.

    The encoder is not compared alone: an error in memory shows in the logits of whole decodes.

    Args:
        expected: in fp32 the model or the plain graphs; in int8 the plain graphs.
        listed: native graphs for shortlists, or None; compared with `graphs`.
    """
    samples = Samples(bounds, expected)
    try:
        checks = _compared(samples, expected, RuntimeSide(graphs), precision)
        if listed is not None:
            checks.append(listed_steps(samples, RuntimeSide(graphs), listed, "those of the decoder without shortlists"))
    except GraphFailedError as error:
        checks = [failed_check("decoder", error)]
    return tuple(check.model_copy(update={"name": f"{PREFIX}{check.name}"}) for check in checks)


def _compared(samples: Samples, expected: Side, native: RuntimeSide, precision: str) -> list[Check]:
    def comparison(name: str) -> Differences | RelativeError:
        return Differences(name) if precision == "fp32" else RelativeError(name, ROUNDING_ERROR)

    step, state, decode = comparison("step logits"), comparison("step state"), comparison("decode")
    for inputs in (*islice(samples.steps(), STEPS), samples.longest()[1]):
        (logits, grown), (found, others) = expected.step(inputs), native.step(inputs)
        step.compare(logits, found)
        for name, value in grown.items():
            state.compare(value, others[name])
    rollout = samples.rollout(sentences=SENTENCES, beam_size=3)
    sides = (play(rollout, side, native.memory_specs, native.state_specs) for side in (expected, native))
    for logits, found in zip(*sides, strict=True):
        decode.compare(logits, found)
    return [
        step.check("single steps over random memory and state, the longest that limits allow among them"),
        *([state.check("the state after these steps")] if state.cases else []),
        decode.check(f"logits of {SENTENCES} sentences in {len(rollout.steps)} steps, each side with its own state"),
    ]
