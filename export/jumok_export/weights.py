"""The weights of a set of graphs in one file beside them, each tensor once however many graphs use it."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import TensorProto

from jumok_export.graphs import Graph
from jumok_serve.manifest import GraphSpec, PrecisionVariant

SMALLEST_EXTERNAL = 1024
"""Smaller tensors stay in their graph."""
ALIGNMENT = 4096
"""Tensors begin at a page, so that a mapped file needs no copy."""


def save_graphs(graphs: Mapping[str, Graph], folder: Path, precision: str) -> PrecisionVariant:
    """Writes the graphs of one precision, and their shared weights, into `folder / precision`.

    Returns:
        The variant's entry in the manifest.
    """
    (folder / precision).mkdir()
    weights = folder / precision / "weights.bin"
    places: dict[bytes, tuple[int, int]] = {}
    specs = {}
    with weights.open("wb") as file:
        for name, graph in graphs.items():
            model = onnx.ModelProto()
            model.CopyFrom(graph.model)
            for tensor in model.graph.initializer:
                content = _raw(tensor)
                if len(content) < SMALLEST_EXTERNAL:
                    continue
                key = hashlib.sha256(content).digest()
                if key not in places:
                    file.write(b"\0" * (-file.tell() % ALIGNMENT))
                    places[key] = (file.tell(), len(content))
                    file.write(content)
                _refer(tensor, weights.name, *places[key])
            path = folder / precision / f"{name}.onnx"
            path.write_bytes(model.SerializeToString(deterministic=True))
            specs[name] = GraphSpec(
                file=path.relative_to(folder).as_posix(), inputs=graph.inputs, outputs=graph.outputs
            )
    return PrecisionVariant(graphs=specs, weights=weights.relative_to(folder).as_posix())


def _raw(tensor: TensorProto) -> bytes:
    """A tensor's content as bytes, however it is held."""
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    return onnx.numpy_helper.to_array(tensor).tobytes()


def _refer(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Makes the tensor a reference to a part of the weights file."""
    name, data_type, dims = tensor.name, tensor.data_type, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type = name, data_type
    tensor.dims.extend(dims)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
