"""Native recurrent units: an SSRU from its products to the norm after its residual."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from onnx import NodeProto

from jumok_export.graphs.matching import Found, attributes
from jumok_export.native.operators import FLOAT, native
from jumok_export.native.products import NOTHING, PLAIN, operands_of

UNBIASED, ALL_BIASED, LAST_BIASED = 0, 1, 2
"""Values of the attribute `biased` of several products."""
NORM = "AddNorm"


class _Unit(NamedTuple):
    """One unit in a graph.

    Attributes:
        candidate, forget: native products of the same input.
        state: state of the last step, [P, width].
        parents: row of the state that each row continues, [R].
        following: the state after the step, [R, width]; an output of the graph.
    """

    candidate: NodeProto
    forget: NodeProto
    state: str
    parents: str
    following: str


def fuse_units(found: Found, nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Fuse each recurrent unit with the sum and norm after it.

    The nodes that a unit replaces stay, except for the one with its state: nothing reads them any more.

    Args:
        found: the graph before native operators.
        nodes: the nodes with native operators.
    """
    products = {node.output[0]: node for node in nodes if node.op_type in PLAIN and not operands_of(node)[1]}
    fused: list[NodeProto] = []
    made: set[str] = set()
    for node in nodes:
        found_units = [
            (unit, node.input[1 - index])
            for index in (1, 0)
            if node.op_type.startswith(NORM) and (unit := _unit(found, products, node.input[index])) is not None
        ]
        if not found_units:
            fused.append(node)
            continue
        unit, residual = found_units[0]
        made.add(unit.following)
        own = PLAIN[unit.candidate.op_type]
        operands = [*unit.candidate.input, *unit.forget.input[own:]]
        prefix = FLOAT if unit.candidate.op_type.startswith(FLOAT) else ""
        fused.append(
            native(
                f"{prefix}Ssru{node.op_type}",
                [*operands, residual, unit.state, unit.parents, *node.input[2:]],
                [*node.output, unit.following],
                **attributes(unit.forget) | attributes(node) | {"biased": _biases(unit)},
            )
        )
    return [node for node in fused if node.op_type != "Reshape" or made.isdisjoint(node.output)]


def _biases(unit: _Unit) -> int:
    biased = [attributes(product)["biased"] for product in (unit.candidate, unit.forget)]
    return {(0, 0): UNBIASED, (1, 1): ALL_BIASED, (0, 1): LAST_BIASED}[biased[0], biased[1]]


def _unit(found: Found, products: Mapping[str, NodeProto], output: str) -> _Unit | None:
    """Find the unit with an output, relu(f * state[parents] + (1 - f) * candidate) with f = sigmoid(forget)."""
    relu = found.maker(output, "Relu")
    total = found.maker(relu.input[0], "Add") if relu is not None else None
    if total is None:
        return None
    following = _following(found, total.output[0])
    for kept, new in (tuple(total.input), tuple(total.input)[::-1]):
        for share, cell in _factors(found, kept):
            gate, gathered = found.maker(share, "Sigmoid"), found.maker(cell, "GatherND")
            for rest, candidate in _factors(found, new):
                if gate is None or gathered is None or following is None or not _is_rest(found, rest, share):
                    continue
                pair = products.get(candidate), products.get(gate.input[0])
                parents = _parents(found, gathered.input[1])
                if pair[0] is not None and pair[1] is not None and _fit(pair[0], pair[1]) and parents is not None:
                    return _Unit(pair[0], pair[1], gathered.input[0], parents, following)
    return None


def _fit(candidate: NodeProto, forget: NodeProto) -> bool:
    """True if one operator can compute both products."""
    own, settings = PLAIN[candidate.op_type], (attributes(candidate), attributes(forget))
    return (
        candidate.op_type == forget.op_type
        and list(candidate.input[:own]) == list(forget.input[:own])
        and settings[0]["transposed"] == settings[1]["transposed"]
        and settings[0]["activation"] == settings[1]["activation"] == NOTHING
        and settings[0]["biased"] <= settings[1]["biased"]
    )


def _factors(found: Found, product: str) -> Sequence[tuple[str, str]]:
    """The two factors of a product of tensors, in both orders."""
    node = found.maker(product, "Mul")
    return () if node is None else ((node.input[0], node.input[1]), (node.input[1], node.input[0]))


def _is_rest(found: Found, rest: str, share: str) -> bool:
    """True for 1 - share."""
    node = found.maker(rest, "Sub")
    one = found.constant(node.input[0]) if node is not None else None
    return node is not None and node.input[1] == share and one is not None and one.ndim == 0 and bool(one == 1)


def _following(found: Found, cell: str) -> str | None:
    """The output of a graph that is a cell by row, if nothing else reads it."""
    reshapes = [each.output[0] for each in found.readers.get(cell, []) if each.op_type == "Reshape"]
    return next((name for name in reshapes if name in found.outputs and name not in found.readers), None)


def _parents(found: Found, places: str) -> str | None:
    """The rows that a gathering of rows takes, [R], or None."""
    node = found.maker(places, "Unsqueeze")
    axes = found.constant(node.input[1]) if node is not None else None
    if node is None or axes is None or not np.array_equal(axes, [-1]):
        return None
    by_beams = found.maker(node.input[0], "Reshape")
    return by_beams.input[0] if by_beams is not None and by_beams.input[0] in found.inputs else None
