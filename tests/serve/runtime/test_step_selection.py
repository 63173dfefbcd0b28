"""Parameters of a step's selection: the same object as long as only scores change."""

from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from jumok_serve.runtime.step_selection import Columns, StepSelection
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.step_arrays import BatchSearch
from tests.support.search_cases import make_options

COLUMN_INPUTS: dict[str, object] = {}
COLUMNS = cast(Columns, SimpleNamespace(inputs=lambda _: COLUMN_INPUTS, to_columns=lambda constraints: constraints))


@pytest.mark.parametrize("slots", [[0, 1, 2], [0, 2]], ids=["all", "some"])
@pytest.mark.parametrize("beam_size", [1, 2])
def test_parameters_stay_while_only_scores_change(beam_size: int, slots: list[int]) -> None:
    rng = np.random.default_rng(beam_size)
    options = make_options(beam_size=beam_size, num_hypotheses=1, max_length=20, eos_ids=(1,))
    searches, selection, of_step = BatchSearch(beam_size), StepSelection(beam_size), np.array(slots)
    searches.join(slots, [SearchPlan(options, 0).begin() for _ in slots])
    seen = []
    for _ in range(6):
        seen.append(selection.parameters(of_step, searches, COLUMNS))
        assert seen[-1].scores.tolist() == searches.arrays.scores[of_step].ravel().tolist()
        tokens = rng.integers(2, 9, (len(slots) * beam_size, 2 * beam_size))
        totals = seen[-1].scores[:, None] - np.sort(rng.random(tokens.shape, np.float32))
        searches.advance(searches.advance_steady(of_step, tokens, totals))
    assert all(parameters is seen[1] for parameters in seen[2:])
    searches.join([5], [SearchPlan(make_options(beam_size=beam_size, suppress_tokens=(3,)), 0).begin()])
    joined = selection.parameters(np.array([*slots, 5]), searches, COLUMNS)
    assert joined is not seen[-1]
    assert len(joined.scores) == (len(slots) + 1) * beam_size
    assert joined.scores.tolist() == searches.arrays.scores[[*slots, 5]].ravel().tolist()


def test_scores_move_only_if_other_memory_is_needed() -> None:
    searches, selection = BatchSearch(1), StepSelection(1)
    searches.join([0, 1, 2], [SearchPlan(make_options(), 0).begin() for _ in range(3)])
    arrays = []
    for slots, score in (([0, 1], 1), ([0, 1], 2), ([0, 2], 3), ([1, 2], 4), ([0, 1], 5), ([0, 1, 2], 6)):
        searches.arrays.scores[slots] = score + np.arange(len(slots))[:, None]
        arrays.append(selection.parameters(np.array(slots), searches, COLUMNS).scores)
        assert arrays[-1].tolist() == (score + np.arange(len(slots))).tolist()
    assert [one is following for one, following in pairwise(arrays)] == [True, False, True, False, False]
