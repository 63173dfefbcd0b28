"""Bundles are tried in a child process before a server opens them."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from jumok_serve.errors import BundleError
from jumok_serve.native import library
from jumok_serve.sandbox import checker
from jumok_serve.sandbox.checker import LEAST_MEMORY_BYTES, BundleChecker
from tests.support.hang import HANG_S
from tests.support.models.hostile_bundles import edit_graph, edit_manifest, loop_forever


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_bundle, tmp_path / "bundle")


def problems_of(bundle: Path, tmp_path: Path, **settings: Any) -> str:
    with pytest.raises(BundleError) as caught:
        BundleChecker(verdicts=tmp_path / "verdicts", **settings).check(bundle)
    assert not any((tmp_path / "verdicts").glob("*"))  # only good verdicts are kept
    return "\n".join(caught.value.problems)


def encoder_of(bundle: Path) -> str:
    """The file of the encoder that a server opens."""
    graphs = json.loads((bundle / "manifest.json").read_bytes())["precisions"]["fp32"]["graphs"]
    file: str = graphs["encoder_native" if library() and "encoder_native" in graphs else "encoder"]["file"]
    return file


def graphs_of(fields: dict[str, Any], role: str) -> list[dict[str, Any]]:
    """The graphs of a role, also those in native operators."""
    return [graph for name, graph in fields["precisions"]["fp32"]["graphs"].items() if name.startswith(role)]


def test_a_good_bundle_is_tried_once(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second check starts no process; another manifest or other settings do."""
    verdicts = tmp_path / "verdicts"
    BundleChecker(verdicts=verdicts).check(bundle)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    BundleChecker(verdicts=verdicts).check(bundle)
    with pytest.raises(AssertionError):
        BundleChecker(verdicts=verdicts, precision="fp32").check(bundle)
    edit_manifest(bundle, lambda fields: fields.update(version="2"))
    with pytest.raises(AssertionError):
        BundleChecker(verdicts=verdicts).check(bundle)


def test_without_a_writable_cache_bundles_are_tried_each_time(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        BundleChecker(verdicts=tmp_path / "file/verdicts").check(bundle)


def test_an_endless_loop_is_stopped(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "WAIT_FACTOR", HANG_S)  # of processor time, on a busy machine too
    encoder = encoder_of(bundle)
    edit_graph(bundle, encoder, loop_forever)
    assert "computed for more than 3 s" in problems_of(bundle, tmp_path, precision="fp32", cpu_s=3)


def test_a_graph_that_takes_too_much_memory_is_refused(bundle: Path, tmp_path: Path) -> None:
    """The child's limit is met, not the machine's."""

    def grow(graph: onnx.GraphProto) -> None:
        graph.initializer.append(numpy_helper.from_array(np.array([2**36]), "shape"))
        graph.node.append(helper.make_node("ConstantOfShape", ["shape"], ["much"]))
        axis = numpy_helper.from_array(np.array([0]), "first")
        graph.initializer.append(axis)
        graph.node.append(helper.make_node("ReduceSum", ["much", "first"], ["sum"]))
        output = graph.output[0].name
        for node in graph.node:
            node.output[:] = [f"{name}.before" if name == output else name for name in node.output]
            node.input[:] = [f"{name}.before" if name == output else name for name in node.input]
        graph.node.append(helper.make_node("Add", [f"{output}.before", "sum"], [output]))

    edit_graph(bundle, encoder_of(bundle), grow)
    found = problems_of(bundle, tmp_path, precision="fp32")
    assert "decoding with it fails" in found or "cannot load it" in found or "too much memory" in found


def test_problems_of_a_graph_that_is_opened_later_are_its_own(bundle: Path, tmp_path: Path) -> None:
    fields = json.loads((bundle / "manifest.json").read_bytes())
    for aligner in graphs_of(fields, "aligner"):
        (bundle / aligner["file"]).write_bytes(b"no graph")
    edit_manifest(bundle, lambda _: None)
    found = problems_of(bundle, tmp_path, precision="fp32")
    assert "/aligner" in found
    assert "ONNX Runtime cannot load it" in found
    assert "load it again" not in found


def test_graphs_that_break_their_contract_are_refused(bundle: Path, tmp_path: Path) -> None:
    def rename_memory(fields: dict[str, Any]) -> None:
        for encoder in graphs_of(fields, "encoder"):
            encoder["outputs"][0]["name"] = "memory.other"

    edit_manifest(bundle, rename_memory)
    assert "no graph makes 'memory." in problems_of(bundle, tmp_path, precision="fp32")


def test_a_closed_checker_starts_no_trial(bundle: Path, tmp_path: Path) -> None:
    checker = BundleChecker(verdicts=tmp_path / "verdicts")
    checker.close()
    with pytest.raises(BundleError, match="the server is stopping"):
        checker.check(bundle)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("import os; os.kill(os.getpid(), 11)", "its trial crashed with SIGSEGV"),
        ("print('x')", "its trial gave no verdict"),
        ("raise SystemExit(3)", "its trial failed with exit status 3"),
    ],
)
def test_a_trial_that_crashes_is_a_verdict(
    program: str, problem: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of the same name before the real one stands for native code that crashes."""
    package = tmp_path / "first/jumok_serve/sandbox"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "trial.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "first"))
    assert problem in problems_of(bundle, tmp_path)


def test_trials_share_the_memory_that_is_free(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take half of what those before it leave, and none begins with too little."""
    monkeypatch.setattr(checker, "free_memory", lambda: 4 * LEAST_MEMORY_BYTES)
    edit_graph(bundle, encoder_of(bundle), loop_forever)
    asked: list[int] = []
    start = subprocess.Popen

    class Child(start):  # type: ignore[misc, valid-type]
        def communicate(self, given: Any = None, timeout: float | None = None) -> Any:
            asked.append(json.loads(given)["memory_bytes"])
            if len(asked) < 3:
                with pytest.raises(BundleError) as other:
                    shared.check(bundle)
                refused.extend(other.value.problems)
            return super().communicate(given, timeout)

    refused: list[str] = []
    shared = BundleChecker(verdicts=tmp_path / "verdicts", precision="fp32", cpu_s=1)
    monkeypatch.setattr(subprocess, "Popen", Child)
    with pytest.raises(BundleError):
        shared.check(bundle)
    assert asked == [2 * LEAST_MEMORY_BYTES, LEAST_MEMORY_BYTES]
    assert "its trial may take 128 MiB, half of the memory that is free, and needs 256" in refused[0]
