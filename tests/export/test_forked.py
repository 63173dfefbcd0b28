"""Values of forked processes, and graphs that are traced in one."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from jumok_export.graphs import tracing
from jumok_export.graphs.storage import WeightsFile
from jumok_export.models.transformer import Transformer
from jumok_export.parallel import forked
from jumok_export.training.vocabulary import Vocabulary
from tests.support.hang import HANG_S


def test_a_value_comes_from_another_process_with_one_thread() -> None:
    with forked(lambda: (os.getpid(), torch.get_num_threads(), b"a" * 2**22)) as value:
        process, threads, content = value()
    assert process != os.getpid()
    assert threads == 1
    assert content == b"a" * 2**22


@pytest.mark.parametrize("compute", [lambda: 1 // 0, lambda: os._exit(9), threading.Lock])
def test_a_process_that_fails_gives_nothing(compute: Callable[[], Any], capfd: pytest.CaptureFixture[str]) -> None:
    with forked(compute) as value:
        assert value() is None
    assert tuple(capfd.readouterr()) == ("", "")


def test_without_another_process_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError("too many processes")

    monkeypatch.setattr(os, "fork", refuse)
    with forked(os.getpid) as value:
        assert value() is None


def test_a_process_ends_with_its_context() -> None:
    before = children()
    with forked(lambda: time.sleep(HANG_S)):
        assert len(children() - before) == 1
    assert children() == before


def children() -> set[str]:
    """Processes that threads of this one have started."""
    return {pid for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()}


def test_a_graph_that_is_traced_in_another_process_is_the_same(
    tiny_model: Transformer, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = []

    @contextmanager
    def recorded(compute: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
        with forked(compute) as value:

            def wait() -> object:
                values.append(value())
                return values[-1]

            yield wait

    monkeypatch.setattr(tracing, "forked", recorded)
    monkeypatch.setattr(tracing, "can_fork", lambda: True)
    found = {}
    for least in (2**40, 0):
        monkeypatch.setattr(tracing, "BESIDE_PARAMETERS", least)
        folder = tmp_path / f"{least:020}"  # of one length, which the files have too
        with WeightsFile(folder / "weights.bin") as file:
            graphs = tracing.export_graphs(tiny_model, len(vocabulary), len(vocabulary), file)
        contents = {
            name: graph.model.SerializeToString(deterministic=True).replace(str(folder).encode(), b"")
            for name, graph in graphs.items()
        }
        specs = {name: (graph.inputs, graph.outputs) for name, graph in graphs.items()}
        found[least] = list(graphs), contents, specs, (folder / "weights.bin").read_bytes()
    (traced,) = values
    assert isinstance(traced, tracing._Traced)
    assert found[0] == found[2**40]
