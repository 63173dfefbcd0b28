"""int8 arithmetic against NumPy: weights, embeddings, products, and independence of rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from jumok_export.bundles.recipe import write_variant
from jumok_export.graphs.graph import Graph
from jumok_export.graphs.quantize_matrix import MAX_WEIGHT, quantize_weight
from jumok_export.quantization.fake_quantization import Int8Arithmetic
from jumok_export.quantization.find_matrices import EMBEDDING_ROWS, quantized_matrices, rectified_keys, weight_key
from jumok_export.quantization.int8_graphs import Scales, quantize_graph
from tests.support.models.small_graphs import node, outputs_of

Array = NDArray[Any]


def graph_of(nodes: Sequence[onnx.NodeProto], constants: dict[str, Array], inputs: dict[str, Array]) -> Graph:
    """A graph of these operators with the output `y`."""
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim)
        for name, value in inputs.items()
    ]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    values = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "test", given, made, values)
    return Graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), (), ())


def run(graph: Graph, **inputs: Array) -> Array:
    output: Array = outputs_of(graph, inputs)[0]
    return output


def normal(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rounded_rows(activation: Array, largest: int = 127) -> Array:
    """Round each row [..., K] to ±`largest` quantized values, and back."""
    scale = np.abs(activation).max(-1, keepdims=True).clip(1e-30) / largest
    rounded: Array = np.rint(activation / scale) * scale
    return rounded


def rounded_positive(activation: Array) -> Array:
    """Round each row [..., K] to 0 to 255, and back; negative values become 0."""
    positive = activation.clip(0)
    scale = positive.max(-1, keepdims=True).clip(1e-30) / 255
    rounded: Array = np.rint(positive / scale) * scale
    return rounded


def rounded_by(activation: Array, scale: float) -> Array:
    """Round to -128 to 127 by one scale, and back."""
    rounded: Array = np.clip(np.rint(activation / np.float32(scale)), -128, 127) * np.float32(scale)
    return rounded


def rounded_columns(weight: Array) -> Array:
    """Round each column of [K, N] as weights, and back."""
    return rounded_rows(weight.T, MAX_WEIGHT).T


@pytest.mark.parametrize("channels", [0, 1])
def test_weights_are_within_half_a_scale(channels: int) -> None:
    weight = normal(30, 50) * np.linspace(0.01, 9, 50, dtype=np.float32)
    values, scales = quantize_weight(weight, channels)
    assert values.dtype == np.int8
    assert scales.shape == (weight.shape[channels],)
    wide = np.expand_dims(scales, 1 - channels)
    assert (np.abs(values * wide - weight) <= 0.501 * wide).all()
    # The largest value of each channel is a full level, so no range is wasted.
    np.testing.assert_array_equal(np.abs(values.astype(int)).max(1 - channels), MAX_WEIGHT)


MATMUL = [node("MatMul", "x w", "y")]
TRANSPOSED = [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "y")]
GEMM = [node("Gemm", "x w b", "y", transB=1, alpha=1.0, beta=1.0)]
ADDED = [node("MatMul", "x w", "p"), node("Add", "p b", "y")]
ADDED_BEFORE = [TRANSPOSED[0], node("MatMul", "x t", "p"), node("Add", "b p", "y")]


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize(
    ("nodes", "turned", "shape"),
    [
        (MATMUL, False, (2, 3, 16)),
        (MATMUL, False, (1, 16)),
        (TRANSPOSED, True, (5, 16)),
        (GEMM, True, (7, 16)),
        (ADDED, False, (2, 3, 16)),
        (ADDED_BEFORE, True, (2, 3, 16)),
    ],
    ids=["matmul of rank 3", "matmul of one row", "transposed", "gemm", "bias added", "transposed, bias added"],
)
def test_products_are_those_of_rounded_rows_and_rounded_columns(
    nodes: list[onnx.NodeProto], turned: bool, shape: tuple[int, ...], calibrated: bool
) -> None:
    """Calibrated, all rows are rounded by one scale."""
    weight, bias, x = normal(16, 20), normal(20, seed=2), normal(*shape, seed=3)
    scales: Scales = {}
    rounded = rounded_rows(x)
    if calibrated:
        x.ravel()[:2] = -9, 9  # far beyond the range
        scales, rounded = {weight_key(weight): 0.02}, rounded_by(x, 0.02)
    graph = graph_of(nodes, {"w": np.ascontiguousarray(weight.T) if turned else weight, "b": bias}, {"x": x})
    expected = rounded @ rounded_columns(weight) + (bias if any("b" in each.input for each in nodes) else 0)
    quantized = quantize_graph(graph, scales)
    np.testing.assert_allclose(run(quantized, x=x), expected, atol=1e-4)
    assert len(quantized_matrices(graph)) == 1
    operators = {each.op_type for each in quantized.model.graph.node}
    assert {"MatMulIntegerToFloat", "QuantizeLinear"} <= operators
    assert not calibrated or {"ReduceMax", "Mul", "Add"}.isdisjoint(operators)


RECTIFIED = [node("Relu", "x", "r"), node("MatMul", "r w", "y")]


@pytest.mark.parametrize("calibrated", [False, True])
def test_relu_outputs_use_the_whole_range_and_rounding_replaces_the_relu(calibrated: bool) -> None:
    weight, x = normal(16, 20), normal(2, 4, 16, seed=3)
    x[0, 1] = -np.abs(x[0, 1])
    x[1, 2] = 0
    graph = graph_of(RECTIFIED, {"w": weight}, {"x": x})
    scales: Scales = {weight_key(weight): 0.005} if calibrated else {}
    quantized = quantize_graph(graph, scales)
    rounded = np.clip(np.rint(x / np.float32(0.005)), 0, 255) * np.float32(0.005) if calibrated else rounded_positive(x)
    y = run(quantized, x=x)
    np.testing.assert_allclose(y, rounded @ rounded_columns(weight), atol=1e-4)
    assert (y[0, 1] == 0).all()
    assert (y[1, 2] == 0).all()
    assert rectified_keys([graph]) == {weight_key(weight)}
    sizes = {each.op_type: each.input[0] for each in quantized.model.graph.node}
    assert sizes.get("Relu") != "x"
    assert calibrated == ("Relu" not in sizes)


def test_what_other_nodes_read_stays() -> None:
    """A ReLU, and a product before its bias is added; products of activations stay in fp32."""
    weight, bias, x = normal(16, 16), normal(16, seed=2), normal(16, 16, seed=3)
    relu = [RECTIFIED[0], node("MatMul", "r w", "p"), node("Add", "p r", "y")]
    added = [ADDED[0], node("Add", "p b", "s"), node("Mul", "s p", "y")]
    product = rounded_rows(x) @ rounded_columns(weight)
    for nodes, expected, atol in (
        (relu, rounded_positive(x) @ rounded_columns(weight) + x.clip(0), 1e-4),
        (added, (product + bias) * product, 1e-3),
    ):
        graph = graph_of(nodes, {"w": weight, "b": bias}, {"x": x})
        np.testing.assert_allclose(run(quantize_graph(graph), x=x), expected, atol=atol)
    small = normal(4, 4)
    graph = graph_of([node("MatMul", "x x", "y")], {}, {"x": small})
    np.testing.assert_allclose(run(quantize_graph(graph), x=small), small @ small, rtol=1e-5)


def test_graphs_within_nodes_read_outer_tensors() -> None:
    """The inner graph reads the product without its bias, and a constant that no other node reads."""
    weight, bias, x = normal(16, 20), normal(20, seed=2), normal(5, 16, seed=3)
    sums = [helper.make_node("Add", [name, other], ["z"]) for name, other in (("p", "c"), ("s", "s"))]
    then, otherwise = (
        helper.make_graph([each], "branch", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])
        for each in sums
    )
    branches = node("If", "condition", "y", then_branch=then, else_branch=otherwise)
    nodes = [ADDED[0], node("Add", "p b", "s"), branches]
    inputs = {"x": x, "condition": np.array(True)}
    quantized = quantize_graph(graph_of(nodes, {"w": weight, "b": bias, "c": np.ones(20, np.float32)}, inputs))
    product = rounded_rows(x) @ rounded_columns(weight)
    np.testing.assert_allclose(run(quantized, **inputs), product + 1, atol=1e-4)
    np.testing.assert_allclose(run(quantized, x=x, condition=np.array(False)), 2 * (product + bias), atol=1e-4)


def test_rows_do_not_depend_on_other_rows() -> None:
    graph = quantize_graph(graph_of(MATMUL, {"w": normal(16, 20)}, {"x": normal(1, 16)}))
    x = normal(6, 16, seed=4)
    x[1] = 0
    x[4] *= 1e6
    together = run(graph, x=x)
    for row in range(6):
        np.testing.assert_array_equal(run(graph, x=x[row : row + 1])[0], together[row])
    assert (together[1] == 0).all()


def test_an_activation_is_rounded_once_for_each_scale_that_its_products_have() -> None:
    weights = {name: normal(16, 20, seed=seed) for seed, name in enumerate("tuvwx")}
    nodes = [helper.make_node("MatMul", ["a", name], [f"product.{name}"]) for name in weights]
    nodes.append(helper.make_node("Sum", [node.output[0] for node in nodes], ["y"]))
    a = normal(3, 16, seed=9)
    scales = {weight_key(weights[name]): scale for name, scale in (("u", 0.02), ("v", 0.02), ("w", 0.03))}
    quantized = quantize_graph(graph_of(nodes, weights, {"a": a}), scales)
    assert [each.op_type for each in quantized.model.graph.node].count("QuantizeLinear") == 3
    rounded = {"u": rounded_by(a, 0.02), "v": rounded_by(a, 0.02), "w": rounded_by(a, 0.03)}
    expected = sum(rounded.get(name, rounded_rows(a)) @ rounded_columns(weights[name]) for name in weights)
    np.testing.assert_allclose(run(quantized, a=a), expected, atol=1e-4)


@pytest.mark.parametrize("rows", [EMBEDDING_ROWS, EMBEDDING_ROWS - 1])
def test_large_embeddings_are_rounded_row_by_row_and_small_ones_are_left(rows: int) -> None:
    table = normal(rows, 12) * np.linspace(0.1, 3, rows, dtype=np.float32)[:, None]
    ids = np.array([[0, 5, rows - 1], [7, 7, 1]])
    graph = graph_of([node("Gather", "w ids", "y", axis=0)], {"w": table}, {"ids": ids})
    expected = rounded_rows(table, MAX_WEIGHT) if rows == EMBEDDING_ROWS else table
    np.testing.assert_allclose(run(quantize_graph(graph), ids=ids), expected[ids], atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_tied_embedding_is_stored_once(tiny_graphs: dict[str, Graph], precision: str, tmp_path: Path) -> None:
    """The encoder looks it up, the decoder multiplies with it, the scorer does both."""
    graphs = tiny_graphs if precision == "fp32" else {n: quantize_graph(graph) for n, graph in tiny_graphs.items()}
    variant = write_variant(graphs, tmp_path, precision)
    places: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for spec in variant.graphs.values():
        model = onnx.load(tmp_path / spec.file, load_external_data=False)
        for tensor in model.graph.initializer:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            if entries:
                place = int(entries["offset"]), int(entries["length"])
                places.setdefault(place, set()).add(tuple(tensor.dims))
    tables = [place for place, shapes in places.items() if (180, 32) in shapes or (32, 180) in shapes]
    assert len(tables) == 1
    assert tables[0][1] == 180 * 32 * (4 if precision == "fp32" else 1)
    end = max(offset + length for offset, length in places)
    assert (tmp_path / variant.weights).stat().st_size == end
    assert sum(length for _, length in places) <= end


def test_int8_in_pytorch_is_int8_in_numpy() -> None:
    torch.manual_seed(1)
    layer, table = nn.Linear(16, 20), nn.Embedding(EMBEDDING_ROWS, 16)
    ids = torch.tensor([3, 1, 60])
    with torch.no_grad(), Int8Arithmetic() as arithmetic:
        found = layer(table(ids)).numpy()
    weights = layer.weight.detach().numpy(), table.weight.detach().numpy()
    embedded = rounded_rows(weights[1], MAX_WEIGHT)[ids.numpy()]
    expected = rounded_rows(embedded) @ rounded_columns(weights[0].T) + layer.bias.detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert arithmetic.covers(weights)
    assert arithmetic.covers([weights[0].T])
    assert not arithmetic.covers([weights[0] + 1])


@pytest.mark.parametrize("channels", [0, 1])
def test_dequantized_weights_are_quantized_to_the_same_values(channels: int) -> None:
    weight = normal(300, 200) * np.exp(normal(300, 1))
    weight[3] = 0
    values, scales = quantize_weight(weight, channels)
    again, scales_again = quantize_weight((values * np.expand_dims(scales, 1 - channels)).astype(np.float32), channels)
    np.testing.assert_array_equal(again, values)
    assert not values[3].any()
    assert np.isfinite(scales).all()
    np.testing.assert_allclose(scales_again, scales, rtol=3e-7)


def test_calibrated_int8_in_pytorch_is_that_in_numpy() -> None:
    torch.manual_seed(1)
    first, second = nn.Linear(16, 20), nn.Linear(20, 16)
    x = normal(3, 16)
    weights = [layer.weight.detach().numpy().T for layer in (first, second)]
    with torch.no_grad(), Int8Arithmetic({weight_key(weights[0]): 0.01}) as arithmetic:
        found = second(first(torch.from_numpy(x))).numpy()
    hidden = rounded_by(x, 0.01) @ rounded_columns(weights[0]) + first.bias.detach().numpy()
    expected = rounded_rows(hidden) @ rounded_columns(weights[1]) + second.bias.detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert arithmetic.covers(weights)


@pytest.mark.parametrize("calibrated", [False, True])
def test_int8_in_pytorch_rounds_relu_outputs_as_the_graphs_do(calibrated: bool) -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(16, 20), normal(3, 16)
    x[1] = -np.abs(x[1])
    weight = layer.weight.detach().numpy().T
    scales: Scales = {weight_key(weight): 0.005} if calibrated else {}
    with torch.no_grad(), Int8Arithmetic(scales, rectified={weight_key(weight)}):
        found = layer(torch.from_numpy(x).relu()).numpy()
    bias = layer.bias.detach().numpy()
    graph = graph_of([RECTIFIED[0], node("Gemm", "r w b", "y")], {"w": weight, "b": bias}, {"x": x})
    np.testing.assert_allclose(found, run(quantize_graph(graph, scales), x=x), atol=1e-4)
