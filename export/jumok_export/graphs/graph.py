"""An ONNX graph with the types and axes of its inputs and outputs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

import numpy as np
import onnx
from onnx import helper

from jumok_serve.manifest.manifest import TensorSpec

OPSET = 20


@dataclass(frozen=True)
class Graph:
    """An exported graph, with types and axes of its inputs and outputs."""

    model: onnx.ModelProto
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def copy_model(self) -> onnx.ModelProto:
        """Copy the model, to change it."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        return model


def make_graph(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    *,
    constants: Sequence[onnx.TensorProto] = (),
    shapes: Sequence[onnx.ValueInfoProto] = (),
) -> Graph:
    """Make a graph of nodes in ONNX's own operators; `shapes` declares types of some values."""
    content = helper.make_graph(nodes, name, [], [], initializer=constants)
    model = helper.make_model(content, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    graph = declare(model, inputs, outputs)
    model.graph.value_info.extend(shapes)
    checked = graph.copy_model()
    for tensor in checked.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:  # the checker wants files beside the graph
            checked.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    kept = [tensor for tensor in checked.graph.initializer if tensor.data_location != onnx.TensorProto.EXTERNAL]
    del checked.graph.initializer[:]
    checked.graph.initializer.extend(kept)
    onnx.checker.check_model(checked)
    return graph


def logits_width(decoder: Graph) -> int | None:
    """Width of a decoder's logits; None if it varies with a shortlist."""
    width = next(spec for spec in decoder.outputs if spec.name == "logits").axes[-1]
    return width if isinstance(width, int) else None


def declare(model: onnx.ModelProto, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Graph:
    """Declare a model's inputs and outputs; drops metadata, doc strings and intermediate shapes."""
    for values, specs in ((model.graph.input, inputs), (model.graph.output, outputs)):
        del values[:]
        values.extend(
            helper.make_tensor_value_info(
                spec.name, helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), list(spec.axes)
            )
            for spec in specs
        )
    del model.graph.value_info[:]
    model.ClearField("metadata_props")
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    return Graph(model, inputs, outputs)


def with_inner(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the graphs within its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from with_inner(attribute.g)


def rename(graph: onnx.GraphProto, renamed: Callable[[str], str]) -> None:
    """Rename tensors, nodes' inputs and outputs, and those of the graphs within nodes."""
    for each in with_inner(graph):
        for tensor in each.initializer:
            tensor.name = renamed(tensor.name)
        for value in (*each.value_info, *each.input, *each.output):
            value.name = renamed(value.name)
        for node in each.node:
            node.input[:] = map(renamed, node.input)
            node.output[:] = map(renamed, node.output)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, including those that graphs within it read."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from reads(inner)


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Put every node after those whose outputs it reads, as conversions to fp16 do not."""
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    needed = {place: [makers[name] for name in reads(node) if name in makers] for place, node in enumerate(graph.node)}
    nodes = list(graph.node)
    ordered = [nodes[place] for place in TopologicalSorter(needed).static_order()]
    del graph.node[:]
    graph.node.extend(ordered)


def drop_unread(graph: onnx.GraphProto) -> None:
    """Remove nodes and constants that no output depends on."""
    read = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read.update(reads(node))
    tensors = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.node[:]
    del graph.initializer[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(tensors)
