"""Requests with different options in one batch: each gets the result that it gets alone."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.engine.batch import Batch
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.engine.sentence import Sentence
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.search.options import Sampling, SearchOptions
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.search import FinishedHypothesis
from jumok_serve.search.terms import NO_TERMS, Terms
from tests.support.hang import HANG_S
from tests.support.search_cases import make_options

WORDS = """
    a the two old young man woman dog girl boy runs reads plays sits in on with near red blue street park
"""
SENTENCES = 120
EOS = 3
SUPPRESS = (0, 1, 2)

PLAIN = make_options(eos_ids=(EOS,), suppress_tokens=SUPPRESS, max_length=24)
BEAMS = replace(PLAIN, beam_size=3, num_hypotheses=3)
WARM = Sampling(temperature=1.3, top_k=0, top_p=1.0, seed=1)
KINDS: dict[str, SearchOptions] = {
    "greedy": PLAIN,
    "greedy without repetition": replace(PLAIN, no_repeat_ngram_size=2, repetition_penalty=1.2),
    "greedy, forced": replace(
        PLAIN, forced_first_token=20, begin_suppress_tokens=(30, 31, 32), forced_last_tokens=(EOS,)
    ),
    "one sample": replace(PLAIN, sampling=WARM),
    "one sample of the likeliest": replace(PLAIN, sampling=replace(WARM, top_k=5, top_p=0.9), repetition_penalty=1.1),
    "beams": BEAMS,
    "short beams": replace(BEAMS, max_length=5, length_penalty=-1.0, early_stopping=True),
    "beams without repetition": replace(BEAMS, no_repeat_ngram_size=3, repetition_penalty=1.3, min_length=8),
    "beams, renormalized": replace(BEAMS, renormalize=True, suppress_tokens=(*SUPPRESS, *range(40, 80))),
    "beams without some words": replace(BEAMS, bad_words=((25,), (30, 31), (EOS,)), forced_last_tokens=(EOS, 9)),
    "beams, several ends": replace(BEAMS, eos_ids=(EOS, 50, 60), forced_first_token=21),
    "three samples": replace(PLAIN, num_hypotheses=3, sampling=replace(WARM, seed=2)),
    "three samples of the likeliest": replace(
        PLAIN, num_hypotheses=3, sampling=replace(WARM, top_p=0.8), no_repeat_ngram_size=2
    ),
    "terms": BEAMS,
    "terms, renormalized": replace(BEAMS, renormalize=True, suppress_tokens=(*SUPPRESS, *range(70, 80))),
    "terms without repetition": replace(BEAMS, no_repeat_ngram_size=3, repetition_penalty=1.3, min_length=8),
}
TERMS = Terms((((40, 41), (42,)), ((50, 51, 40),)), joins=bytes([0] * 80 + [1] * 20))

Submit = Callable[[tuple[str, list[int], list[int]]], Sentence]


@pytest.fixture(scope="module", params=["all tokens", "shortlists"])
def submit(request: pytest.FixtureRequest, listed_bundle: Path) -> Iterator[Submit]:
    """Submit jobs to an engine; with shortlists, each has its own tokens, and every seventh has all."""
    bundle = Bundle.open(listed_bundle)
    listed = request.param == "shortlists"
    shortlist = bundle.shortlist()
    graphs = Graphs(bundle, "fp32", device=CPU, threads=1, listed=listed)
    engine = Engine(graphs, pad=0, limits=EngineLimits(), name="mixed")

    def submit(job: tuple[str, list[int], list[int]]) -> Sentence:
        kind, source_ids, prefix = job
        options = KINDS[kind]
        if prefix:
            options = replace(options, forced_first_token=None)
        terms = TERMS if kind.startswith("terms") else NO_TERMS
        allowed = shortlist.of(source_ids) if listed and sum(source_ids) % 7 else None
        if allowed is not None and terms is TERMS:
            allowed = np.union1d(allowed, [40, 41, 42, 50, 51])
        sentence = Sentence(
            source_ids=source_ids, plan=SearchPlan(options, 2, prefix, source_ids, terms), allowed_tokens=allowed
        )
        engine.submit([sentence])
        return sentence

    yield submit
    engine.close()


def test_mixed_batches_equal_sentences_alone(submit: Submit, listed_bundle: Path) -> None:
    tokenizer = Bundle.open(listed_bundle).tokenizer
    generator = random.Random(3)
    jobs: list[tuple[str, list[int], list[int]]] = []
    for number in range(SENTENCES):
        text = " ".join(generator.choices(WORDS.split(), k=generator.randint(1, 12)))
        prefix = generator.choices(range(4, 100), k=generator.choice([0, 0, 0, 1, 3, 7]))
        jobs.append((list(KINDS)[number % len(KINDS)], [*tokenizer.encode(text), EOS], prefix))
    alone = [submit(job).future.result(timeout=HANG_S).hypotheses for job in jobs]
    for (kind, *_), hypotheses in zip(jobs, alone, strict=True):
        spans = [span for hypothesis in hypotheses for span in hypothesis.terms]
        assert len(spans) == (6 if kind.startswith("terms") else 0)
        assert None not in spans
    assert {len(hypothesis.token_ids) for found in alone for hypothesis in found} > {5, 10, 24}
    together = [submit(job) for job in jobs]
    for job, sentence, expected in zip(jobs, together, alone, strict=True):
        assert_same(job[0], sentence.future.result(timeout=HANG_S).hypotheses, expected)
    order = generator.sample(range(SENTENCES), SENTENCES)
    joining: list[tuple[int, Sentence]] = []
    for number in order:
        joining.append((number, submit(jobs[number])))
        if generator.random() < 0.2:  # the engine works while the others wait outside
            generator.choice(joining)[1].future.result(timeout=HANG_S)
    for number, sentence in joining:
        assert_same(jobs[number][0], sentence.future.result(timeout=HANG_S).hypotheses, alone[number])


def test_a_batch_takes_shortlists_of_any_length_one_after_another(
    listed_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jumok_serve.runtime.step_selection.WIDTH_STEP", 4)
    graphs = Graphs(Bundle.open(listed_bundle), "fp32", device=CPU, threads=1, listed=True)
    generator = random.Random(8)
    kept: dict[int, Batch] = {}
    kinds = [kind for kind in KINDS if not kind.startswith("terms")]
    widths = set()
    for number in range(4 * len(kinds)):
        options = KINDS[kinds[number % len(kinds)]]
        source_ids = [*generator.choices(range(4, 100), k=generator.randint(1, 9)), EOS]
        chosen = generator.sample(range(4, 100), generator.randint(20, 90))
        allowed = np.array(sorted({*chosen, EOS, 9, 20, 21, 50, 60}))
        widths.add(-(-len(allowed) // 4))
        plan, found = SearchPlan(options, 2, (), source_ids), []
        for again in (kept.setdefault(plan.rows, Batch(graphs, plan.rows, 0)), Batch(graphs, plan.rows, 0)):
            sentence = Sentence(source_ids=source_ids, plan=plan, allowed_tokens=allowed)
            again.admit([sentence])
            while again.size:
                again.step()
                again.remove(again.done)
            found.append(tuple(sentence.search.hypotheses()))
        assert {token for one in found[0] for token in one.token_ids} <= set(allowed.tolist())
        assert_same(kinds[number % len(kinds)], *found)
    assert len(widths) > 10


def assert_same(kind: str, found: tuple[FinishedHypothesis, ...], expected: tuple[FinishedHypothesis, ...]) -> None:
    assert [h.token_ids for h in found] == [h.token_ids for h in expected], kind
    for mine, theirs in zip(found, expected, strict=True):
        tolerance = 1e-4 + 1e-5 * abs(sum(theirs.token_scores))
        assert mine.score == pytest.approx(theirs.score, abs=tolerance), kind
        assert mine.token_scores == pytest.approx(theirs.token_scores, abs=tolerance), kind
