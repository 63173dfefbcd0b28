"""Copies between device and host that ONNX Runtime inserts into graphs."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jumok_serve.runtime.graph_checks.onnx_model import inner_graphs, parse_model


@contextmanager
def optimized_graph(options: Any) -> Iterator[Sequence[bytes]]:
    """Capture the optimized graph of the session that is opened within.

    The graph goes into memory: a server may have no writable file system.

    Yields:
        A list, with the graph as its one item afterwards.
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


def find_copies(model: bytes) -> list[str]:
    """Describe a graph's copies between device and host, with their operators.

    Such an operator has no kernel on the device, or reads a value of the device on the host.

    Args:
        model: an ONNX model, as a session wrote it.
    """
    return list(_copies(parse_model(model).graph, ""))


def _copies(graph: Any, prefix: str) -> Iterator[str]:
    writers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in graph.node:
        for inner in inner_graphs(node):
            yield from _copies(inner, f"{prefix}{_label(node)}: ")
        if node.op_type == "MemcpyToHost":
            waiting = [_label(reader) for name in node.output for reader in readers.get(name, [])]
            yield f"{prefix}{', '.join(waiting) or 'an output'} on the host reads {node.input[0]!r} from the device"
        elif node.op_type == "MemcpyFromHost":
            writer = writers.get(node.input[0])
            made = f"{_label(writer)} on the host makes" if writer is not None else "the host gives"
            yield f"{prefix}{made} {node.input[0]!r} for the device"


def _label(node: Any) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else str(node.op_type)
