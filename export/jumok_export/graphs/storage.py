"""Write graphs with their weights in one shared file, each tensor once."""

from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import GraphProto, TensorProto, helper, numpy_helper
from torch import Tensor

from jumok_export.graphs.graph import Graph, with_inner
from jumok_export.graphs.weights import (
    Place,
    checksum,
    equal,
    forget_quantized,
    is_external,
    mapped,
    place_of,
    refer,
    source,
    values,
)
from jumok_serve.manifest.manifest import GraphSpec, PrecisionVariant

SMALLEST_EXTERNAL = 1024
"""Bytes of a tensor below which it stays in its graph."""
ALIGNMENT = 4096
"""Alignment of tensors in bytes: a page, so that mapped files need no copy."""

Stored: TypeAlias = dict[tuple[object, ...], tuple["Place", bool]]
"""Results of `WeightsFile.store_once` by the storage, type and shape of living tensors."""


class WeightsFile:
    """A file of tensors, each of them once.

    Args:
        path: the file, which `make` or the first tensor makes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._end = 0
        self._stored: dict[tuple[object, ...], list[tuple[Place, tuple[int, ...]]]] = {}  # by type, sizes and sum
        self._sources: dict[tuple[object, ...], tuple[Place, bool]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def make(self) -> None:
        """Make the file and its folder, unless that has been done."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb", buffering=0)

    def store(self, array: NDArray[Any]) -> tuple[Place, bool]:
        """Store a tensor, unless the file has it, or its transposition.

        Returns:
            Its place, and True if the file has its transposition.
        """
        array = np.ascontiguousarray(array)
        bits = array.view(f"u{array.itemsize}")
        key = (bits.dtype, tuple(sorted(array.shape)), checksum(array))  # of the transposition too
        like = self._stored.setdefault(key, [])
        for turned in (False, True):
            wanted = bits.T if turned else bits
            for place, shape in like:
                if equal(mapped(place, bits.dtype, shape), wanted):
                    return place, turned
            if array.ndim != 2:
                break
        place = Place(self.path, self._end + -self._end % ALIGNMENT, array.nbytes)
        self._write(memoryview(b"\0" * (place.offset - self._end)))
        self._write(array.data.cast("B"))
        like.append((place, array.shape))
        return place, False

    def store_once(self, tensor: Tensor, stored: Stored) -> tuple[Place, bool]:
        """Store a tensor as `store` does, and read the values of each storage only once.

        Args:
            stored: tensors that this method has stored; all must stay as they are while it is used.
        """
        key = tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()
        if key not in stored:
            # PyTorch transposes in a quarter of NumPy's time.
            stored[key] = self.store(tensor.detach().contiguous().numpy())
        return stored[key]

    def keep(self, tensor: Tensor) -> Tensor:
        """Store a tensor; returns it mapped from the file, so that it is in memory only while it is read."""
        place, turned = self.store(tensor.numpy())
        if turned:
            return tensor
        return torch.from_numpy(np.memmap(place.path, tensor.numpy().dtype, "c", place.offset, tuple(tensor.shape)))

    def move(self, tensor: TensorProto, graph: GraphProto) -> None:
        """Move a large constant of a graph into the file.

        A matrix whose transposition the file has is transposed when the graph is loaded.
        """
        place = place_of(tensor)
        shape, turned = tuple(tensor.dims), False
        if place is None or place.path != self.path:
            if int(np.prod(shape)) * _itemsize(tensor) < SMALLEST_EXTERNAL:
                if is_external(tensor):
                    tensor.CopyFrom(numpy_helper.from_array(values(tensor), tensor.name))
                return
            place, turned = self._moved(tensor)
        if turned:
            name = f"{tensor.name}.transposed"
            graph.node.insert(0, helper.make_node("Transpose", [name], [tensor.name], perm=[1, 0]))
            tensor.name, shape = name, shape[::-1]
        tensor.CopyFrom(refer(tensor.name, tensor.data_type, shape, Place(Path(self.path.name), *place[1:])))

    def _moved(self, tensor: TensorProto) -> tuple[Place, bool]:
        key = source(tensor)
        if key not in self._sources:
            stored = self.store(values(tensor))
            if not tensor.external_data:
                return stored
            self._sources[key] = stored
        return self._sources[key]

    def _write(self, content: memoryview) -> None:
        self.make()
        assert self._file is not None
        while content:
            written = self._file.write(content)
            self._end += written
            content = content[written:]


def write_graphs(
    graphs: Mapping[str, Graph], folder: Path, precision: str, weights: WeightsFile | None = None
) -> PrecisionVariant:
    """Write graphs and their shared weights into `folder / precision`.

    A matrix that another graph uses transposed, such as a tied output projection, is stored once. The second graph
    transposes it when it is loaded.

    Args:
        weights: the file `weights.bin` there if it has some of the weights already.

    Returns:
        The precision's entry in the manifest.
    """
    if weights is None:
        with WeightsFile(folder / precision / "weights.bin") as file:
            return write_graphs(graphs, folder, precision, file)
    weights.make()
    specs = {}
    for name, graph in graphs.items():
        model = graph.copy_model()
        for each in with_inner(model.graph):
            for tensor in list(each.initializer):
                weights.move(tensor, each)
        target = folder / precision / f"{name}.onnx"
        target.write_bytes(model.SerializeToString(deterministic=True))
        specs[name] = GraphSpec(file=target.relative_to(folder).as_posix(), inputs=graph.inputs, outputs=graph.outputs)
    forget_quantized()
    return PrecisionVariant(graphs=specs, weights=weights.path.relative_to(folder).as_posix())


def _itemsize(tensor: TensorProto) -> int:
    return helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
