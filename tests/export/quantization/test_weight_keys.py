"""Matrices are told apart by all of their values, however alike they are."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn

from jumok_export.graphs.graph import Graph
from jumok_export.graphs.storage import WeightsFile
from jumok_export.graphs.weights import checksum, mapped
from jumok_export.quantization.fake_quantization import Int8Arithmetic
from jumok_export.quantization.find_matrices import rectified_keys, weight_key
from jumok_export.quantization.int8_graphs import quantize_graph
from jumok_serve.manifest.manifest import TensorSpec
from tests.support.models.small_graphs import node, small_graph

SHAPES = [(300, 70), (512, 2048), (2048, 512), (64, 64)]


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def alike(matrix: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """Matrices that differ from another one in order or in two elements, with an equal sum of bits."""
    rows, columns = matrix.shape
    row, column = rows // 2 + 1, columns // 3 + 1
    swapped, raised, negated = matrix.copy(), matrix.copy(), matrix.copy()
    swapped[row, [column, column + 1]] = swapped[row, [column + 1, column]]
    raised.view(np.uint32)[row, column] += 1
    raised.view(np.uint32)[row + 1, column + 2] -= 1
    negated[[row, row + 1], column] *= -1  # both change the highest bit, and sums of 32 bits lose the carry
    yield from (swapped, raised, negated, matrix[::-1], matrix[:, ::-1], np.roll(matrix, 1, axis=0))
    yield np.random.default_rng(2).permuted(matrix.ravel()).reshape(matrix.shape)
    if rows != columns:
        yield matrix.reshape(columns, rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_matrices_that_are_alike_have_keys_of_their_own(shape: tuple[int, int]) -> None:
    every = [normal(*shape), *alike(normal(*shape))]
    assert len({checksum(np.ascontiguousarray(each)) for each in every}) == 1
    assert len({weight_key(each) for each in every}) == len(every)


@pytest.mark.parametrize("shape", [(40, 24), (300, 70), (1, 5000)])
def test_a_matrix_has_one_key_however_it_is_stored(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(0).standard_normal(shape, np.float32)
    key, other = weight_key(matrix), matrix.copy()
    assert weight_key(np.asfortranarray(matrix)) == weight_key(matrix.T.copy().T) == key
    other[-1, -2] += 1
    assert len({key, weight_key(matrix.T), weight_key(other), weight_key(matrix[::-1])}) == (4 if shape[0] > 1 else 3)


def product_graph(first: NDArray[np.float32], second: NDArray[np.float32]) -> Graph:
    """A graph of y = relu(x) @ first + z @ second."""
    nodes = [node("Relu", "x", "r"), node("MatMul", "r u", "p"), node("MatMul", "z v", "q"), node("Add", "p q", "y")]
    given, other, made = (TensorSpec(name=name, dtype="float32", axes=("R", f"{name}_width")) for name in "xzy")
    return small_graph(nodes, {"u": first, "v": second}, (given, other), (made,))


def test_activations_of_matrices_that_are_alike_keep_their_own_scales_and_ranges() -> None:
    first = normal(300, 70)
    for second in alike(first):
        if second.shape == first.shape:
            graph = product_graph(first, second)
            quantized = quantize_graph(graph, {weight_key(first): 0.25, weight_key(second): 0.5}).model.graph
            constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.initializer}
            roundings = [each.input for each in quantized.node if each.op_type == "QuantizeLinear"]
            assert {read: constants[scale] for read, scale, *_ in roundings} == {"x": 0.25, "z": 0.5}
            assert rectified_keys([graph]) == {weight_key(first)}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_is_not_covered_by_one_that_is_alike(shape: tuple[int, int]) -> None:
    layer = nn.Linear(*shape, bias=False)
    weight = layer.weight.detach().numpy()
    with torch.no_grad(), Int8Arithmetic() as arithmetic:
        layer(torch.zeros(1, shape[0]))
    assert arithmetic.covers([weight, weight.T.copy()])
    assert not any(arithmetic.covers([each]) for each in alike(weight))


@pytest.mark.parametrize("shape", SHAPES)
def test_tensors_that_are_alike_are_stored_apart(shape: tuple[int, int], tmp_path: Path) -> None:
    every = [normal(*shape), *alike(normal(*shape))]
    with WeightsFile(tmp_path / "weights.bin") as file:
        stored = [file.store(each) for each in every]
    assert len({place for place, _ in stored}) == len(every)
    for each, (place, turned) in zip(every, stored, strict=True):
        assert not turned
        np.testing.assert_array_equal(mapped(place, each.dtype, each.shape), each)
