"""A model's logits, one sentence and one row at a time."""

from collections.abc import Sequence

import numpy as np

from jumok_serve.runtime.decoder_step import Choice
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.kv_cache import Fed, make_state
from jumok_serve.runtime.output_columns import AllColumns
from jumok_serve.runtime.slot_buffers import SlotBuffers


def logits_of(graphs: Graphs, source: Sequence[int], prefix: Sequence[int]) -> np.ndarray:
    """[V], decoding the whole prefix anew: no cache is reused, reordered or shared."""
    lengths = np.array([len(source)])
    encoded, first_state = graphs.encode(np.array([source]), lengths)
    memory, state, columns = SlotBuffers(graphs.memory_specs, "S"), make_state(graphs, 1), AllColumns(graphs)
    memory.reserve(1, len(source), 0)
    memory.join([0], encoded, [0])
    state.join([0], first_state, [0])
    choice = Choice(scores=np.zeros(1, np.float32), candidates=1)
    for position, token in enumerate(prefix):
        fed = Fed(np.array([[token]]), np.array([position]), np.array([[0]]), lengths)
        state.step(np.zeros(1, np.int64), fed, memory, columns, choice)
    row: np.ndarray = state.logits().numpy()[0].astype(np.float64)
    return row
