"""The device selection against PyTorch's sort, and its tie-breaking."""

import numpy as np
import onnxruntime
import pytest

from jumok_export.device.selection import TIE_SHARE, device_select_graph
from jumok_export.verification.selection_cases import selections
from jumok_serve.runtime.graphs import constraint_arrays


@pytest.mark.parametrize("vocabulary", [37, 600])
def test_it_chooses_what_a_stable_sort_does(vocabulary: int) -> None:
    """Small and large vocabularies take different paths; logits on a coarse grid are often equal."""
    graph = device_select_graph(vocabulary)
    assert any(node.op_type == "ReduceMax" for node in graph.model.graph.node) == (vocabulary == 600)
    session = onnxruntime.InferenceSession(graph.model.SerializeToString(), providers=["CPUExecutionProvider"])
    for selection in selections(vocabulary):
        asking = np.flatnonzero(selection.renormalize)
        feeds = {
            "logits": selection.logits,
            "scores": selection.scores,
            "candidates": np.array([selection.candidates]),
            "renormalize": asking if len(asking) else np.array([0]),
            "renormalize.asked": np.ones(len(asking), np.bool_) if len(asking) else np.array([False]),
        }
        for stage, constraints in (("logit", selection.on_logits), ("log_prob", selection.on_log_probs)):
            feeds |= constraint_arrays(stage, constraints, vocabulary, for_device=True)
        tokens, totals = session.run(["tokens", "totals"], feeds)
        assert selection.misplaced(tokens) == 0
        assert totals == pytest.approx(selection.expected()[1], rel=1e-5, abs=1e-4)


def test_ties_are_broken_and_nothing_else() -> None:
    """The last of 2**18 equals stays before the next smaller number of fp32, and equals are in the order of places."""
    random = np.random.default_rng(3)
    numbers = np.concatenate((random.standard_normal(2000) * 10.0 ** random.integers(-30, 30, 2000), [1.0, -1.0, -2.0]))
    numbers = numbers.astype(np.float32)
    below = np.nextafter(numbers, np.float32(-np.inf))

    def ranked(values: np.ndarray, place: int) -> np.ndarray:
        exact = values.astype(np.float64)
        return np.asarray(exact - np.abs(exact) * (place * TIE_SHARE))

    assert (ranked(numbers, 2**18) > ranked(below, 1)).all()
    assert (ranked(numbers, 7) > ranked(numbers, 8)).all()
    assert ranked(np.array([-np.inf], np.float32), 1) == -np.inf
