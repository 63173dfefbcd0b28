"""Near-ties in selection: either order passes, and errors are still found."""

import numpy as np
import pytest
import torch

from jumok_export.verification.selection_cases import constrained_scores, drawings, nucleus
from tests.export.graphs.test_selection import plain

SMALLEST = float(np.spacing(np.float32(8.0)))


def misplaced(logits: list[float], tokens: list[int]) -> int:
    return plain(np.array([logits], np.float32), len(tokens)).misplaced(np.array([tokens]))


@pytest.mark.parametrize(
    ("logits", "tokens", "number"),
    [
        ([8.0, 8.0 + SMALLEST, 1.0], [0, 1], 0),  # rounding apart: either order
        ([8.0, 8.0 + SMALLEST, 1.0], [1, 0], 0),
        ([8.0, 8.0 + SMALLEST, 1.0], [1, 2], 1),
        ([8.0, 8.0, 8.0, 1.0], [0, 1], 0),  # equal: the lower comes first
        ([8.0, 8.0, 8.0, 1.0], [1, 0], 1),
        ([8.0, 8.0, 8.0, 1.0], [0, 2], 1),
        ([8.0, 8.01, 1.0], [1, 0], 0),
        ([8.0, 8.01, 1.0], [0, 1], 2),
        ([8.0, 1.0, 1.0], [0, 0], 2),
        ([8.0, -np.inf, -np.inf], [0, 1, 2], 0),
        ([8.0, -np.inf, -np.inf], [0, 2, 1], 1),
        ([8.0, 1.0, 0.0], [0, 3], 2),
    ],
)
def test_tokens_that_an_error_moved_are_misplaced(logits: list[float], tokens: list[int], number: int) -> None:
    assert misplaced(logits, tokens) == number


def test_any_of_many_near_ties_may_be_chosen() -> None:
    logits = (8.0 + np.random.default_rng(1).permutation(90) * SMALLEST).tolist()
    assert misplaced(logits, [40, 5, 77]) == 0
    assert misplaced([*logits, 8.1], [40, 5, 77]) == 1


@pytest.mark.parametrize("vocabulary", [2, 3, 17, 101, 513, 2017, 8000])
def test_rounding_changes_no_drawing(vocabulary: int) -> None:
    """Neither the kept tokens nor the drawn one, in many shapes."""
    for drawing in drawings(vocabulary):
        constrained = constrained_scores(torch.from_numpy(drawing.logits[drawing.rows]), drawing.on_logits)
        for draw, logits, token in zip(drawing.draws, constrained, drawing.tokens[:, 0], strict=True):
            for off in (-5e-5, 5e-5):
                top_p = draw.top_p if draw.top_p in {1.0, 1e-6} else draw.top_p + off
                kept = nucleus(logits * (1 + off / 10), temperature=draw.temperature, top_k=draw.top_k, top_p=top_p)
                bounds = kept.double().softmax(dim=-1).cumsum(dim=-1)
                assert int((bounds <= draw.uniform).sum()) == token
