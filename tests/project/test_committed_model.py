"""The bundles in the repository: small, int8 only, verified, with their scores, and as good as they say."""

import os
from functools import partial
from pathlib import Path

import pytest

from jumok_serve import DecodingOptions, Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.evaluation.evaluation import evaluate
from jumok_serve.evaluation.parallel_text import read_parallel
from jumok_serve.tasks.parameters import TranslationParameters

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
MULTI30K = Path(os.environ.get("JUMOK_MULTI30K", ROOT.parent / "shared" / "data" / "multi30k"))
LARGEST_BYTES = {"multi30k-en-de-transformer": 15 * 2**20, "multi30k-en-de-lstm": 12 * 2**20}
LEAST_BLEU = {"multi30k-en-de-transformer": 34, "multi30k-en-de-lstm": 30}


@pytest.fixture(scope="module", params=LARGEST_BYTES)
def bundle(request: pytest.FixtureRequest) -> Bundle:
    return Bundle.open(MODELS / request.param)


def test_there_are_no_others() -> None:
    assert {folder.name for folder in MODELS.iterdir()} == set(LARGEST_BYTES)


def test_it_is_small_int8_and_verified(bundle: Bundle) -> None:
    assert list(bundle.manifest.precisions) == ["int8"]
    assert all(report.passed for report in bundle.manifest.verification.values())
    assert set(bundle.manifest.verification) == {"int8"}
    size = sum(file.stat().st_size for file in bundle.path.rglob("*"))
    assert size <= LARGEST_BYTES[bundle.manifest.name]


def test_its_manifest_and_its_card_have_the_scores_of_both_precisions(bundle: Bundle) -> None:
    bleu = {score.precision: score for score in bundle.manifest.scores if score.metric == "BLEU"}
    assert bleu["int8"].value >= LEAST_BLEU[bundle.manifest.name]
    assert abs(bleu["int8"].value - bleu["fp32"].value) <= 0.5
    assert {score.dataset for score in bundle.manifest.scores} == {"multi30k test_2016_flickr"}
    card = (bundle.path / "README.md").read_text(encoding="utf-8")
    for score in bundle.manifest.scores:
        assert f"{score.value:.2f}" in card
        assert score.signature in card


def test_its_configuration_lies_beside_it(bundle: Bundle) -> None:
    assert bundle.manifest.provenance.configuration == (bundle.path / "config.toml").read_text(encoding="utf-8")


def test_it_is_as_good_as_it_says(bundle: Bundle) -> None:
    source, reference = (MULTI30K / f"test_2016_flickr.{language}.gz" for language in ("en", "de"))
    if not (source.is_file() and reference.is_file()):
        pytest.skip("Multi30k is not shared here: name its folder in JUMOK_MULTI30K")
    (stated,) = [score.value for score in bundle.manifest.scores if (score.metric, score.precision) == ("BLEU", "int8")]
    with Translator(bundle.path) as translator:
        parameters = TranslationParameters(options=DecodingOptions(beam_size=5), truncate=True)
        submit = partial(translator.submit, parameters=parameters)
        scores, _ = evaluate(submit, *read_parallel(source, reference), lambda _: None, tokenizer="13a")
    assert scores.sentences == 1000
    # Another processor rounds the last bit otherwise, and int8 turns that into a different word now and then.
    assert scores.bleu is not None
    assert scores.bleu == pytest.approx(stated, abs=0.3)
    assert scores.bleu >= LEAST_BLEU[bundle.manifest.name]
