"""Read the keys and values of a decoder step at full speed, without computation."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.state.slot_buffers import padded_length


class AttentionReads:
    """Keys, values and reading threads: a lower bound of attention.

    Args:
        graphs: the model.
        sentences: B.
        source: tokens of every source.
        entries: tokens of a sentence's rows, shared ones counted once.
        threads: threads that divide the reads.
    """

    def __init__(self, graphs: Graphs, *, sentences: int, source: int, entries: int, threads: int) -> None:
        sizes = {"S": padded_length(source), "E": padded_length(entries)}
        specs = (*graphs.memory_specs, *graphs.state_specs)
        shapes = [[axis if isinstance(axis, int) else sizes[axis] for axis in spec.axes[1:]] for spec in specs]
        # Floats are read as fast as memory gives them, halves are not: so there are floats of as many bytes.
        tensors = [
            np.ones(sentences * int(np.prod(shape)) * np.dtype(spec.dtype).itemsize // 4, np.float32)
            for spec, shape in zip(specs, shapes, strict=True)
        ]
        self._parts = [[np.array_split(tensor, threads)[part] for tensor in tensors] for part in range(threads)]
        self._workers = ThreadPoolExecutor(threads)

    def __call__(self) -> None:
        """Read all keys and values."""
        list(self._workers.map(_read, self._parts))


def _read(arrays: Sequence[NDArray[np.float32]]) -> None:
    for array in arrays:
        array.max()
