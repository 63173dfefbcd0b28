"""A student's shortlists in native operators: batches as texts alone, and bundles of before."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from jumok import Translation
from jumok_export.bundles.add_native import add_native_graphs
from jumok_export.native import listed
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.errors import BundleError
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from tests.support.checkpoints.tokenizer_checkpoints import lines
from tests.support.models.native_operators import needs_library
from tests.support.models.variants import edited

pytestmark = needs_library

TEXTS = list(dict.fromkeys(lines("en")))[:16]


def operators(bundle: Path) -> set[str]:
    file = Bundle.open(bundle).manifest.precisions["int8"].graphs["decoder_shortlist_native"].file
    return {node.op_type for node in onnx.load(bundle / file, load_external_data=False).graph.node}


def tokens(translations: list[Translation]) -> list[list[tuple[int, ...]]]:
    return [[tuple(one.token_ids) for one in each.hypotheses] for each in translations]


def scores(translations: list[Translation]) -> list[float]:
    return [one.score for each in translations for one in each.hypotheses]


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 4, "num_hypotheses": 4},
        {"beam_size": 1, "sample": True, "seed": 3},
        {"beam_size": 1, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    ],
    ids=["greedy", "beams", "sampling", "constraints"],
)
def test_texts_with_other_shortlists_in_the_batch_change_nothing(student: Path, options: Mapping[str, Any]) -> None:
    assert "ListedProduct" in operators(student / "bundle")
    given = {"max_length": 20, "split_sentences": False, **options}
    with Translator(student / "bundle", precision="int8", shortlist=True, threads=1) as translator:
        together = translator.translate(TEXTS, **given)
        alone = [translator.translate([text], **given)[0] for text in TEXTS]
    assert tokens(together) == tokens(alone)
    assert scores(together) == pytest.approx(scores(alone), abs=1e-6)  # sums over more columns
    assert len(set(map(tuple, tokens(together)))) > len(TEXTS) // 2


def test_bundles_without_packed_weights(student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As bundles of before, or with a width that kernels cannot pack; native graphs that are added again pack."""
    before, again = tmp_path / "before", tmp_path / "again"
    with monkeypatch.context() as patch:
        patch.setattr(listed, "_in_chunks", lambda _: False)
        add_native_graphs(student / "bundle", before)
    add_native_graphs(before, again)
    assert {"If", "ListedLogits"} <= operators(before)
    assert "projection_native" not in Bundle.open(before).manifest.precisions["int8"].graphs
    assert operators(again) == operators(student / "bundle")
    texts = []
    for bundle in (before, again):
        with Translator(bundle, precision="int8", shortlist=True, threads=1) as translator:
            texts.append([one.text for one in translator.translate(TEXTS, beam_size=3, max_length=20)])
    assert sum(one != other for one, other in zip(*texts, strict=True)) <= 1


def test_a_decoder_whose_weights_no_graph_gathers_is_refused(student: Path, tmp_path: Path) -> None:
    def drop(manifest: dict[str, Any]) -> None:
        del manifest["precisions"]["int8"]["graphs"]["projection_native"]

    folder = edited(student / "bundle", tmp_path / "lacking", drop)
    with pytest.raises(BundleError, match=r"no graph makes 'projection\.sums', which the decoder reads"):
        Graphs(Bundle.open(folder), "int8", device=CPU, threads=1, listed=True)
