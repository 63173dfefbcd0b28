"""The graph contract: tensors that the graphs of each role must have."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from jumok_serve.manifest.manifest import DType, GraphSpec, TensorSpec


class _Needed(NamedTuple):
    dtype: DType
    axes: int


_SELECTED = {"tokens": _Needed("int64", 2), "totals": _Needed("float32", 2)}
_OUTPUTS: dict[str, dict[str, _Needed]] = {
    "decoder": {**_SELECTED, "logits": _Needed("float32", 2)},
    "sampler": _SELECTED,
    "scorer": {"log_probabilities": _Needed("float32", 2)},
    "aligner": {"cross_attention": _Needed("float32", 5)},
}
"""Outputs that every graph of a role has."""
_INPUTS = {
    **{name: _Needed("int64", 2) for name in ("source_ids", "target_ids")},
    **{
        name: _Needed("int64", 1)
        for name in ("source_lengths", "target_lengths", "start_ids", "parents", "renormalize")
    },
    "scores": _Needed("float32", 1),
    "places": _Needed("int64", 3),
    "visible": _Needed("bool", 3),
    "entry_positions": _Needed("int64", 2),
}
"""Inputs of a known type, if a graph has them."""


def contract_problems(graphs: Mapping[str, GraphSpec], full_decoder: GraphSpec) -> list[str]:
    """List the tensors that graphs lack, or have with another type or number of axes.

    Args:
        graphs: the graphs to run, by role.
        full_decoder: the decoder whose logits have all target tokens.
    """
    problems = [f"{spec.file}: {problem}" for role, spec in graphs.items() for problem in _tensors(role, spec)]
    logits = next((spec for spec in full_decoder.outputs if spec.name == "logits"), None)
    if logits is None or not logits.axes or not isinstance(logits.axes[-1], int):
        problems.append(f"{full_decoder.file}: output 'logits' must have a constant number of target tokens")
    return [*problems, *_state(graphs)]


def _tensors(role: str, graph: GraphSpec) -> Iterator[str]:
    outputs = {spec.name: spec for spec in graph.outputs}
    for name, needed in _OUTPUTS.get(role, {}).items():
        if name not in outputs:
            yield f"output {name!r} is missing"
        else:
            yield from _differences("output", outputs[name], needed)
    for spec in graph.inputs:
        if spec.name in _INPUTS:
            yield from _differences("input", spec, _INPUTS[spec.name])
    for spec in (*graph.inputs, *graph.outputs):
        if spec.name.partition(".")[0] in {"memory", "state", "next_state"} and not spec.axes:
            yield f"{spec.name!r} must have an axis for sentences"


def _differences(role: str, spec: TensorSpec, needed: _Needed) -> Iterator[str]:
    if (spec.dtype, len(spec.axes)) != needed:
        got = f"{spec.dtype} with {len(spec.axes)}"
        yield f"{role} {spec.name!r} must be {needed.dtype} with {needed.axes} axes, got {got}"


def _state(graphs: Mapping[str, GraphSpec]) -> Iterator[str]:
    """Problems between graphs: memory or listed weights without a source, state without a successor."""
    decoder = graphs["decoder"]
    makers = (graphs[role] for role in ("encoder", "projection", "decoder") if role in graphs)
    made = {spec.name: spec for maker in makers for spec in maker.outputs}
    for spec in decoder.inputs:
        kind = spec.name.partition(".")[0]
        name = f"next_{spec.name}" if kind == "state" else spec.name
        if kind not in {"memory", "state", "projection"}:
            continue
        if name not in made:
            yield f"{decoder.file}: no graph makes {name!r}, which the decoder reads"
        elif made[name].dtype != spec.dtype or not _fit(made[name].axes, spec.axes):
            yield f"{decoder.file}: {name!r} is made with other types or sizes than the decoder reads"


def _fit(made: Sequence[int | str], read: Sequence[int | str]) -> bool:
    """True if constant sizes agree."""
    return len(made) == len(read) and all(
        one == other for one, other in zip(made, read, strict=True) if isinstance(one, int) and isinstance(other, int)
    )
