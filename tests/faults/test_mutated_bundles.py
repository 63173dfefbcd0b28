"""The scenario of mutated bundles, for a few dozen of them."""

import random
import shutil
from pathlib import Path
from typing import Any

from tests.faults.scenarios.mutated_bundles import BY_READER, BY_TRIAL, GOOD, NAN, mutate, try_mutated

COUNT = 40


def test_mutated_bundles_are_used_or_refused(tiny_bundle: Path) -> None:
    outcomes = try_mutated(tiny_bundle, tiny_bundle, COUNT, seed=5)
    assert outcomes.failed == []
    assert outcomes.checked == 1
    assert sum(map(outcomes.of, (GOOD, NAN, BY_READER, BY_TRIAL))) == outcomes.total() == COUNT
    assert outcomes.of(BY_TRIAL) > COUNT / 4
    assert outcomes.of(BY_READER) > 0
    assert outcomes.of(GOOD) > 0


def test_every_kind_of_mutation_can_be_made(tiny_bundle: Path, tmp_path: Path) -> None:
    made = []
    for number in range(300):
        folder = tmp_path / str(number)
        made.append(mutate(tiny_bundle, folder, random.Random(number)))
        shutil.rmtree(folder)
    assert {what.partition(":")[0] for what in made} == {"bytes", "graph", "field", "files"}


class ChangesFiles(random.Random):
    """Chooses to change the whole field of files."""

    def choice(self, seq: Any) -> Any:
        return next((one for one in seq if one == "files" or getattr(one, "__name__", "") == "_field"), seq[0])

    def random(self) -> float:
        return 0.9


def test_the_list_of_files_can_be_changed(tiny_bundle: Path, tmp_path: Path) -> None:
    assert mutate(tiny_bundle, tmp_path / "mutated", ChangesFiles()) == "field: files"
