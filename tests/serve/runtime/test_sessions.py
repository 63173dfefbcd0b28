"""Saturating int8 products, whose unsigned weights change no translation, and the cores of a session's threads."""

import os
import threading
from base64 import b64decode
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest

from jumok_export.graphs.graph import with_inner
from jumok_serve import Translator
from jumok_serve.runtime import graphs as graphs_module
from jumok_serve.runtime.sessions import PROBE, place_threads, products_saturate

MODELS = Path(__file__).parents[3] / "models"


def test_the_processor_is_probed_once_by_one_int8_product() -> None:
    (node,) = onnx.load_from_string(b64decode(PROBE)).graph.node
    assert (node.op_type, node.domain) == ("MatMulIntegerToFloat", "com.microsoft")
    assert products_saturate() in {True, False}
    assert products_saturate.cache_info().misses == 1


@pytest.mark.parametrize(
    ("model", "shortlist"),
    [
        ("tiny_bundle", False),
        pytest.param(
            "listed_bundle", True, marks=pytest.mark.skipif(products_saturate(), reason="signed products are cut off")
        ),
    ],
)
def test_translations_are_the_same_with_the_weights_made_unsigned(
    model: str,
    shortlist: bool,
    request: pytest.FixtureRequest,
    sentences: tuple[list[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = []
    for saturates in (False, True):
        monkeypatch.setattr(graphs_module, "products_saturate", lambda saturates=saturates: saturates)
        bundle: Path = request.getfixturevalue(model)
        with Translator(bundle, precision="int8", threads=1, shortlist=shortlist) as translator:
            outcomes.append([each.hypotheses[0] for each in translator.translate(sentences[0], beam_size=2)])
    for signed, unsigned in zip(*outcomes, strict=True):
        assert signed.token_ids == unsigned.token_ids
        np.testing.assert_allclose(signed.score, unsigned.score, atol=1e-5)


@pytest.mark.parametrize("name", ["multi30k-en-de-transformer", "multi30k-en-de-lstm", "recurrent_bundle"])
def test_weights_lie_in_the_graphs_of_their_products(name: str, request: pytest.FixtureRequest) -> None:
    """ONNX Runtime converts no other weights to unsigned: none that a loop reads from the graph around it."""
    path = request.getfixturevalue(name) if name == "recurrent_bundle" else MODELS / name
    products = 0
    for file in (path / "int8").glob("*.onnx"):
        for graph in with_inner(onnx.load(file, load_external_data=False).graph):
            own = {tensor.name for tensor in graph.initializer}
            turned = {node.output[0] for node in graph.node if node.op_type == "Transpose" and node.input[0] in own}
            read = {node.input[1] for node in graph.node if node.op_type == "MatMulIntegerToFloat"}
            assert read <= own | turned, file
            products += len(read)
    assert products > 10


CORES = sorted(os.sched_getaffinity(0))
several_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core has nothing to place")


def affinities() -> dict[int, set[int]]:
    """Cores of each thread of this process."""
    found: dict[int, set[int]] = {}
    for task in map(int, os.listdir("/proc/self/task")):
        with suppress(ProcessLookupError):  # it has ended
            found[task] = os.sched_getaffinity(task)
    return found


@several_cores
def test_a_session_of_all_cores_gives_each_thread_its_own() -> None:
    placement = place_threads(len(CORES))
    assert placement.caller == {CORES[0]}
    assert placement.workers == tuple(CORES[1:])
    assert placement.affinities == ";".join(str(core + 1) for core in CORES[1:])


@pytest.mark.parametrize("threads", [None, 1, len(CORES) + 1])
def test_other_sessions_may_run_on_any_core(threads: int | None) -> None:
    placement = place_threads(threads)
    assert placement.caller == set(CORES)
    assert placement.affinities == ""


@several_cores
def test_an_engine_with_all_threads_keeps_them_apart(tiny_bundle: Path) -> None:
    before = set(affinities())
    with Translator(tiny_bundle, replicas=1, threads=len(CORES)) as translator:
        translator.translate(["a b"])
        new = {task: cores for task, cores in affinities().items() if task not in before}
        engines = {thread.native_id or 0 for thread in threading.enumerate() if thread.name.startswith("engine")}
        (engine,) = engines & new.keys()
        assert new[engine] == {CORES[0]}
        workers = [cores for task, cores in new.items() if task != engine]
        for core in CORES[1:]:
            assert {core} in workers
    assert os.sched_getaffinity(0) == set(CORES)


@several_cores
def test_an_engine_with_fewer_threads_places_none(tiny_bundle: Path) -> None:
    before = set(affinities())
    with Translator(tiny_bundle, replicas=1, threads=1) as translator:
        translator.translate(["a b"])
        assert all(cores == set(CORES) for task, cores in affinities().items() if task not in before)
