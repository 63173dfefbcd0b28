"""Threads of the sessions that are verified: all where nothing else computes, else those of one worker."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from jumok_export.graphs.graph import Graph
from jumok_export.parallel import threads_each
from jumok_export.verification.agreement import TOGETHER
from jumok_serve.runtime.sessions import open_session
from tests.support.models.random_models import RandomModel, random_model, written

ALL = 4


@pytest.fixture(scope="module")
def traced() -> tuple[RandomModel, dict[str, Graph]]:
    """A model and its graphs; read-only."""
    case = random_model("transformer-pre", 1.0)
    return case, case.graphs()


@pytest.mark.parametrize("texts", [TOGETHER, TOGETHER + 1])
def test_sessions_have_all_threads_if_alone(
    texts: int, traced: tuple[RandomModel, dict[str, Graph]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, graphs = traced
    opened: dict[str, list[int]] = defaultdict(list)

    def recorded(graph: Path | bytes, device: Any, options: Any, **more: bool) -> Any:
        name = Path(graph).stem if isinstance(graph, Path) else "encoder_native"  # it is opened with another output
        opened[name].append(options.intra_op_num_threads)
        return open_session(graph, device, options, **more)

    monkeypatch.setattr("jumok_serve.runtime.sessions.open_session", recorded)
    before = torch.get_num_threads()
    torch.set_num_threads(ALL)
    try:
        each = threads_each()
        written(case, tmp_path, ["int8"], graphs=graphs, texts=texts)
    finally:
        torch.set_num_threads(before)
    assert 1 <= each < ALL
    translating = ALL if texts <= TOGETHER else each  # more are translated in batches at the same time
    assert opened["decoder"] == [each, each]  # fp32, int8
    assert opened["decoder_native"] == [translating, each]
    assert opened["scorer"] == [each, ALL, ALL]  # fp32: beside other checks and for the longest text; int8
