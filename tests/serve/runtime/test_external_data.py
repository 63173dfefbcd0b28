"""Graphs read the listed weights file, and nothing else."""

from collections.abc import Callable

import onnx
import pytest
from onnx import TensorProto, helper

from jumok_serve.runtime.graph_checks.onnx_model import external_data_problems

SIZE = 64


def tensor(name: str = "w", dims: tuple[int, ...] = (4, 4), **said: str) -> TensorProto:
    made = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "weights.bin", **said}.items():
        made.external_data.add(key=key, value=value)
    return made


def model_with(*weights: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Add", ["x", "w"], ["y"])
    described = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy"]
    return helper.make_model(helper.make_graph([node], "graph", described[:1], described[1:], list(weights)))


def problems_of(model: onnx.ModelProto) -> list[str]:
    return external_data_problems(model.SerializeToString(), "int8/decoder.onnx", "int8/weights.bin", SIZE)


def test_weights_within_the_file_are_allowed() -> None:
    assert (
        problems_of(model_with(tensor(), tensor("all", offset="0", length="64"), tensor("last", (1,), offset="60")))
        == []
    )
    assert problems_of(model_with(tensor(location="./weights.bin"))) == []


@pytest.mark.parametrize(
    "location",
    [
        "../weights.bin",
        "../../etc/passwd",
        "/etc/passwd",
        "",
        "other.bin",
        ".weights.bin",
        "../int8/weights.bin",
        "a/../weights.bin",
    ],
)
def test_other_files_are_refused(location: str) -> None:
    (problem,) = problems_of(model_with(tensor(location=location)))
    assert problem == f"tensor 'w' has its data in {location!r}; the weights are in int8/weights.bin"


@pytest.mark.parametrize(
    "said",
    [
        {"offset": "4"},
        {"offset": "-4"},
        {"length": "60"},
        {"length": "9" * 5000},
        {"offset": str(2**64)},
        {"offset": "x"},
    ],
)
def test_data_beyond_the_file_is_refused(said: dict[str, str]) -> None:
    (problem,) = problems_of(model_with(tensor(dims=(4, 4), **said)))
    assert problem == "tensor 'w' is not within the 64 bytes of int8/weights.bin"


@pytest.mark.parametrize("dims", [(4, 5), (-4, -4), (2**62, 2**62)])
def test_shapes_larger_than_the_data_are_refused(dims: tuple[int, ...]) -> None:
    assert problems_of(model_with(tensor(dims=dims)))


def in_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(
        tensor("inner", location="../other")
    )


def in_subgraph(model: onnx.ModelProto) -> None:
    inner = helper.make_graph([], "inner", [], [], [tensor("inner", location="../other")])
    model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPH).g.CopyFrom(inner)


def in_function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Constant", [], ["c"], value=tensor("inner", location="../other"))
    model.functions.append(helper.make_function("jumok", "f", [], ["c"], [node], []))


def in_sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add().values.CopyFrom(tensor("inner", location="../other"))


def in_training(model: onnx.ModelProto) -> None:
    model.training_info.add().initialization.initializer.append(tensor("inner", location="../other"))


@pytest.mark.parametrize("place", [in_attribute, in_subgraph, in_function, in_sparse, in_training])
def test_tensors_anywhere_in_a_model_are_checked(place: Callable[[onnx.ModelProto], None]) -> None:
    model = model_with(tensor())
    place(model)
    (problem,) = problems_of(model)
    assert problem == "tensor 'inner' has its data in '../other'; the weights are in int8/weights.bin"


@pytest.mark.parametrize("content", [b"\xff" * 20, b"\x3a\x7f", b"\x3a\x0a" * 200])
def test_other_content_is_no_graph(content: bytes) -> None:
    with pytest.raises(ValueError, match="is not an ONNX model"):
        external_data_problems(content, "g.onnx", "weights.bin", 0)
