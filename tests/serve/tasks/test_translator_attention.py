"""Attention of hypotheses, against PyTorch's aligner on each hypothesis alone."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from jumok_serve import InvalidArgumentError, Translator
from jumok_serve.runtime.graphs import Pairs
from jumok_serve.tasks import hypothesis_attention, teacher_forcing
from tests.support.models.variants import edited, multilingual

TEXTS = ["A dog runs.", "", "The old woman reads a book in the park.", "A girl."]


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Translator]:
    bundle = edited(tiny_bundle, tmp_path_factory.mktemp("bundle") / "multilingual", multilingual)
    with Translator(bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator


def test_batches_are_bounded(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    together = translator.translate(TEXTS, attention=True, beam_size=3, num_hypotheses=3, max_length=9)
    rows: list[int] = []
    align = translator.graphs.attention

    def counted(kinds: Any, pairs: Pairs) -> Any:
        rows.append(len(pairs.source_ids))
        return align(kinds, pairs)

    monkeypatch.setattr(translator.graphs, "attention", counted)
    monkeypatch.setattr(teacher_forcing, "MAX_BATCH_WEIGHTS", 2000)
    apart = translator.translate(TEXTS, attention=True, beam_size=3, num_hypotheses=3, max_length=9)
    assert sum(rows) == 9
    assert len(rows) > 2
    for one, other in zip(together, apart, strict=True):
        for hypothesis, same in zip(one.hypotheses, other.hypotheses, strict=True):
            np.testing.assert_allclose(np.array(hypothesis.attention), np.array(same.attention), atol=1e-6)


def test_too_many_weights_are_refused(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypothesis_attention, "MAX_ATTENTION_WEIGHTS", 200)
    assert translator.translate("A dog.", attention=True, max_length=5).hypotheses[0].attention
    with pytest.raises(InvalidArgumentError, match="more than the 200 of a request: send several requests") as caught:
        translator.translate(["A dog."] * 9, attention=True, max_length=5)
    assert caught.value.field == "attention"


def test_tokens_of_prefixes_count_as_weights(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypothesis_attention, "MAX_ATTENTION_WEIGHTS", 200)
    with pytest.raises(InvalidArgumentError, match="more than the 200 of a request") as caught:
        translator.translate("A dog.", attention=True, target_prefix="Ein Mann " * 12, max_length=1)
    assert caught.value.field == "attention"


def test_an_aligner_needs_cross_attention_alone_and_in_any_place(tiny_bundle: Path, tmp_path: Path) -> None:
    def narrow(manifest: dict[str, Any]) -> None:
        aligner = manifest["precisions"]["fp32"]["graphs"]["aligner"]
        path = tmp_path / "narrow" / aligner["file"]
        model = onnx.load(path, load_external_data=False)
        encoder, cross = model.graph.output[1], model.graph.output[0]
        del model.graph.output[:]
        model.graph.output.extend([encoder, cross])
        content = model.SerializeToString()
        path.write_bytes(content)
        manifest["files"][aligner["file"]] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        aligner["outputs"] = [aligner["outputs"][1], aligner["outputs"][0]]

    narrowed = edited(tiny_bundle, tmp_path / "narrow", narrow)
    with (
        Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as whole,
        Translator(narrowed, precision="fp32", replicas=1, threads=1) as narrow_one,
    ):
        expected, found = (one.translate(TEXTS, attention=True, max_length=5) for one in (whole, narrow_one))
    assert [answer.hypotheses for answer in found] == [answer.hypotheses for answer in expected]
