"""Graphs read the listed weights file, and nothing else."""

from collections.abc import Callable
from typing import Any

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


ELSEWHERE = (
    "../weights.bin",
    "../../etc/passwd",
    "/etc/passwd",
    "",
    "other.bin",
    ".weights.bin",
    "../int8/weights.bin",
)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        *(
            ({"location": place}, f"has its data in {place!r}; the weights are in int8/weights.bin")
            for place in (*ELSEWHERE, "../int8/weights.bin")
        ),
        *(
            ({"offset": offset}, "is not within the 64 bytes of int8/weights.bin")
            for offset in ("4", "-4", str(2**64), "x")
        ),
        *(({"length": length}, "is not within the 64 bytes of int8/weights.bin") for length in ("60", "9" * 5000)),
        *(({"dims": dims}, "") for dims in ((4, 5), (-4, -4), (2**62, 2**62))),
    ],
)
def test_data_elsewhere_or_beyond_the_file_is_refused(said: dict[str, Any], expected: str) -> None:
    (problem,) = problems_of(model_with(tensor(**said)))
    assert problem.startswith("tensor 'w' ")
    assert problem.endswith(expected)


OTHER = tensor("inner", location="../other")


def in_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(OTHER)


def in_subgraph(model: onnx.ModelProto) -> None:
    inner = helper.make_graph([], "inner", [], [], [OTHER])
    model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPH).g.CopyFrom(inner)


def in_function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Constant", [], ["c"], value=OTHER)
    model.functions.append(helper.make_function("jumok", "f", [], ["c"], [node], []))


def in_sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add().values.CopyFrom(OTHER)


def in_training(model: onnx.ModelProto) -> None:
    model.training_info.add().initialization.initializer.append(OTHER)


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
