"""Write graphs with their weights in one shared file, each tensor once."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, TensorProto, helper, numpy_helper

from jumok_export.graphs.graph import Graph, with_inner
from jumok_serve.manifest.manifest import GraphSpec, PrecisionVariant

SMALLEST_EXTERNAL = 1024
"""Bytes of a tensor below which it stays in its graph."""
ALIGNMENT = 4096
"""Alignment of tensors in bytes: a page, so that mapped files need no copy."""


def write_graphs(graphs: Mapping[str, Graph], folder: Path, precision: str) -> PrecisionVariant:
    """Write graphs and their shared weights into `folder / precision`.

    A matrix that another graph uses transposed, such as a tied output projection, is stored once. The second graph
    transposes it when it is loaded.

    Returns:
        The precision's entry in the manifest.
    """
    (folder / precision).mkdir()
    path = folder / precision / "weights.bin"
    specs = {}
    with path.open("wb") as file:
        weights = _Weights(file, path.name)
        for name, graph in graphs.items():
            model = graph.copy_model()
            for each in with_inner(model.graph):
                for tensor in list(each.initializer):
                    weights.store(tensor, each)
            target = folder / precision / f"{name}.onnx"
            target.write_bytes(model.SerializeToString(deterministic=True))
            specs[name] = GraphSpec(
                file=target.relative_to(folder).as_posix(), inputs=graph.inputs, outputs=graph.outputs
            )
    return PrecisionVariant(graphs=specs, weights=path.relative_to(folder).as_posix())


class _Weights:
    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._offsets: dict[tuple[bytes, tuple[int, ...]], tuple[int, int]] = {}  # offset and length by content

    def store(self, tensor: TensorProto, graph: GraphProto) -> None:
        """Move a large tensor of a graph into the file, once."""
        array = numpy_helper.to_array(tensor)
        if array.nbytes < SMALLEST_EXTERNAL:
            return
        transposed = np.ascontiguousarray(array.T)
        if array.ndim == 2 and _key(array) not in self._offsets and _key(transposed) in self._offsets:
            stored = f"{tensor.name}.transposed"
            graph.node.insert(0, helper.make_node("Transpose", [stored], [tensor.name], perm=[1, 0]))
            tensor.name, array = stored, transposed
        key = _key(array)
        if key not in self._offsets:
            self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
            self._offsets[key] = (self._file.tell(), array.nbytes)
            self._file.write(array.tobytes())
        offset, length = self._offsets[key]
        name, data_type = tensor.name, tensor.data_type
        tensor.Clear()
        tensor.name, tensor.data_type = name, data_type
        tensor.dims.extend(array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for entry, value in (("location", self._name), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=entry, value=value)


def _key(array: NDArray[Any]) -> tuple[bytes, tuple[int, ...]]:
    return hashlib.sha256(array.tobytes()).digest(), array.shape
