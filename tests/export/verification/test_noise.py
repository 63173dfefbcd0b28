"""Models whose fp32 rounds much: correct graphs pass, and errors in them are still found."""

import os
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from jumok_export.bundles.variants import Written
from jumok_export.errors import VerificationError
from tests.support.models.broken_graphs import BREAKS, Graphs, copied
from tests.support.models.random_models import FAMILIES, SCALES, RandomModel, random_model, written

THOROUGH = bool(os.environ.get("JUMOK_TEST_THOROUGH"))
GRID = [(family, scale, threads) for family in FAMILIES for scale in SCALES for threads in (1, 2)]


@pytest.fixture(scope="module")
def noisy() -> tuple[RandomModel, Graphs]:
    """A Transformer whose fp32 rounds by more than the plain limits, and its graphs."""
    case = random_model("transformer-pre", 8.0)
    return case, case.graphs()


def verified(case: RandomModel, graphs: Graphs, precisions: tuple[str, ...]) -> Written:
    with tempfile.TemporaryDirectory() as folder:
        return written(case, Path(folder), precisions, graphs=graphs)


def test_a_noisy_model_is_compared_by_its_own_rounding(noisy: tuple[RandomModel, Graphs]) -> None:
    checks = verified(*noisy, ("fp32", "int8")).reports["fp32"].checks
    allowed = [check for check in checks if "times the model's own rounding" in check.detail]
    assert allowed
    for check in allowed:
        assert check.worst < check.limit / 2  # no close call, so the number of threads decides nothing


SEEN = [name for name in BREAKS if name != "epsilon is wrong"]
"""Not the epsilon, which makes no difference beside variances as large as those of the noisy model."""


@pytest.mark.parametrize("name", SEEN)
def test_a_broken_graph_of_it_is_refused(name: str, noisy: tuple[RandomModel, Graphs]) -> None:
    (case, graphs), (damage, check) = noisy, BREAKS[name]
    share = 1.0 if name == "perturbed weight" else 0.34  # that weight alone shows clearly in many inputs only
    broken = copied(graphs)
    damage(broken)
    with pytest.raises(VerificationError) as caught:
        verified(case._replace(bounds=replace(case.bounds, share=share)), broken, ("fp32",))
    assert check in {one.name for one in caught.value.checks}


def test_a_correct_model_passes_with_another_number_of_threads() -> None:
    passes("gru", 4.0, threads=3)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "scale", "threads"), GRID if THOROUGH else GRID[::23])
def test_no_correct_model_is_refused(family: str, scale: float, threads: int) -> None:
    """All families at all scales with JUMOK_TEST_THOROUGH, or else a few of them."""
    passes(family, scale, threads=threads)


@lru_cache(maxsize=1)  # cases of one model come one after another
def traced(family: str, scale: float) -> tuple[RandomModel, Graphs]:
    case = random_model(family, scale)
    return case, case.graphs()


def passes(family: str, scale: float, *, threads: int) -> None:
    case, graphs = traced(family, scale)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        verified(case, copied(graphs), ("fp32", "int8"))
    finally:
        torch.set_num_threads(before)
