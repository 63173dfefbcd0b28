"""A model's logits, one sentence and one row at a time."""

from collections.abc import Sequence

import numpy as np

from jumok_serve.runtime.decoders import make_decoder
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.step_selection import SelectionParameters, VocabularyColumns
from jumok_serve.runtime.tensors import DecoderInputs, SlotBuffers


def logits_of(graphs: Graphs, source: Sequence[int], prefix: Sequence[int]) -> np.ndarray:
    """[V], decoding the whole prefix anew: no cache is reused, reordered or shared."""
    lengths = np.array([len(source)])
    encoded, first_state = graphs.encode(np.array([source]), lengths)
    memory, decoder, columns = SlotBuffers(graphs.memory_specs, "S"), make_decoder(graphs, 1), VocabularyColumns(graphs)
    memory.reserve(1, len(source), 0)
    memory.join([0], encoded, [0])
    decoder.join([0], first_state, [0])
    selection = SelectionParameters(scores=np.zeros(1, np.float32), candidates=1)
    for position, token in enumerate(prefix):
        inputs = DecoderInputs(np.array([[token]]), np.array([position]), np.array([[0]]), lengths)
        decoder.step(np.zeros(1, np.int64), inputs, memory, columns, selection)
    row: np.ndarray = decoder.logits().numpy()[0].astype(np.float64)
    return row
