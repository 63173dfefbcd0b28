"""Calibration against brute force in PyTorch, and calibrated bundles."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

from jumok_export.bundles import export as bundle_module
from jumok_export.bundles import variants as variants_module
from jumok_export.errors import ExportError, VerificationError
from jumok_export.graphs.graph import Graph
from jumok_export.graphs.tracing import export_graphs
from jumok_export.models.attention import scaled_queries
from jumok_export.models.transformer import Transformer
from jumok_export.quantization.calibration import (
    BINS,
    EDGES,
    MOST_SENTENCES,
    Calibration,
    CalibrationError,
    GreedySearch,
    best_scale,
    calibrate,
    read_calibration,
)
from jumok_export.quantization.find_matrices import SIGNED, weight_key
from jumok_export.quantization.int8_graphs import quantize_graph
from jumok_export.training.greedy import greedy_decode
from jumok_export.training.vocabulary import END, START, Vocabulary
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.languages import Languages, SourceLanguage, TargetLanguage
from jumok_serve.manifest.manifest import GenerationDefaults
from tests.support.data import Sentences
from tests.support.models.random_models import VOCABULARY, OwnGRU

Export = Callable[..., Bundle]
Damage = Callable[[onnx.ModelProto], None]
BIN = 2**-6
"""Relative width of a histogram's bins: the precision of a scale."""
SEARCH = GreedySearch(start=START, eos=(END,), max_length=40)


def histogram(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Number of values by bin of their magnitude."""
    bins = np.searchsorted(EDGES, np.abs(values), side="right") - 1
    return np.bincount(bins, minlength=BINS)


@pytest.fixture(scope="module")
def sources(sentences: Sentences, vocabulary: Vocabulary) -> list[list[int]]:
    """Sources of different lengths, some of them repeated."""
    return [vocabulary.encode(line) for line in sentences[0][:12]]


@pytest.fixture(scope="module")
def calibration(tiny_graphs: dict[str, Graph], sources: list[list[int]]) -> Calibration:
    """Calibration on these sources."""
    return calibrate(tiny_graphs, sources, SEARCH)


def test_values_of_one_magnitude_are_not_clipped() -> None:
    values = np.array([0.75, -0.75] * 50, np.float32)
    assert best_scale(histogram(values), SIGNED) == pytest.approx(0.75 / 127, rel=2 * BIN)


@pytest.mark.parametrize("many", [10_000, 100_000, 1_000_000])
def test_a_rare_outlier_is_clipped_where_that_costs_least(many: int) -> None:
    """N values around 1 and one of 100: N c^2 / (12 * 127^2) + (100 - c)^2 is least at c = 100 / (1 + N / 193548)."""
    values = np.random.default_rng(1).uniform(0.6, 1, many).astype(np.float32)
    expected = 100 / (1 + many / (12 * 127**2))
    scale = best_scale(histogram(np.append(values, np.float32(100))), SIGNED)
    assert scale * 127 == pytest.approx(expected, rel=2 * BIN)


def test_translations_are_greedy(calibration: Calibration, tiny_model: Transformer, sources: list[list[int]]) -> None:
    assert sorted(source.tolist() for source in calibration.sources) == sorted(sources)
    for source, target in zip(calibration.sources, calibration.targets, strict=True):
        given = torch.from_numpy(source)[None], torch.tensor([len(source)])
        expected = greedy_decode(tiny_model, *given, max_length=min(SEARCH.max_length, 2 * len(source)))
        assert [target.tolist()] == expected


def met_by_layers(model: nn.Module, calibration: Calibration) -> dict[str, NDArray[np.float32]]:
    """Inputs of each linear layer for the sentences and their translations, in one pass each."""
    met: dict[str, list[NDArray[np.float32]]] = {}

    def watch(layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        met.setdefault(weight_key(layer.weight.detach().numpy().T), []).append(inputs[0].detach().numpy().ravel())

    handles = [layer.register_forward_hook(watch) for layer in model.modules() if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for source, target in zip(calibration.sources, calibration.targets, strict=True):
            given = torch.from_numpy(source)[None], torch.tensor([len(source)]), torch.tensor([calibration.start])
            model.score(*given, torch.from_numpy(target)[None], torch.tensor([len(target)]))  # type: ignore[operator]
    for handle in handles:
        handle.remove()
    return {key: np.concatenate(values) for key, values in met.items()}


def squared_error(values: NDArray[np.float32], scale: float) -> float:
    least = 0 if (values >= 0).all() else -128  # of what a ReLU gives, in the models here
    rounded = np.clip(np.rint(values / scale), least, least + 255) * scale
    return float(((rounded - values).astype(np.float64) ** 2).sum())


def test_scales_have_the_least_error_on_the_inputs_of_layers(calibration: Calibration, tiny_model: Transformer) -> None:
    with scaled_queries(tiny_model):
        met = met_by_layers(tiny_model, calibration)
    assert calibration.scales.keys() == met.keys()
    for key, values in met.items():
        largest = float(np.abs(values).max())
        levels = 255 if (values >= 0).all() else 127
        tried = [squared_error(values, clip / levels) for clip in np.geomspace(largest / 8, largest, 200).tolist()]
        assert squared_error(values, calibration.scales[key]) <= 1.1 * min(tried)  # bins are 1.6 % wide
        assert calibration.scales[key] * levels <= largest * (1 + 2 * BIN)


def test_every_product_of_every_graph_has_its_scale(calibration: Calibration, tiny_graphs: dict[str, Graph]) -> None:
    for name in ("encoder", "decoder", "scorer", "aligner"):
        graph = quantize_graph(tiny_graphs[name], calibration.scales).model.graph
        constants = {tensor.name for tensor in graph.initializer}
        products = [node for node in graph.node if node.op_type == "MatMulIntegerToFloat"]
        assert products
        assert all(node.input[2] in constants and ".unit." not in node.input[2] for node in products)
        roundings = [node for node in graph.node if node.op_type == "QuantizeLinear"]
        assert {node.input[1] for node in roundings} == {node.input[2] for node in products}
        assert len({node.input[0] for node in roundings}) == len(roundings)  # each activation once
        read = {tensor for node in graph.node for tensor in node.input} | {value.name for value in graph.output}
        assert all(set(node.output) & read for node in graph.node)
        assert constants <= read


class Recurrent(OwnGRU):
    """A GRU that writes the translation from the encoder's first state, which is a sum of layers' outputs."""

    def __init__(self) -> None:
        super().__init__(width=12)
        self.reading = nn.Linear(12, 12)

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        inside = torch.arange(source_ids.shape[1]) < source_lengths[:, None]
        return {}, {"hidden": (self.reading(self.embedding(source_ids)) * inside[..., None]).sum(1).tanh()}


def test_a_recurrent_state_is_carried_on() -> None:
    torch.manual_seed(3)
    model = Recurrent().eval()
    graphs = export_graphs(model, VOCABULARY, VOCABULARY)
    random = np.random.default_rng(1)
    sources = [random.integers(4, VOCABULARY, size=length).tolist() for length in (3, 5, 5, 5, 8)]
    found = calibrate(graphs, sources, SEARCH)
    met = met_by_layers(model, found)
    assert found.scales.keys() == met.keys()
    for key, values in met.items():
        assert found.scales[key] == pytest.approx(best_scale(histogram(values), SIGNED), rel=2 * BIN)


def test_many_sentences_are_sampled_evenly(tiny_graphs: dict[str, Graph]) -> None:
    sources = [[4 + number % 7, END] for number in range(2 * MOST_SENTENCES + 1)]
    messages: list[str] = []
    found = calibrate(tiny_graphs, sources, GreedySearch(start=START, eos=(END,), max_length=1), messages.append)
    assert MOST_SENTENCES / 2 < len(found.sources) <= MOST_SENTENCES
    assert {source[0] for source in found.sources} == {4 + number for number in range(7)}
    assert len(messages) == len(found.sources) // 100


def test_a_bundle_says_that_it_is_calibrated_and_translates_as_in_fp32(
    export_tiny: Export, sentences: Sentences, tmp_path: Path
) -> None:
    """Scores are the same alone and in a batch."""
    texts = sentences[0]
    bundle = export_tiny(tmp_path / "out", calibration=["", *texts, " "])
    checks = {check.name: check for check in bundle.manifest.verification["int8"].checks}
    assert checks["decode"].detail.endswith(f"activations: calibrated on {len(texts)} sentences")
    assert "excess error" in checks
    outcomes = []
    for precision in ("fp32", "int8"):
        with Translator(bundle.path, precision=precision, threads=1) as translator:
            together = translator.translate(texts, beam_size=2)
            alone = [translator.translate(text, beam_size=2) for text in texts]
        for one, other in zip(alone, together, strict=True):
            assert one.hypotheses[0].token_ids == other.hypotheses[0].token_ids
            assert one.hypotheses[0].score == pytest.approx(other.hypotheses[0].score, abs=1e-4)
        outcomes.append([translation.hypotheses[0].token_ids for translation in together])
    same = sum(ids == expected for ids, expected in zip(*outcomes, strict=True))
    assert same >= 0.9 * len(texts)


class CalibratedError(Exception):
    """The export has calibrated; the test needs no more of it."""


def test_calibration_never_writes_suppressed_tokens(
    export_tiny: Export, sentences: Sentences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marian checkpoints forbid their padding token as a bad word, and would repeat it otherwise."""
    met: list[set[int]] = []

    def noted(*arguments: Any, **options: Any) -> Calibration:
        found = calibrate(*arguments, **options)
        met.append({int(token) for target in found.targets for token in target})
        raise CalibratedError

    monkeypatch.setattr(bundle_module, "calibrate", noted)
    for bad_words in ((), ((END,), (10, 11), *((token,) for token in range(4, 30)))):
        generation = GenerationDefaults(max_length=40, bad_words=bad_words)
        with pytest.raises(CalibratedError):
            export_tiny(tmp_path / "out", precisions=("int8",), calibration=sentences[0], generation=generation)
    free, bound = met
    assert free & set(range(4, 30))
    assert END in bound  # which a bad word does not forbid, as with `generate`
    assert not bound & set(range(4, 30))


def product_by_another_scale(graph: onnx.ModelProto) -> None:
    """Scale the products' activations by a tenth too much."""
    scales = [node.input[2] for node in graph.graph.node if node.op_type == "MatMulIntegerToFloat"]
    for node in graph.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[1] == scales[-1]:
            graph.graph.initializer.append(numpy_helper.from_array(np.array(1.1, np.float32), "off"))
            node.input[0], off = f"{node.input[0]}.off", node.input[0]
            multiply = helper.make_node("Mul", [off, "off"], [node.input[0]])
            graph.graph.node.insert(list(graph.graph.node).index(node), multiply)
            return


def narrow_range(graph: onnx.ModelProto) -> None:
    """Clip three quarters of every activation's range, in the product as well."""
    scales = {node.input[1] for node in graph.graph.node if node.op_type == "QuantizeLinear"}
    for tensor in graph.graph.initializer:
        if tensor.name in scales:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) / 4, tensor.name))


@pytest.mark.parametrize("damage", [product_by_another_scale, narrow_range])
def test_broken_calibrated_graphs_are_refused(
    damage: Damage, export_tiny: Export, sentences: Sentences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(graph: Graph, **options: Any) -> Graph:
        quantized = quantize_graph(graph, **options)
        if any(spec.name == "token_ids" for spec in graph.inputs):
            damage(quantized.model)
        return quantized

    monkeypatch.setattr(variants_module, "quantize_graph", damaged)
    with pytest.raises(VerificationError, match="verification failed in int8") as caught:
        export_tiny(tmp_path / "out", precisions=("int8",), calibration=sentences[0])
    assert "excess error" in {check.name for check in caught.value.checks}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "texts.en has no line to calibrate on"),
        (b"\n", "texts.en has no line to calibrate on"),
        (b" \n\t\n\n", "texts.en has no line to calibrate on"),
        (b"fine\ncaf\xe9\n", "texts.en, line 2, byte 4: 0xe9 is not UTF-8"),
        (None, "texts.en cannot be read: No such file"),
    ],
)
def test_a_file_without_text_is_refused_by_name(content: bytes | None, problem: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "texts.en").write_bytes(content)
    with pytest.raises(CalibrationError, match=problem):
        read_calibration(tmp_path / "texts.en")


def test_a_files_lines_are_its_texts(tmp_path: Path) -> None:
    (tmp_path / "texts.en").write_text("One.\n\n Two. \n", encoding="utf-8")
    assert read_calibration(tmp_path / "texts.en") == ["One.", " Two. "]


TWO_TARGETS = Languages(sources={"en": SourceLanguage()}, targets={"de": TargetLanguage(), "fr": TargetLanguage()})


@pytest.mark.parametrize(
    ("texts", "options", "problem"),
    [
        ([], {}, "none of the 0 .* 0 are empty and 0 have more than 48 tokens"),
        (["", "  "], {}, "none of the 2 .* 2 are empty and 0 have more than 48 tokens"),
        (["word " * 60, ""], {}, "none of the 2 .* 1 are empty and 1 have more than 48 tokens"),
        (["A text."], {"precisions": ("fp32",)}, "calibration is only for int8 and fp16, but precisions has only fp32"),
        (["A text."], {"languages": TWO_TARGETS}, "calibration needs a default language: .*several target languages"),
    ],
)
def test_unusable_calibrations_are_refused(
    texts: list[str], options: dict[str, Any], problem: str, export_tiny: Export, tmp_path: Path
) -> None:
    with pytest.raises((ExportError, CalibrationError), match=problem) as refused:
        export_tiny(tmp_path / "out", calibration=texts, **options)
    assert isinstance(refused.value, CalibrationError) == ("none of" in problem)


def test_nothing_to_calibrate_on_is_refused(tiny_graphs: dict[str, Graph]) -> None:
    with pytest.raises(ValueError, match="at least one sentence"):
        calibrate(tiny_graphs, [], SEARCH)
