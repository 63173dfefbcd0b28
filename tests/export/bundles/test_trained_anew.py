"""Models that are trained and exported anew: luck decides their weights, but none of this."""

from pathlib import Path

import onnx
import pytest

from jumok_export.bundles import variants
from jumok_export.training.vocabulary import Vocabulary
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from tests.support.data import MODELS, Sentences
from tests.support.models.trained import TRAININGS, bundle_settings, export_tiny, trace


def operators(bundle: Bundle) -> dict[str, set[tuple[str, str]]]:
    """Operators of each graph file, by domain and name."""
    return {
        name: {
            (node.domain, node.op_type) for node in onnx.load(bundle.path / name, load_external_data=False).graph.node
        }
        for name in bundle.manifest.files
        if name.endswith(".onnx")
    }


@pytest.mark.parametrize("folder", ["tiny-recurrent", "listed-en-de"])
def test_they_learn_and_their_bundles_are_made_as_the_committed_ones(
    folder: str, sentences: Sentences, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "CALIBRATION_LOSS", 1.0)  # luck decides if scales by row agree better
    settings = bundle_settings(sentences)[folder]
    model, losses = TRAININGS[settings.pop("trained")].train(sentences, vocabulary)
    assert losses[-1] < losses[0] / 2
    bundle = export_tiny(
        tmp_path / folder, vocabulary=vocabulary, model=model, graphs=trace(model, vocabulary), **settings
    )
    committed = Bundle.open(MODELS / folder)
    # If this fails, the exporter makes other graphs now: `python -m tests.support.models.trained` makes them again.
    assert bundle.manifest.precisions == committed.manifest.precisions
    assert operators(bundle) == operators(committed)
    assert bundle.manifest.verification.keys() == committed.manifest.verification.keys()
    assert all(report.passed for report in bundle.manifest.verification.values())
    for precision in bundle.manifest.precisions:
        with Translator(bundle.path, precision=precision, threads=1) as translator:
            found = translator.translate(sentences[0], beam_size=2, num_hypotheses=2)
        assert [len(translation.hypotheses) for translation in found] == [2] * len(sentences[0])
