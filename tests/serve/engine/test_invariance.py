"""Batch invariance: a sentence's translation does not depend on its batch, its slot, or when it joined."""

import random
from collections.abc import Collection
from pathlib import Path

import pytest

from jumok_serve import DecodingOptions, Translation, Translator
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.text.translation import PendingTexts

Job = tuple[int, int]
"""Number of a text, and beam size."""

SENTENCES = 67
BEAM_SIZES = (1, 2, 5)
WORDS = """
    a the two old young man woman dog girl boy runs reads plays sits in on with near red blue street park ball book
    guitar and while people watch water bridge small big hat camera snow table field house yellow is are of
"""


def sentences() -> list[str]:
    """Sentences of 1 to 20 words."""
    generator = random.Random(11)
    return [" ".join(generator.choices(WORDS.split(), k=generator.randint(1, 20))) for _ in range(SENTENCES)]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("model", ["tiny_bundle", "recurrent_bundle"])
def test_alone_together_and_joining_at_random_moments(
    model: str, precision: str, request: pytest.FixtureRequest
) -> None:
    bundle: Path = request.getfixturevalue(model)
    texts = sentences()
    with Translator(bundle, precision=precision, threads=2) as translator:
        alone = {
            (i, k): translator.translate(text, beam_size=k, truncate=True)
            for i, text in enumerate(texts)
            for k in BEAM_SIZES
        }
        assert len({translation.text for translation in alone.values()}) > len(texts) / 4
        off = sum(scores_off(translated_together(translator, texts, k), alone) for k in BEAM_SIZES)
        off += scores_off(joining_at_random(translator, texts, alone), alone)
    assert off <= most_off(precision, 2 * len(alone))


def translated_together(translator: Translator, texts: list[str], beam_size: int) -> dict[Job, Translation]:
    found = translator.translate(texts, beam_size=beam_size, truncate=True)
    return {(index, beam_size): translation for index, translation in enumerate(found)}


def joining_at_random(translator: Translator, texts: list[str], jobs: Collection[Job]) -> dict[Job, Translation]:
    """Translate each text of the jobs in a request of its own, in random order."""
    generator, pending = random.Random(5), dict[Job, PendingTexts]()
    for index, beam_size in generator.sample(list(jobs), len(jobs)):
        parameters = TranslationParameters(options=DecodingOptions(beam_size=beam_size), truncate=True)
        pending[index, beam_size] = translator.submit([texts[index]], parameters)
        if generator.random() < 0.2:  # the engine works while the others wait outside
            generator.choice(list(pending.values())).collect()
    return {job: joined.collect()[0] for job, joined in pending.items()}


def scores_off(got: dict[Job, Translation], alone: dict[Job, Translation]) -> int:
    """The number of scores that differ; tokens may not."""
    off = 0
    for job, translation in got.items():
        best, expected = translation.hypotheses[0], alone[job].hypotheses[0]
        assert best.token_ids == expected.token_ids, job
        total = sum(expected.token_scores)
        off += abs(best.score - expected.score) > 1e-4 + 1e-5 * abs(total)
    return off


def most_off(precision: str, scores: int) -> int:
    """Return how many of the scores may differ: none in fp32, 1 in 200 in int8."""
    return 0 if precision == "fp32" else scores // 200
