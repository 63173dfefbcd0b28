"""Weights of graphs in a file beside them, ONNX's external data."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from jumok_serve.files import UnusableFileError, read_file
from jumok_serve.runtime.graph_checks.onnx_model import inner_graphs, parse_model

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
