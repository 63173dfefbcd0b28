"""Empty slots, part of steps or not, change no result."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.engine.batch import MAX_EMPTY_SHARE, Batch
from jumok_serve.engine.sentence import Sentence
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.state.slot_buffers import SlotBuffers
from jumok_serve.search import FinishedHypothesis, SearchPlan
from tests.support.models.native_operators import needs_library
from tests.support.search_cases import make_options

START, EOS, PAD = 2, 3, 0
SENTENCES = 60


def sentences() -> list[Sentence]:
    """Make sentences; long sources have short targets, so that memory shrinks while their slots are empty."""
    rng = random.Random(8)
    made = []
    for number in range(SENTENCES):
        long = number % 9 == 4
        options = make_options(
            beam_size=1 if number < SENTENCES // 2 else 3,
            eos_ids=(EOS,),
            suppress_tokens=(0, 1, 2),
            max_length=3 if long else rng.randint(4, 25),
            no_repeat_ngram_size=2 * (number % 4 == 1),
        )
        source = [rng.randint(4, 30) for _ in range(rng.randint(50, 64) if long else rng.randint(2, 12))]
        made.append(Sentence(source_ids=source, plan=SearchPlan(options, START, (), source)))
    return made


@pytest.mark.parametrize("by_slot", [False, pytest.param(True, marks=needs_library)])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_empty_slots_change_no_result(listed_bundle: Path, beam_size: int, by_slot: bool) -> None:
    graphs = Graphs(Bundle.open(listed_bundle), "fp32", device=CPU, threads=1, native=by_slot)
    assert graphs.by_slot == by_slot
    of_size = [sentence for sentence in sentences() if sentence.search.beam_size == beam_size]
    expected = []
    for sentence in of_size:
        alone = Batch(graphs, beam_size, PAD)
        alone.admit([sentence])
        while not sentence.search.finished:
            alone.step()
        expected.append(sentence.search.hypotheses())
    together = [sentence for sentence in sentences() if sentence.search.beam_size == beam_size]
    waiting, batch, empty = list(together), Batch(graphs, beam_size, PAD), 0
    ahead: list[Sentence] = []
    batch.admit([waiting.pop(0) for _ in range(20)])
    while batch.sentences:
        batch.step()
        slots = batch.slots
        assert by_slot or slots - len(batch.sentences) <= MAX_EMPTY_SHARE * slots
        empty += slots - len(batch.sentences)
        batch.remove(batch.done)
        if len(batch.sentences) < 18 and (ahead or waiting):
            if not ahead:  # three are encoded, and one leaves before it joins
                ahead = [*waiting[:2], sentences()[0]]
                batch.encode(ahead)
                batch.remove([ahead.pop()])
                del waiting[:2]
            batch.join([ahead.pop()])
    assert not waiting
    assert not ahead
    assert batch.is_empty
    assert empty > 5
    for sentence, alone_found in zip(together, expected, strict=True):
        same(sentence.search.hypotheses(), alone_found)


def test_sentences_of_one_encoder_run_are_copied_at_once(listed_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(Graphs(Bundle.open(listed_bundle), "fp32", device=CPU, threads=1), 1, PAD)
    first, second, third, fourth, *_ = sentences()
    batch.encode([third, first])
    batch.encode([second, fourth])
    joins: list[int] = []
    join = SlotBuffers.join

    def noted(buffers: SlotBuffers, slots: Sequence[int], *others: Any) -> None:
        joins.append(len(slots))
        join(buffers, slots, *others)

    monkeypatch.setattr(SlotBuffers, "join", noted)
    batch.join([first, second, third, fourth])
    assert joins == [2, 2]
    assert set(batch.sentences) == {first, second, third, fourth}


def same(found: list[FinishedHypothesis], expected: list[FinishedHypothesis]) -> None:
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    np.testing.assert_allclose([one.score for one in found], [one.score for one in expected], atol=1e-4)
