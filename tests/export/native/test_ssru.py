"""Native recurrent units: graphs that are fused, and those that are not."""

import numpy as np
import onnxruntime
import pytest
from onnx import NodeProto, helper, numpy_helper

from jumok_export.graphs.graph import OPSET, Graph, declare
from jumok_export.native.graphs import native_graph
from jumok_export.quantization.int8_graphs import quantize_graph
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.native import library

WIDTH = 12
RANDOM = np.random.default_rng(4)
CONSTANTS = {
    **{name: RANDOM.normal(size=(WIDTH, WIDTH)).astype(np.float32) for name in ("candidates", "gates")},
    **{
        name: RANDOM.normal(size=WIDTH).astype(np.float32) for name in ("candidate_bias", "gate_bias", "scale", "shift")
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
    nodes: list[NodeProto] = []
    for line in text.strip().splitlines():
        inputs, _, rest = line.partition(" -> ")
        output, operator = rest.split()
        nodes.append(helper.make_node(operator, inputs.split(), [output]))
    values = [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "unit", [], [], values), opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10
    )
    declare(model, INPUTS, OUTPUTS)
    return Graph(model, INPUTS, OUTPUTS)


def changed(*changes: tuple[str, str]) -> str:
    text = UNIT
    for before, after in changes:
        assert text.count(before) == 1
        text = text.replace(before, after)
    return text


def operators(graph: Graph) -> list[str]:
    return [node.op_type for node in graph.model.graph.node]


@pytest.mark.parametrize(
    ("changes", "biased"),
    [
        pytest.param((), 2, id="gate's bias"),
        pytest.param(
            (
                ("kept new ->", "new kept ->"),
                ("share cell ->", "cell share ->"),
                ("rest candidate ->", "candidate rest ->"),
                ("positions relu ->", "relu positions ->"),
            ),
            2,
            id="turned around",
        ),
        pytest.param((("gate gate_bias -> biased Add\n", ""), ("biased -> share", "gate -> share")), 0, id="no bias"),
        pytest.param(
            (
                (
                    "positions candidates -> candidate MatMul",
                    "positions candidates -> plain MatMul\nplain candidate_bias -> candidate Add",
                ),
            ),
            1,
            id="biases",
        ),
    ],
)
def test_a_unit_is_one_operator(changes: tuple[tuple[str, str], ...], biased: int) -> None:
    native = made_native(graph_of(changed(*changes)))
    assert operators(native) == ["FloatSsruAddNorm"]
    [node] = native.model.graph.node
    assert {each.name: each.i for each in node.attribute}["biased"] == biased


def test_products_with_scales_of_rows_stay_apart() -> None:
    """They have factors, which the operator of a unit does not take."""
    names = operators(made_native(quantize_graph(graph_of(UNIT))))
    assert names.count("Product") == 2
    assert not any("Ssru" in name for name in names)


def made_native(graph: Graph) -> Graph:
    """The native graph, after a comparison of its results."""
    native = native_graph(graph)
    assert native is not None
    if library() is None:
        return native
    feeds = {
        "positions": RANDOM.normal(size=(3, 2, WIDTH)).astype(np.float32),
        "parents": RANDOM.integers(0, 8, 6),
        "state.cell": RANDOM.normal(size=(8, WIDTH)).astype(np.float32),
    }
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library()))
    expected, found = (
        onnxruntime.InferenceSession(each.model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(
            [spec.name for spec in OUTPUTS], feeds
        )
        for each in (graph, native)
    )
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-5)
    return native


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("one share ->", "two share ->"), id="shares that do not add up to 1"),
        pytest.param(("positions gates ->", "cell gates ->"), id="products of different inputs"),
        pytest.param(("-> share Sigmoid", "-> share Tanh"), id="another gate"),
        pytest.param(("-> relu Relu", "-> relu Softplus"), id="another activation"),
    ],
)
def test_other_cells_stay(change: tuple[str, str]) -> None:
    native = native_graph(graph_of(changed(change)))
    assert native is None or not any("Ssru" in name for name in operators(native))
