"""Native recurrent units: graphs that are fused, and those that are not."""

from typing import Any

import numpy as np
import pytest

from jumok_export.graphs.graph import Graph
from jumok_export.native.graphs import native_graph
from jumok_export.quantization.int8_graphs import quantize_graph
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.native import library
from tests.support.models.small_graphs import native_of, node, operators, outputs_of, small_graph

WIDTH = 12
RANDOM = np.random.default_rng(4)
CONSTANTS = {
    **{name: RANDOM.normal(size=(WIDTH, WIDTH)).astype(np.float32) for name in ("candidates", "gates")},
    **{
        each: RANDOM.normal(size=WIDTH).astype(np.float32) for each in ("candidate_bias", "gate_bias", "scale", "shift")
    },
    "one": np.array(1, np.float32),
    "two": np.array(2, np.float32),
    "last": np.array([-1]),
    "by_beams": np.array([-1, 2]),
    "by_rows": np.array([-1, WIDTH]),
}
UNIT = """
parents by_beams -> by_sentence Reshape
by_sentence last -> places Unsqueeze
state.cell places -> cell GatherND
positions candidates -> candidate MatMul
positions gates -> gate MatMul
gate gate_bias -> biased Add
biased -> share Sigmoid
share cell -> kept Mul
one share -> rest Sub
rest candidate -> new Mul
kept new -> next Add
next -> relu Relu
positions relu -> total Add
total scale shift -> norm LayerNormalization
next by_rows -> next_state.cell Reshape
"""
INPUTS = (
    TensorSpec(name="positions", dtype="float32", axes=("B", 2, WIDTH)),
    TensorSpec(name="parents", dtype="int64", axes=("R",)),
    TensorSpec(name="state.cell", dtype="float32", axes=("P", WIDTH)),
)
OUTPUTS = (
    TensorSpec(name="norm", dtype="float32", axes=("B", 2, WIDTH)),
    TensorSpec(name="next_state.cell", dtype="float32", axes=("R", WIDTH)),
)


def graph_of(text: str) -> Graph:
    """A graph of lines: inputs -> output operator."""
    nodes = []
    for line in text.strip().splitlines():
        inputs, _, rest = line.partition(" -> ")
        output, operator = rest.split()
        nodes.append(node(operator, inputs, output))
    return small_graph(nodes, CONSTANTS, INPUTS, OUTPUTS)


def changed(*changes: tuple[str, str]) -> str:
    text = UNIT
    for before, after in changes:
        assert text.count(before) == 1
        text = text.replace(before, after)
    return text


TURNED = ("kept new ->", "share cell ->", "rest candidate ->", "positions relu ->")
UNITS = {
    "gate's bias": (UNIT, 2),
    "turned around": (changed(*((pair, " ".join([*pair.split()[1::-1], "->"])) for pair in TURNED)), 2),
    "no bias": (changed(("gate gate_bias -> biased Add\n", ""), ("biased -> share", "gate -> share")), 0),
    "biases": (changed(("-> candidate MatMul", "-> plain MatMul\nplain candidate_bias -> candidate Add")), 1),
}


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_one_operator(unit: str) -> None:
    text, biased = UNITS[unit]
    native = made_native(graph_of(text))
    assert operators(native) == ["FloatSsruAddNorm"]
    [only] = native.model.graph.node
    assert {each.name: each.i for each in only.attribute}["biased"] == biased


def test_products_with_scales_of_rows_stay_apart() -> None:
    """They have factors, which the operator of a unit does not take."""
    names = operators(made_native(quantize_graph(graph_of(UNIT))))
    assert names.count("Product") == 2
    assert not any("Ssru" in name for name in names)


def made_native(graph: Graph) -> Graph:
    """The native graph, after a comparison of its results."""
    native = native_of(graph)
    if library() is None:
        return native
    feeds: dict[str, Any] = {
        "positions": RANDOM.normal(size=(3, 2, WIDTH)).astype(np.float32),
        "parents": RANDOM.integers(0, 8, 6),
        "state.cell": RANDOM.normal(size=(8, WIDTH)).astype(np.float32),
    }
    for one, other in zip(outputs_of(graph, feeds), outputs_of(native, feeds), strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-5)
    return native


@pytest.mark.parametrize(
    "change",
    [
        ("one share ->", "two share ->"),  # shares do not add up to 1
        ("positions gates ->", "cell gates ->"),  # products have different inputs
        ("-> share Sigmoid", "-> share Tanh"),
        ("-> relu Relu", "-> relu Softplus"),
    ],
)
def test_other_cells_stay(change: tuple[str, str]) -> None:
    native = native_graph(graph_of(changed(change)))
    assert native is None or not any("Ssru" in name for name in operators(native))
