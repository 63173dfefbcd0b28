"""Weights in one file: each once, mapped, and in other forms only when they are written."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from jumok_export.graphs import tracing
from jumok_export.graphs.graph import Graph
from jumok_export.graphs.quantize_matrix import AT_ONCE, quantize_weight
from jumok_export.graphs.storage import SMALLEST_EXTERNAL, Stored, WeightsFile, write_graphs
from jumok_export.graphs.traced_weights import Known, TracedModel, with_weights_in
from jumok_export.graphs.tracing import export_graphs
from jumok_export.graphs.weights import (
    HALF,
    SCALES,
    TURNED,
    VALUES,
    Place,
    convert,
    is_external,
    place_of,
    refer,
    values,
)
from jumok_export.models.attention import scaled_queries
from jumok_export.models.transformer import Transformer
from jumok_export.training.vocabulary import Vocabulary

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.standard_normal((40, 24), np.float32)


def graph_of(*constants: TensorProto) -> Graph:
    nodes = [helper.make_node("Identity", [tensor.name], [f"{tensor.name}.out"]) for tensor in constants]
    content = helper.make_graph(nodes, "test", [], [], initializer=constants)
    return Graph(helper.make_model(content), (), ())


def stored(file: WeightsFile, name: str, array: np.ndarray) -> TensorProto:
    place, turned = file.store(array)
    assert not turned
    return refer(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, place)


def written(folder: Path, precision: str, name: str) -> dict[str, np.ndarray]:
    model = onnx.load(folder / precision / f"{name}.onnx")
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_a_tensor_and_its_transposition_are_stored_once(tmp_path: Path) -> None:
    square = RANDOM.standard_normal((32, 32), np.float32)
    with WeightsFile(tmp_path / "weights.bin") as file:
        first, _ = file.store(MATRIX)
        assert file.store(MATRIX.copy()) == (first, False)
        assert file.store(MATRIX.T) == (first, True)
        second, _ = file.store(square)
        assert file.store(square.T) == (second, True)
        assert file.store(square) == (second, False)
        # The same elements in another order are another tensor.
        third, turned = file.store(MATRIX[::-1])
        assert not turned
        assert third not in {first, second}
    assert (tmp_path / "weights.bin").stat().st_size == third.offset + third.length


def test_the_values_of_a_stored_tensor_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = WeightsFile.store, list[np.ndarray]()

    def noted(self: WeightsFile, array: np.ndarray) -> tuple[Place, bool]:
        read.append(array)
        return store(self, array)

    monkeypatch.setattr(WeightsFile, "store", noted)
    matrix, known = torch.from_numpy(MATRIX.copy()), Stored()
    with WeightsFile(tmp_path / "weights.bin") as file:
        first = file.store_once(matrix, known)
        assert file.store_once(torch.nn.Parameter(matrix), known) == first
        assert len(read) == 1
        # Other tensors in the same memory.
        assert file.store_once(matrix.T, known) == (first[0], True)
        assert file.store_once(matrix[:20], known) != first
        assert file.store_once(matrix[:, :12], known) != file.store_once(matrix[:12].T, known)
        assert len(read) == 5


def test_traced_weights_are_tensors_of_the_module_or_their_transpositions(
    tiny_model: Transformer, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph from another process then brings no values with it, and no graph holds weights."""
    written, traced = with_weights_in, list[TracedModel]()

    def noted(file: WeightsFile, model: TracedModel, module: torch.nn.Module, stored: Stored) -> onnx.ModelProto:
        traced.append(model)
        return written(file, model, module, stored)

    monkeypatch.setattr(tracing, "with_weights_in", noted)
    with scaled_queries(tiny_model), WeightsFile(tmp_path / "weights.bin") as file:
        graphs = export_graphs(tiny_model, len(vocabulary), len(vocabulary), file)
        named = (*tiny_model.named_parameters(), *tiny_model.named_buffers())
        tensors = {name: tensor.detach().numpy().copy() for name, tensor in named}
        for graph in graphs.values():
            inline = [tensor for tensor in graph.model.graph.initializer if not is_external(tensor)]
            assert len(inline) < len(graph.model.graph.initializer)
            assert all(len(tensor.raw_data) < SMALLEST_EXTERNAL for tensor in inline)
    known = [weight for each in traced for weight in each.weights.values()]
    assert {type(weight) for weight in known} == {Known}
    assert {weight.turned for weight in known if isinstance(weight, Known)} == {False, True}
    for model, graph in zip(traced, (graphs["encoder"], graphs["decoder"]), strict=False):
        constants = {tensor.name: values(tensor) for tensor in graph.model.graph.initializer}
        for name, weight in model.weights.items():
            assert isinstance(weight, Known)
            expected = tensors[weight.name.removeprefix("model.")]
            np.testing.assert_array_equal(constants[name], expected.T if weight.turned else expected)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("channels", [0, 1])
@pytest.mark.parametrize("shape", [(40, 24), (3, AT_ONCE // 2 + 7), (AT_ONCE // 2 + 7, 3)])
def test_a_converted_weight_has_the_values_of_one_in_memory(
    shape: tuple[int, int], channels: int, turned: bool, tmp_path: Path
) -> None:
    array = RANDOM.standard_normal(shape, np.float32)
    inline = numpy_helper.from_array(array, "weight")
    whole = np.maximum(np.abs(array).max(axis=1 - channels) / 72, 1e-30).astype(np.float32)
    with WeightsFile(tmp_path / "weights.bin") as file:
        weight = stored(file, "weight", np.ascontiguousarray(array.T) if turned else array)
        if turned:
            weight = convert(weight, "weight", TURNED)
        for form in (VALUES, SCALES, HALF, TURNED):
            in_file, in_memory = (convert(tensor, "other", form, channels) for tensor in (weight, inline))
            assert is_external(in_file)
            assert (place_of(in_file) is None) != (turned and form == TURNED)
            assert tuple(in_file.dims) == values(in_file).shape
            assert values(in_file).dtype == helper.tensor_dtype_to_np_dtype(in_file.data_type)
            np.testing.assert_array_equal(values(in_file), values(in_memory))
    found, scales = quantize_weight(array, channels)
    np.testing.assert_array_equal(scales, whole)
    np.testing.assert_array_equal(found, np.rint(array / np.expand_dims(whole, 1 - channels)).astype(np.int8))


def test_graphs_share_the_weights_of_a_file_that_they_were_traced_into(tmp_path: Path) -> None:
    small = RANDOM.standard_normal(SMALLEST_EXTERNAL // 4 - 1, np.float32)
    with WeightsFile(tmp_path / "fp32" / "weights.bin") as file:
        weight = stored(file, "weight", MATRIX)
        graphs = {
            "encoder": graph_of(weight, numpy_helper.from_array(small, "small")),
            "decoder": graph_of(convert(weight, "turned", TURNED), numpy_helper.from_array(MATRIX, "again")),
        }
        write_graphs(graphs, tmp_path, "fp32", file)
        quantized = graph_of(convert(weight, "values", VALUES), convert(weight, "scales", SCALES))
        int8 = {"encoder": quantized, "decoder": quantized}
        write_graphs(int8, tmp_path, "int8")
    assert (tmp_path / "fp32" / "weights.bin").stat().st_size == MATRIX.nbytes
    encoder, decoder = (written(tmp_path, "fp32", name) for name in graphs)
    np.testing.assert_array_equal(encoder["weight"], MATRIX)
    np.testing.assert_array_equal(encoder["small"], small)
    np.testing.assert_array_equal(decoder["turned.transposed"], MATRIX)  # a node transposes it
    np.testing.assert_array_equal(decoder["again"], MATRIX)
    found, scales = quantize_weight(MATRIX, 0)
    constants = written(tmp_path, "int8", "encoder")
    np.testing.assert_array_equal(constants["values"], found)
    np.testing.assert_array_equal(constants["scales"], scales)
