"""The part of ONNX's ModelProto that a server reads, without the package onnx."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_PACKAGE = "jumok_serve.runtime.graph_checks.onnx_model"
_FIELD = descriptor_pb2.FieldDescriptorProto

_MESSAGES = {
    "Model": ["graph 7 Graph", "training_info 20* Training", "functions 25* Function"],
    "Function": ["node 7* Node", "attribute_proto 11* Attribute"],
    "Training": ["initialization 1 Graph", "algorithm 2 Graph"],
    "Graph": [
        *("node 1* Node", "initializer 5* Tensor", "input 11* Value", "output 12* Value", "value_info 13* Value"),
        "sparse_initializer 15* Sparse",
    ],
    "Value": ["name 1 string", "type 2 Type"],
    "Type": ["tensor_type 1 TensorType"],
    "TensorType": ["elem_type 1 int32"],
    "Node": [
        *("input 1* string", "output 2* string", "name 3 string", "op_type 4 string"),
        *("attribute 5* Attribute", "domain 7 string"),
    ],
    "Attribute": [
        *("name 1 string", "i 3 int64", "t 5 Tensor", "g 6 Graph", "tensors 10* Tensor", "graphs 11* Graph"),
        *("sparse_tensor 22 Sparse", "sparse_tensors 23* Sparse"),
    ],
    "Sparse": ["values 1 Tensor", "indices 2 Tensor"],
    "Tensor": [
        *("dims 1* int64", "data_type 2 int32", "name 8 string"),
        *("external_data 13* Entry", "data_location 14 int32"),
    ],
    "Entry": ["key 1 string", "value 2 string"],
}
"""Fields by message: name, number (``*``: repeated) and type, as in onnx.proto
(https://github.com/onnx/onnx/blob/main/onnx/onnx.proto)."""

_SCALARS = {"string": _FIELD.TYPE_STRING, "int64": _FIELD.TYPE_INT64, "int32": _FIELD.TYPE_INT32}


def parse_model(content: bytes) -> Any:
    """Parse an ONNX model; other fields are kept unread.

    Raises:
        ValueError: the bytes are no such message, or nested too deeply.
    """
    try:
        return _model_class().FromString(content)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"is not an ONNX model: {error}") from error


def inner_graphs(node: Any) -> Iterator[Any]:
    """Yield the graphs in a node's attributes, such as the body of a Loop."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def drop_unread(graph: Any) -> None:
    """Remove nodes and weights that no output depends on."""
    read = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read.update(node.input)
            read.update(name for inner in inner_graphs(node) for name in _reads(inner))
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.node[:]
    del graph.initializer[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(weights)


def _reads(graph: Any) -> set[str]:
    """Return all names that an inner graph reads, its own included."""
    names = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    return names.union(*(_reads(inner) for node in graph.node for inner in inner_graphs(node)))


@cache
def _model_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            own_name, number, kind = field.split()
            message.field.add(
                name=own_name,
                number=int(number.removesuffix("*")),
                label=_FIELD.LABEL_REPEATED if number.endswith("*") else _FIELD.LABEL_OPTIONAL,
                type=_SCALARS.get(kind, _FIELD.TYPE_MESSAGE),
                type_name=None if kind in _SCALARS else f".{_PACKAGE}.{kind}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Model"))
