"""The activation scales of an exported int8 precision: those that agree with fp32."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jumok_export.graphs.graph import Graph
from jumok_export.quantization.calibration import Calibration, GreedySearch, calibrate
from jumok_export.verification.agreement import random_sources
from jumok_serve.runtime.device import agrees
from tests.support.models.random_models import random_model, written


def test_scales_by_row_are_taken_if_calibrated_ones_lose(tmp_path: Path) -> None:
    case = random_model("rnn", 1.0)
    bounds = case.bounds
    sources = random_sources(bounds.source_vocabulary, (0, 1, 2), 8)[:20]
    search = GreedySearch(start=bounds.start, eos=(2,), max_length=bounds.max_target_length)

    def too_small(graphs: Mapping[str, Graph]) -> Calibration:
        found = calibrate(graphs, sources, search)
        return replace(found, scales={key: scale / 1000 for key, scale in found.scales.items()})

    found = written(case, tmp_path, ["int8"], texts=20, calibrator=too_small)
    assert agrees(found.agreement["int8"])
    (decode,) = (check for check in found.reports["int8"].checks if check.name == "decode")
    assert "one scale per row" in decode.detail
