"""Batches step by step: empty slots, and steps that repeat the last one, change no result."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.engine.batch import MAX_EMPTY_SHARE, Batch
from jumok_serve.engine.sentence import Sentence
from jumok_serve.runtime.decoders import Decoder, DecoderStep
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.tensors import SlotBuffers
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.search import FinishedHypothesis
from tests.support.calls import noted_calls
from tests.support.models.native_operators import needs_library
from tests.support.search_cases import make_options

START, EOS, PAD = 2, 3, 0


def sentences(beam_size: int) -> list[Sentence]:
    """Make sentences; long sources have short targets, so that memory shrinks while their slots are empty.

    Some have constraints that change from step to step.
    """
    rng = random.Random(8 + beam_size)
    made = []
    for number in range(30):
        long = number % 9 == 4
        options = make_options(
            beam_size=beam_size,
            eos_ids=(EOS,),
            suppress_tokens=(0, 1, 2),
            max_length=3 if long else rng.randint(4, 25),
            no_repeat_ngram_size=2 * (number % 6 == 5),
        )
        source = [rng.randint(4, 30) for _ in range(rng.randint(50, 64) if long else rng.randint(2, 12))]
        made.append(Sentence(source_ids=source, plan=SearchPlan(options, START, (), source)))
    return made


@pytest.mark.parametrize("by_slot", [False, pytest.param(True, marks=needs_library)])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_empty_slots_change_no_result(listed_bundle: Path, beam_size: int, by_slot: bool) -> None:
    graphs = Graphs(Bundle.open(listed_bundle), "fp32", device=CPU, threads=1, native=by_slot)
    assert graphs.by_slot == by_slot
    expected = []
    for sentence in sentences(beam_size):
        alone = Batch(graphs, beam_size, PAD)
        alone.admit([sentence])
        while not sentence.search.finished:
            alone.step()
        expected.append(sentence.search.hypotheses())
    together = sentences(beam_size)
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
                ahead = [*waiting[:2], sentences(beam_size)[0]]
                batch.encode(ahead)
                batch.remove([ahead.pop()])
                del waiting[:2]
            batch.join([ahead.pop()])
    assert not waiting
    assert not ahead
    assert batch.is_empty
    assert empty > 5
    for sentence, alone_found in zip(together, expected, strict=True):
        found = sentence.search.hypotheses()
        assert [one.token_ids for one in found] == [one.token_ids for one in alone_found]
        np.testing.assert_allclose([one.score for one in found], [one.score for one in alone_found], atol=1e-4)


def test_sentences_of_one_encoder_run_are_copied_at_once(listed_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(Graphs(Bundle.open(listed_bundle), "fp32", device=CPU, threads=1), 1, PAD)
    first, second, third, fourth, *_ = sentences(1)
    batch.encode([third, first])
    batch.encode([second, fourth])
    joins = noted_calls(monkeypatch, SlotBuffers, "join")
    batch.join([first, second, third, fourth])
    assert [len(slots) for _, slots, *_ in joins] == [2, 2]
    assert set(batch.sentences) == {first, second, third, fourth}


def decoded(graphs: Graphs, beam_size: int, step: Callable[[Batch], object]) -> list[tuple[FinishedHypothesis, ...]]:
    """Decode all sentences; they join where others have left, and between other steps."""
    given = sentences(beam_size)
    batch, waiting, turns = Batch(graphs, beam_size, PAD), given[3:], 0
    batch.admit(given[:3])
    while batch.sentences:
        step(batch)
        turns += 1
        leaving = batch.done
        batch.remove(leaving)
        if waiting and (leaving or turns % 20 == 0):
            batch.admit([waiting.pop()])
    return [tuple(sentence.search.hypotheses()) for sentence in given]


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_library)])
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("model", ["tiny_bundle", "recurrent_bundle"])
def test_repeated_steps_change_no_result(
    model: str, beam_size: int, native: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle: Path = request.getfixturevalue(model)
    graphs = Graphs(Bundle.open(bundle), "fp32", device=CPU, threads=1, native=native)

    def anew(batch: Batch) -> None:
        batch._repeats = False
        batch.step()

    expected = decoded(graphs, beam_size, anew)
    runs, others = noted_calls(monkeypatch, DecoderStep, "run"), noted_calls(monkeypatch, Decoder, "step")
    assert decoded(graphs, beam_size, Batch.step) == expected
    repeated = len(runs) - len(others)
    assert repeated > 5

    def run(batch: Batch) -> None:
        batch.step()
        batch.run_on(lambda: False)

    assert decoded(graphs, beam_size, run) == expected
    assert len(runs) - len(others) > repeated + 5


def test_a_run_of_steps_is_interrupted(tiny_bundle: Path) -> None:
    graphs = Graphs(Bundle.open(tiny_bundle), "fp32", device=CPU, threads=1)
    batch, answers = Batch(graphs, 1, PAD), iter([False, False, True])
    assert batch.run_on(lambda: False) == 0  # nothing to repeat
    source = [4, 5, 6]
    options = make_options(beam_size=1, eos_ids=(), max_length=60)
    batch.admit([Sentence(source_ids=source, plan=SearchPlan(options, START, (), source))])
    batch.step()
    assert batch.run_on(lambda: next(answers)) == 2
    assert batch.run_on(lambda: True) == 0
    assert next(answers, None) is None
