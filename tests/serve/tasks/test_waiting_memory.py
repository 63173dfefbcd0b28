"""Memory of waiting texts: within the estimate that bounds the queue, and given back."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from jumok_proto.errors import InvalidArgumentError, OverloadedError
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.request_queue import EngineLimits, Occupancy
from jumok_serve.engine.scheduler import Scheduler
from jumok_serve.engine.sentence import SENTENCE_BYTES, TOKEN_BYTES
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TaskModel, TranslationParameters
from jumok_serve.text.translation import submit_texts
from jumok_serve.translator import Translator
from tests.support.memory import traced

TEXTS = 256
HEAVY: list[dict[str, Any]] = [
    {"beam_size": 64, "num_hypotheses": 1, "repetition_penalty": 1.3, "suppress_tokens": tuple(range(10, 90))},
    {"beam_size": 64, "num_hypotheses": 1, "no_repeat_ngram_size": 2, "suppress_tokens": tuple(range(10, 90))},
    {"num_hypotheses": 64, "seed": 3, "repetition_penalty": 0.8},
]


class WaitingEngine(Scheduler):
    """An engine's queue, without replicas that take sentences."""

    def __init__(self, limits: EngineLimits) -> None:
        super().__init__(limits, replicas=1)

    def take(self) -> int:
        """Take the first sentences that still wait; return their number."""
        work = self.next_work(0, Occupancy())
        return 0 if work is None else len(work.taken)


@pytest.fixture(scope="module")
def model(tiny_bundle: Path) -> Iterator[TaskModel]:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as opened:
        yield TaskModel(Bundle.open(tiny_bundle), "fp32", opened.graphs, None)


def submit(model: TaskModel, engine: WaitingEngine, texts: int, prefix: str | None, options: dict[str, Any]) -> Any:
    return submit_texts(
        model,
        cast("Engine", engine),
        [f"a man in a blue shirt is standing on {number} ladders ." for number in range(texts)],
        TranslationParameters(options=DecodingOptions(**options)),
        target_prefixes=None if prefix is None else [prefix] * texts,
    )


@pytest.mark.parametrize("options", HEAVY, ids=["repetition", "ngrams", "samples"])
@pytest.mark.parametrize("prefix", [None, "ein Mann in einem blauen Hemd"])
def test_a_waiting_text_takes_at_most_its_estimate_and_gives_it_back(
    model: TaskModel, options: dict[str, Any], prefix: str | None
) -> None:
    engine = WaitingEngine(EngineLimits())
    for pending in [submit(model, engine, 1, prefix, options) for _ in range(2)]:  # fills caches of options and tokens
        pending.cancel()
    gc.collect()
    with traced() as memory:
        before = memory()[0]
        pending = submit(model, engine, TEXTS, prefix, options)
        taken = memory()[0] - before
        prompt = 1 + len(model.inputs.prefixes([prefix], 1, None)[0])
        tokens = engine.load().queued_tokens + TEXTS * prompt
        assert TEXTS * SENTENCE_BYTES / 4 < taken < TEXTS * SENTENCE_BYTES + tokens * TOKEN_BYTES
        pending.cancel()
        last = submit(model, engine, 1, prefix, options)
        assert engine.take() == 1
        del pending, last
        gc.collect()
        assert memory()[0] - before < taken / 10


def test_the_queue_is_bounded_in_bytes(model: TaskModel) -> None:
    engine = WaitingEngine(EngineLimits(max_queue_bytes=10 * SENTENCE_BYTES))
    with pytest.raises(InvalidArgumentError, match=f"a request takes at most {10 * SENTENCE_BYTES} bytes here, got"):
        submit(model, engine, 10, None, {})
    for _ in range(5):
        submit(model, engine, 1, None, {})
    with pytest.raises(OverloadedError, match=rf"of at most {10 * SENTENCE_BYTES} bytes: no room for \d+ more"):
        submit(model, engine, 5, None, {})
    assert engine.load().queued_requests == 5
