"""Decoding in a device's own memory, with the CPU as the device: a GPU's path gives the CPU's translations."""

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from jumok_export.device.slots import grow_graph, write_graph
from jumok_export.graphs.graph import Graph
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.engine.batch import Batch
from jumok_serve.engine.sentence import Sentence
from jumok_serve.errors import BundleError, DeviceError
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime import sessions as sessions_module
from jumok_serve.runtime.device import CPU, CPU_AS_DEVICE, Device
from jumok_serve.runtime.graph_checks.contract import find_copies
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.tensors import POSITIONS_STEP, DeviceSlots, SlotBuffers
from jumok_serve.search.options import Sampling, SearchOptions
from jumok_serve.search.plan import SearchPlan

START, END = 2, 3
SPECS = (
    TensorSpec(name="memory.key", dtype="float16", axes=("B", 2, "S", 3)),
    TensorSpec(name="memory.summary", dtype="float32", axes=("B", 5)),
)


def decoded(
    graphs: Graphs, sources: list[list[int]], *, beam_size: int, draws: bool = False
) -> list[list[tuple[tuple[int, ...], float]]]:
    """Hypotheses of sentences that join two at a time and leave when they are done, so that slots are reused."""
    sentences = []
    for number, source in enumerate(sources):
        options = SearchOptions(
            beam_size=1 if draws else beam_size,
            num_hypotheses=beam_size,
            length_penalty=1.0,
            early_stopping=False,
            min_length=0,
            max_length=4 + 3 * number % 17,
            eos_ids=(END,),
            suppress_tokens=(0, 5) if number % 2 else (),
            repetition_penalty=1.3 if number % 3 == 1 else 1.0,
            renormalize=number % 4 == 2,
            sampling=Sampling(temperature=0.9, top_k=20, top_p=0.9, seed=number) if draws else None,
        )
        sentences.append(Sentence(source_ids=source, plan=SearchPlan(options, START, (), source)))
    waiting, batch = list(sentences), Batch(graphs, beam_size, 0)
    while waiting or batch.sentences:
        if waiting:
            batch.admit([waiting.pop(0) for _ in range(min(2, len(waiting)))])
        batch.step()
        batch.remove(batch.done)
    return [[(one.token_ids, one.score) for one in sentence.search.hypotheses()] for sentence in sentences]


def random_sources(vocabulary: int, count: int = 12) -> list[list[int]]:
    random = np.random.default_rng(4)
    lengths = [*random.integers(1, 12, count - 1), POSITIONS_STEP + 9]  # the last one makes buffers grow
    return [random.integers(4, vocabulary, length).tolist() for length in random.permutation(lengths)]


@pytest.mark.parametrize(("beam_size", "draws"), [(1, False), (4, False), (3, True)])
def test_a_device_decodes_what_the_cpu_decodes(half_bundle: Path, beam_size: int, draws: bool) -> None:
    bundle = Bundle.open(half_bundle)
    sources = random_sources(bundle.tokenizer.vocab_size)
    expected, found = (
        decoded(Graphs(bundle, "fp32", device=device, threads=1), sources, beam_size=beam_size, draws=draws)
        for device in (CPU, CPU_AS_DEVICE)
    )
    for one, other in zip(expected, found, strict=True):
        assert [tokens for tokens, _ in one] == [tokens for tokens, _ in other]
        assert [score for _, score in one] == pytest.approx([score for _, score in other], rel=1e-5, abs=1e-4)


def test_fp16_translates_as_fp32_does(half_bundle: Path, sentences: tuple[list[str], list[str]]) -> None:
    with (
        Translator(half_bundle, precision="fp16", threads=1) as half,
        Translator(half_bundle, precision="fp32", replicas=1, threads=1) as full,
    ):
        assert (half.precision, half.device) == ("fp16", "cpu")
        pairs = [
            (one.text, other.text)
            for beam_size in (1, 4)
            for one, other in zip(
                half.translate(sentences[0], beam_size=beam_size),
                full.translate(sentences[0], beam_size=beam_size),
                strict=True,
            )
        ]
        scores = [translator.score("A dog runs.", "Ein Hund rennt.").score for translator in (half, full)]
    assert sum(one == other for one, other in pairs) >= 0.9 * len(pairs)
    assert scores[0] == pytest.approx(scores[1], rel=0.01)
    assert scores[0] != scores[1]  # fp16 has half the digits


def test_fp16_is_half_as_large_and_verified(half_bundle: Path) -> None:
    manifest = Bundle.open(half_bundle).manifest
    half, full = (manifest.files[manifest.precisions[name].weights].size for name in ("fp16", "fp32"))
    assert half < 0.8 * full  # tensors begin at pages
    report = manifest.verification["fp16"]
    assert report.passed
    assert {"encoder", "scorer", "maximum lengths", "decode", "top-1 tokens", "batch invariance"} <= {
        check.name for check in report.checks
    }
    assert any(check.name == "device: decode, beam 3" for check in manifest.verification["fp32"].checks)


def test_unsupported_graphs_are_refused_with_a_remedy(tiny_bundle: Path, half_bundle: Path) -> None:
    with pytest.raises(DeviceError, match=r"no graphs in int8 for device 'cpu': .* --precision fp16 or fp32"):
        Graphs(Bundle.open(tiny_bundle), "int8", device=CPU_AS_DEVICE, threads=1)
    with pytest.raises(DeviceError, match="does not support shortlists"):
        Graphs(Bundle.open(half_bundle), "fp16", device=CPU_AS_DEVICE, threads=1, listed=True)
    with pytest.raises(BundleError, match="fp16 has no graphs for a shortlist"):
        Graphs(Bundle.open(half_bundle), "fp16", device=CPU, threads=1, listed=True)


def test_operators_that_run_elsewhere_are_refused_by_name(
    half_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        sessions_module, "find_copies", lambda _: ["TopK 'best' on the host reads 'scores' from the device"]
    )
    bundle = Bundle.open(half_bundle)
    with pytest.raises(DeviceError, match=r"encoder.onnx does not stay on the device: TopK 'best'.*--gpu-allow-copies"):
        Graphs(bundle, "fp16", device=CPU_AS_DEVICE, threads=1)
    allowing = Device("cpu", CPU.providers, own_memory=True, allow_copies=True)
    with caplog.at_level(logging.WARNING):
        Graphs(bundle, "fp16", device=allowing, threads=1)
    assert "decoder.onnx does not stay on the device: TopK 'best'" in caplog.text


def test_copies_are_found_in_graphs_and_their_subgraphs() -> None:
    node, info = helper.make_node, helper.make_tensor_value_info
    inner = helper.make_graph([node("MemcpyFromHost", ["a"], ["b"])], "inner", [], [info("b", TensorProto.FLOAT, [1])])
    nodes = [
        node("Add", ["x", "x"], ["a"], name="twice"),
        node("MemcpyToHost", ["a"], ["a.host"]),
        node("NonZero", ["a.host"], ["places"], name="somewhere"),
        node("MemcpyFromHost", ["places"], ["places.device"]),
        node("If", ["condition"], ["c"], name="choice", then_branch=inner, else_branch=inner),
    ]
    graph = helper.make_graph(nodes, "outer", [info("x", TensorProto.FLOAT, [1])], [info("c", TensorProto.FLOAT, [1])])
    found = find_copies(helper.make_model(graph).SerializeToString())
    assert found[0] == "NonZero 'somewhere' on the host reads 'a' from the device"
    assert found[1] == "NonZero 'somewhere' on the host makes 'places' for the device"
    assert set(found[2:]) == {"If 'choice': the host gives 'a' for the device"}
    del graph.node[1:]
    assert find_copies(helper.make_model(graph).SerializeToString()) == []


@pytest.fixture
def slots() -> DeviceSlots:
    def session(graph: Graph) -> onnxruntime.InferenceSession:
        onnx.checker.check_model(graph.model)
        return onnxruntime.InferenceSession(graph.model.SerializeToString(), providers=["CPUExecutionProvider"])

    grow, write = session(grow_graph(SPECS, "S")), session(write_graph(SPECS, "S"))
    return DeviceSlots(SPECS, "S", device_id=("cpu", 0), grow=grow, write=write)


def test_slots_on_a_device_hold_what_those_on_the_host_hold(slots: DeviceSlots) -> None:
    """Sentences of random lengths join, move and leave; buffers grow and are cut again."""
    random, host = np.random.default_rng(8), SlotBuffers(SPECS, "S")
    lengths: list[int] = []
    for turn in range(30):
        joining = random.integers(1, 100 if turn in (5, 20) else 12, random.integers(1, 4)).tolist()
        room = max([*lengths, *joining])
        values = {
            "memory.key": random.standard_normal((len(joining), 2, max(joining), 3)).astype(np.float16),
            "memory.summary": random.standard_normal((len(joining), 5)).astype(np.float32),
        }
        places = range(len(lengths), len(lengths) + len(joining))
        rows = np.random.default_rng(turn).permutation(len(joining)).tolist()
        for buffers in (host, slots):
            buffers.reserve(places[-1] + 1, room, len(lengths))
            buffers.join(
                places,
                {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in values.items()},
                rows,
            )
        lengths += [joining[row] for row in rows]
        while len(lengths) > 1 and random.random() < 0.6:
            leaving, last = int(random.integers(len(lengths) - 1)), len(lengths) - 1
            for buffers in (host, slots):
                buffers.move([last], [leaving], lengths[last])
            lengths[leaving] = lengths.pop()
        expected, found = host.view(len(lengths)), slots.view(len(lengths))
        assert found is slots.view(len(lengths))
        for name, view in found.items():
            held, whole = view.buffer.numpy()[: view.shape[0]], expected[name].numpy()
            assert np.isfinite(held).all()
            for slot, length in enumerate(lengths):
                part = (slot, slice(None), slice(length)) if held.ndim > 2 else slot
                assert np.array_equal(held[part], whole[part])
    assert slots.length % POSITIONS_STEP == 0
    assert slots.length <= 2 * POSITIONS_STEP  # the long sentences have left
