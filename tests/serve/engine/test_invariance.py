"""Batch invariance: a sentence's translation does not depend on its batch, its slot, or when it joined."""

import random
from pathlib import Path

import pytest

from jumok_serve import DecodingOptions, Translation, Translator
from jumok_serve.tasks.model import TranslationParameters

SENTENCES = 100
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
    jobs = [(index, beam_size) for index in range(len(texts)) for beam_size in BEAM_SIZES]
    generator = random.Random(5)
    with Translator(bundle, precision=precision, threads=2) as translator:
        alone = {(i, k): translator.translate(texts[i], beam_size=k, truncate=True) for i, k in jobs}
        assert len({translation.text for translation in alone.values()}) > len(texts) / 4
        off = 0
        for beam_size in BEAM_SIZES:
            together = translator.translate(texts, beam_size=beam_size, truncate=True)
            off += scores_off({(i, beam_size): value for i, value in enumerate(together)}, alone)
        generator.shuffle(jobs)
        pending = []
        for i, k in jobs:
            pending.append(
                (
                    (i, k),
                    translator.submit(
                        [texts[i]], TranslationParameters(options=DecodingOptions(beam_size=k), truncate=True)
                    ),
                )
            )
            if generator.random() < 0.2:  # the engine works while the others wait outside
                _, earlier = generator.choice(pending)
                earlier.collect()
        off += scores_off({job: joined.collect()[0] for job, joined in pending}, alone)
    assert off <= most_off(precision, 2 * len(jobs))


def scores_off(got: dict[tuple[int, int], Translation], alone: dict[tuple[int, int], Translation]) -> int:
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
