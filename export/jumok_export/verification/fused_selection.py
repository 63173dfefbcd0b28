"""The selection of a written decoder, to run on any logits."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, external_data_helper, helper

from jumok_export.graphs.fuse_selection import DECODED_LOGITS
from jumok_export.graphs.graph import drop_unread
from jumok_export.verification.selection_cases import Selection
from jumok_serve.manifest.manifest import DEVICE_INPUT
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import LOGIT_ROWS, Floats, Integers
from jumok_serve.runtime.sessions import session_options
from jumok_serve.search.constraints import Entries


class FusedSelection:
    """A decoder's selection nodes, as a session on the CPU."""

    def __init__(self, path: Path, threads: int) -> None:
        model = onnx.load(path, load_external_data=False)
        graph = model.graph
        decoding = next(node for node in graph.node if DECODED_LOGITS in node.output)
        graph.node.remove(decoding)
        selected = [value for value in graph.output if value.name in {"tokens", "totals"}]
        del graph.output[:]
        graph.output.extend(selected)
        graph.input.append(helper.make_tensor_value_info(DECODED_LOGITS, TensorProto.FLOAT, [None, None]))
        drop_unread(graph)
        for tensor in graph.initializer:
            if external_data_helper.uses_external_data(tensor):
                external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
                tensor.data_location = TensorProto.DEFAULT
        read = {name for node in graph.node for name in node.input}
        used = [value for value in graph.input if value.name in read]
        del graph.input[:]
        graph.input.extend(used)
        self._inputs = {value.name for value in used}
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), session_options(threads, CPU), providers=["CPUExecutionProvider"]
        )

    def run(self, selection: Selection) -> tuple[Integers, Floats]:
        """Token ids and running scores [R, C] of every row's best candidates."""
        rows, width = selection.logits.shape
        on_device = DEVICE_INPUT in self._inputs
        feeds: dict[str, NDArray[Any]] = {
            DECODED_LOGITS: selection.logits,
            LOGIT_ROWS: np.array([0]),
            "scores": selection.scores,
            "candidates": np.array([selection.candidates]),
            "renormalize": np.arange(rows) if on_device else np.flatnonzero(selection.renormalize),
            DEVICE_INPUT: selection.renormalize,
        }
        for stage, constraints in (("logit", selection.on_logits), ("log_prob", selection.on_log_probs)):
            for kind, given, neutral in (("factors", constraints.factors, 1.0), ("biases", constraints.biases, 0.0)):
                none = Entries(np.zeros((1, 2), np.int64), np.array([neutral], np.float32))
                entries = given if len(given.values) or not on_device else none  # CUDA's operators need an element
                feeds[f"{stage}_{kind}.places"] = entries.places[:, 0] * width + entries.places[:, 1]
                feeds[f"{stage}_{kind}.values"] = entries.values
        tokens, totals = self._session.run(
            ["tokens", "totals"], {name: value for name, value in feeds.items() if name in self._inputs}
        )
        return tokens, totals
