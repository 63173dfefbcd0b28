"""Whether a session computes all on its device: the copies to and from the host that ONNX Runtime has put in."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

COPIES = {"MemcpyToHost", "MemcpyFromHost"}

_REPEATED = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
_OPTIONAL = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
_STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
_PACKAGE = "jumok_serve.runtime.device_copies"


@contextmanager
def optimized_graph(options: Any) -> Iterator[Sequence[bytes]]:
    """Has a session that is made within write its graph as it will run; it is the one item afterwards.

    It goes into memory: a server may have no file system that it can write to.

    Args:
        options: `onnxruntime.SessionOptions` of the session.
    """
    descriptor = os.memfd_create("graph")
    before, found = options.optimized_model_filepath, list[bytes]()
    options.optimized_model_filepath = f"/proc/self/fd/{descriptor}"
    try:
        yield found
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            found.append(file.read())
    finally:
        options.optimized_model_filepath = before
        os.close(descriptor)


def copies(model: bytes) -> list[str]:
    """The copies between device and host in a graph, each with the operators that made it necessary.

    Those have no kernel on the device, or want on the host what the device computes.

    Args:
        model: an ONNX model as a session wrote it.
    """
    return list(_copies(_model_class().FromString(model).graph, ""))


def _copies(graph: Any, where: str) -> Iterator[str]:
    writers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.g.node else []), *attribute.graphs):
                yield from _copies(inner, f"{where}{_called(node)}: ")
        if node.op_type == "MemcpyToHost":
            wanting = [_called(reader) for name in node.output for reader in readers.get(name, [])]
            yield f"{where}{', '.join(wanting) or 'an output'} on the host reads {node.input[0]!r} from the device"
        elif node.op_type == "MemcpyFromHost":
            writer = writers.get(node.input[0])
            made = f"{_called(writer)} on the host makes" if writer is not None else "the host gives"
            yield f"{where}{made} {node.input[0]!r} for the device"


def _called(node: Any) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else str(node.op_type)


def _model_class() -> Any:
    """What is read of ONNX's ModelProto (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto): nodes alone."""
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in {
        "Model": [("graph", 7, _OPTIONAL, "Graph")],
        "Graph": [("node", 1, _REPEATED, "Node")],
        "Node": [
            ("input", 1, _REPEATED, ""),
            ("output", 2, _REPEATED, ""),
            ("name", 3, _OPTIONAL, ""),
            ("op_type", 4, _OPTIONAL, ""),
            ("attribute", 5, _REPEATED, "Attribute"),
        ],
        "Attribute": [("g", 6, _OPTIONAL, "Graph"), ("graphs", 11, _REPEATED, "Graph")],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, label, kind in fields:
            message.field.add(
                name=field,
                number=number,
                label=label,
                type=_MESSAGE if kind else _STRING,
                type_name=f".{_PACKAGE}.{kind}" if kind else None,
            )
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Model"))
