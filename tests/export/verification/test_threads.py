"""Threads of the sessions that are verified: all where nothing else computes, else those of one worker."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from jumok_export.bundles.variants import write_variants
from jumok_export.parallel import threads_each
from jumok_export.quantization.calibration import GreedySearch
from jumok_export.verification.agreement import TOGETHER, SourceTexts, random_sources
from jumok_serve.runtime.sessions import open_session
from tests.support.models.random_models import random_model

ALL = 4


@pytest.mark.parametrize("texts", [TOGETHER, TOGETHER + 1])
def test_sessions_have_all_threads_where_nothing_else_computes(
    texts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, list[int]] = defaultdict(list)

    def recorded(graph: Path | bytes, device: Any, options: Any, **more: bool) -> Any:
        name = Path(graph).stem if isinstance(graph, Path) else "encoder_native"  # it is opened with another output
        opened[name].append(options.intra_op_num_threads)
        return open_session(graph, device, options, **more)

    monkeypatch.setattr("jumok_serve.runtime.sessions.open_session", recorded)
    case = random_model("transformer-pre", 1.0)
    bounds = case.bounds
    before = torch.get_num_threads()
    torch.set_num_threads(ALL)
    try:
        each = threads_each()
        write_variants(
            case.model,
            case.graphs(),
            bounds,
            tmp_path,
            ["int8"],
            calibrator=None,
            listed=False,
            unverified=False,
            texts=SourceTexts(
                sources=random_sources(bounds.source_vocabulary, (0, 1, 2), 8)[:texts],
                search=GreedySearch(start=bounds.start, eos=(2,), max_length=bounds.max_target_length),
                pad=bounds.pad,
                described="random tokens",
            ),
            progress=lambda _: None,
        )
    finally:
        torch.set_num_threads(before)
    assert 1 <= each < ALL
    translating = ALL if texts <= TOGETHER else each  # more are translated in batches at the same time
    assert opened["decoder"] == [each, each]  # fp32, int8
    assert opened["decoder_native"] == [translating, each]
    assert opened["scorer"] == [each, ALL, ALL]  # fp32: beside other checks and for the longest text; int8
