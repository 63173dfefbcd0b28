"""ONNX models as messages, and the external data that they name."""

import math
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from jumok_serve.files import UnusableFileError, read_file

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


MAX_GRAPH_BYTES = 512 * 2**20
"""Bytes of a graph's file; weights are in another file."""
_EXTERNAL = 1
"""`TensorProto.DataLocation` of a tensor in another file."""
_BITS = {
    **{1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 16: 16},
    **{14: 64, 15: 128, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4},
}
"""Bits of an element by ONNX's number of its type."""


def read_graph(folder: Path, file: str, weights: str) -> bytes:
    """Read a graph of a bundle, and check that it reads no other file than the weights.

    Args:
        folder: folder that the names of both files are relative to.

    Raises:
        ValueError: it does, or it cannot be read; with all problems as arguments.
    """
    path = folder / weights
    try:
        content = read_file(folder / file, MAX_GRAPH_BYTES)
        size = path.stat().st_size if path.exists() else 0
        problems = external_data_problems(content, file, weights, size)
    except UnusableFileError as error:
        problems = [str(error)]
    except (OSError, ValueError) as error:
        problems = [f"ONNX Runtime cannot load it: {error}"]
    if problems:
        raise ValueError(*problems)
    return content


def external_data_problems(graph: bytes, file: str, weights: str, weights_size: int) -> list[str]:
    """List the tensors of a graph that are read from elsewhere than the weights file.

    Args:
        graph: content of the graph's file.
        file: path of the graph in the bundle.
        weights: path of the weights in the bundle.
        weights_size: bytes of the weights file.

    Raises:
        ValueError: the content is no ONNX model.
    """
    model = parse_model(graph)
    problems = []
    for tensor in _tensors(model):
        if not tensor.external_data and tensor.data_location != _EXTERNAL:
            continue
        name = tensor.name[:80]
        said = {entry.key: entry.value for entry in tensor.external_data}
        location = said.get("location", "")
        path = PurePosixPath(file).parent / location
        if ".." in path.parts or str(path) != weights:
            problems.append(f"tensor {name!r} has its data in {location[:200]!r}; the weights are in {weights}")
        elif not _fits(tensor, said, weights_size):
            problems.append(f"tensor {name!r} is not within the {weights_size} bytes of {weights}")
    return problems


def _fits(tensor: Any, said: dict[str, str], size: int) -> bool:
    try:
        offset, length = (int(said[key]) if key in said else None for key in ("offset", "length"))
    except ValueError:
        return False
    if any(axis < 0 for axis in tensor.dims) or tensor.data_type not in _BITS:
        return False
    needed = -(-math.prod(tensor.dims) * _BITS[tensor.data_type] // 8)
    return 0 <= (offset or 0) <= (offset or 0) + needed <= size and (length is None or length == needed)


def _tensors(model: Any) -> Iterator[Any]:
    """Yield the tensors of a model, wherever they are."""
    graphs = [model.graph]
    for training in model.training_info:
        graphs += [training.initialization, training.algorithm]
    nodes = [node for function in model.functions for node in function.node]
    for function in model.functions:
        for attribute in function.attribute_proto:
            yield from _of_attribute(attribute)
            graphs += [attribute.g, *attribute.graphs]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            nodes += graph.node
            yield from graph.initializer
            yield from _sparse(graph.sparse_initializer)
            continue
        node = nodes.pop()
        for attribute in node.attribute:
            yield from _of_attribute(attribute)
        graphs += inner_graphs(node)


def _of_attribute(attribute: Any) -> Iterator[Any]:
    yield attribute.t
    yield from attribute.tensors
    yield from _sparse([attribute.sparse_tensor, *attribute.sparse_tensors])


def _sparse(tensors: Iterable[Any]) -> Iterator[Any]:
    for tensor in tensors:
        yield from (tensor.values, tensor.indices)
