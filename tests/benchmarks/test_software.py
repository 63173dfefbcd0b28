"""The benchmark of models beside a translation memory: neighbours and intervals are sacreBLEU's."""

import gzip
import random
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from benchmarks import software
from benchmarks.common.bootstrap import score
from benchmarks.common.translation_memory import nearest
from tests.parity.texts import parallel_sentences


def test_the_nearest_source_has_the_best_chrf() -> None:
    generator = random.Random(7)

    def text() -> str:
        return "".join(generator.choices("aab c", k=generator.randint(0, 14)))

    sources, texts = [text() for _ in range(60)], ["", "aaaa a", *(text() for _ in range(40))]
    metric = CHRF()
    for asked, index in zip(texts, nearest(texts, sources), strict=True):
        similar = [metric.sentence_score(asked, [source]).score for source in sources]
        assert similar[index] == pytest.approx(max(similar))
        assert index == min(place for place, one in enumerate(similar) if one == pytest.approx(max(similar)))


@pytest.mark.parametrize("metric", [BLEU(), CHRF()], ids=["BLEU", "chrF"])
def test_scores_and_intervals_are_those_of_sacrebleu(metric: BLEU | CHRF) -> None:
    sentences = parallel_sentences(80, seed=4)
    references = [one.german for one in sentences]
    worse = [" ".join(one.split()[: 3 + place % 5]) for place, one in enumerate(references)]
    found, perfect = score(metric, worse, references), score(metric, references, references)
    expected = metric.corpus_score(worse, [references], n_bootstrap=1000)
    assert found.value == pytest.approx(expected.score)
    low, high = found.interval
    assert (low + high) / 2 == pytest.approx(expected._mean, abs=0.3)
    assert (high - low) / 2 == pytest.approx(expected._ci, abs=0.3)
    # Both systems are scored on the same resamples, so the difference from itself has no width.
    assert found.over(found) == (0, (0, 0))
    gain, (least, most) = perfect.over(found)
    assert gain == pytest.approx(100 - found.value)
    assert (least, most) == pytest.approx((100 - high, 100 - low))


def test_it_compares_a_model_with_the_memory(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentences = parallel_sentences(30, seed=5)
    for language in ("english", "german"):
        lines = "".join(f"{getattr(one, language)}\n" for one in sentences)
        (tmp_path / f"{language}.gz").write_bytes(gzip.compress(lines.encode()))
    files = [str(tmp_path / "english.gz"), str(tmp_path / "german.gz")]
    software.main([str(tiny_bundle), "--test", *files, "--train", *files, "--target-language", "de", "--texts", "9"])
    printed = capsys.readouterr().out
    # The memory knows the test set.
    assert "| translation memory | 100.00 (100.00 to 100.00) | 100.00 (100.00 to 100.00) |" in printed
    assert f"| {tiny_bundle.name} | " in printed
    assert "chrF: nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no" in printed
