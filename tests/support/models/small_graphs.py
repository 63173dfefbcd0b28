"""Small graphs: made of nodes and constants, run by ONNX Runtime, and in their native forms."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from jumok_export.graphs.graph import OPSET, Graph, declare
from jumok_export.native.graphs import native_graph
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.native import library


def node(operator: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    """A node; spaces separate the names of its inputs."""
    domain = "com.microsoft" if operator == "MatMulIntegerToFloat" else ""
    return helper.make_node(operator, inputs.split(), [output], domain=domain, **attributes)


def small_graph(
    nodes: Sequence[NodeProto],
    constants: Mapping[str, NDArray[Any]],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> Graph:
    values = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "small", [], [], values),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )
    declare(model, inputs, outputs)
    return Graph(model, inputs, outputs)


def operators(graph: Graph) -> list[str]:
    return [each.op_type for each in graph.model.graph.node]


def outputs_of(graph: Graph, feeds: Mapping[str, NDArray[Any]], names: Sequence[str] | None = None) -> list[Any]:
    """Run a graph, which may have native operators; all of its outputs, or the named ones."""
    options = onnxruntime.SessionOptions()
    if library() is not None:
        options.register_custom_ops_library(str(library()))
    session = onnxruntime.InferenceSession(graph.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(names, dict(feeds))
    return found


def native_of(graph: Graph) -> Graph:
    """The native form of a graph, which must have one."""
    native = native_graph(graph)
    assert native is not None
    return native
