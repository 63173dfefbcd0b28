"""Search options with defaults, and random models with random options and constraints."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jumok_proto.options import EarlyStopping
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.search import Search
from jumok_serve.search.terms import NO_TERMS, Terms
from tests.support.reference_search import START, StepFunction, toy_model

EARLY_STOPPING: tuple[EarlyStopping, ...] = (False, True, "never")


def make_options(*, beam_size: int = 1, **options: Any) -> SearchOptions:
    """Make search options, with defaults for all."""
    defaults: dict[str, Any] = {
        "num_hypotheses": beam_size,
        "length_penalty": 1.0,
        "early_stopping": False,
        "min_length": 0,
        "max_length": 8,
        "eos_ids": (1,),
        "suppress_tokens": (),
    }
    return SearchOptions(beam_size=beam_size, **{**defaults, **options})


@dataclass(frozen=True)
class Case:
    """A model, search options, a target prefix, and terms."""

    step: StepFunction
    options: SearchOptions
    prefix: tuple[int, ...] = ()
    terms: Terms = NO_TERMS

    def search(self) -> Search:
        return SearchPlan(self.options, START, self.prefix, (), self.terms).begin()


def random_case(rng: np.random.Generator, *, least_tokens: int = 4) -> Case:
    """Make a random model and options, without constraints."""
    vocab_size = int(rng.integers(least_tokens, 24))
    step = toy_model(rng, vocab_size, int(rng.integers(1, 3)), spread=float(rng.choice([0.3, 1.0, 3.0])))
    beam_size = int(rng.integers(1, 7))
    max_length = int(rng.integers(1, 12))
    others = rng.permutation(vocab_size)
    num_eos = int(rng.integers(0, 4))
    num_suppressed = int(rng.integers(0, 3))
    options = make_options(
        beam_size=beam_size,
        num_hypotheses=int(rng.integers(1, beam_size + 1)),
        length_penalty=float(rng.choice([-1.0, 0.0, 0.6, 1.0, 2.0])),
        early_stopping=EARLY_STOPPING[rng.integers(3)],
        min_length=int(rng.integers(0, max_length + 1)) if rng.random() < 0.5 else 0,
        max_length=max_length,
        eos_ids=tuple(others[:num_eos].tolist()),
        suppress_tokens=tuple(others[min(num_eos, 1) :][:num_suppressed].tolist()),  # at times an EOS, never all
    )
    return Case(step, options)


def constrained(rng: np.random.Generator, case: Case) -> Case:
    """Add random constraints and a target prefix to a case."""
    options, tokens = case.options, len(case.step((START,)))

    def some(most: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, tokens, size=int(rng.integers(1, most + 1))).tolist())

    free = sorted({*range(tokens)} - {*options.suppress_tokens})
    changes: dict[str, Any] = {
        "no_repeat_ngram_size": int(rng.integers(1, 4)),
        "repetition_penalty": float(rng.choice([0.5, 0.75, 1.25, 2.0])),
        "begin_suppress_tokens": some(3),
        "bad_words": tuple(some(3) for _ in range(4)) + tuple((eos,) for eos in options.eos_ids[:1]),
        "forced_first_token": int(rng.choice(free)),
        "forced_last_tokens": (int(rng.choice(free)), *some(2)),
        "renormalize": True,
    }
    chosen = {name: value for name, value in changes.items() if rng.random() < 0.4}
    return Case(case.step, replace(options, **chosen), some(3) if rng.random() < 0.4 else ())
