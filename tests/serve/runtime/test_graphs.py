"""Graphs: differences from the manifest are refused, and selection and sampling follow their formulas."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime import OrtValue

from jumok_serve import BundleError, Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.native import library
from jumok_serve.runtime.decoders import make_decoder
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs, Pairs
from jumok_serve.runtime.step_selection import SelectionParameters, VocabularyColumns
from jumok_serve.runtime.tensors import DecoderInputs
from jumok_serve.search.constraints import NO_ENTRIES, Constraints, Entries
from jumok_serve.search.search import Draw
from tests.support.models.hostile_bundles import edit_graph
from tests.support.models.native_operators import needs_library

ENCODER = f"fp32/encoder{'_native' if library() else ''}.onnx"
DECODER = f"fp32/decoder{'_native' if library() else ''}.onnx"
"""The graphs that are loaded on this machine."""


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=needs_library)], ids=["plain", "native"])
def graphs(tiny_bundle: Path, request: pytest.FixtureRequest) -> Graphs:
    return Graphs(Bundle.open(tiny_bundle), "fp32", device=CPU, threads=1, native=request.param)


@pytest.fixture
def forge(tiny_bundle: Path, tmp_path: Path) -> Callable[[str, Callable[[onnx.GraphProto], object]], Path]:
    """Change a graph in a copy of the bundle, with its size and hash in the manifest kept right."""

    def change(file: str, edit: Callable[[onnx.GraphProto], object]) -> Path:
        path = tmp_path / "forged"
        if not path.exists():
            shutil.copytree(tiny_bundle, path)
        edit_graph(path, file, edit)
        return path

    return change


def rename_output(old: str, new: str) -> Callable[[onnx.GraphProto], None]:
    def edit(graph: onnx.GraphProto) -> None:
        for value in graph.output:
            if value.name == old:
                value.name = new
        for node in graph.node:
            node.output[:] = [new if name == old else name for name in node.output]

    return edit


def test_wrong_tensor_names_are_all_reported(forge: Callable[..., Path]) -> None:
    forge(ENCODER, rename_output("memory.key.0", "memory.keys"))
    path = forge(DECODER, rename_output("totals", "total"))
    with pytest.raises(BundleError) as refused:
        Translator(path, precision="fp32")
    problems = "\n".join(refused.value.problems)
    assert f"{ENCODER}: output 'memory.key.0' is missing" in problems
    assert f"{DECODER}: output 'totals' is missing" in problems
    with Translator(path, precision="int8", threads=1) as translator:
        assert translator.precision == "int8"


def test_an_invalid_graph_is_reported(forge: Callable[..., Path]) -> None:
    path = forge(DECODER, lambda graph: graph.node[0].ClearField("output"))
    with pytest.raises(BundleError, match=f"{re.escape(DECODER)}: ONNX Runtime cannot load it"):
        Translator(path, precision="fp32")


def first_step(graphs: Graphs, selection: SelectionParameters) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Candidates [R, C] and their scores after the first step of a beam for each of two sources, and logits [R, U]."""
    sources, beam_size = np.array([[9, 11, 8, 3], [12, 7, 3, 0]]), len(selection.scores) // 2
    lengths, slots = np.array([4, 3]), np.arange(2)
    memory, decoder = graphs.make_slots("memory"), make_decoder(graphs, beam_size)
    encoded, first_state = graphs.encode(sources, lengths)
    memory.reserve(2, 4, 0)
    memory.join([0, 1], encoded, [0, 1])
    decoder.join([0, 1], first_state, [0, 1])
    tokens = np.arange(2 * beam_size).reshape(2, beam_size) + 5
    inputs = DecoderInputs(tokens, np.zeros(2, np.int64), np.zeros_like(tokens), lengths)
    candidates, totals = decoder.step(slots, inputs, memory, VocabularyColumns(graphs), selection)
    candidates, totals = candidates.copy(), totals.copy()
    return candidates, totals, decoder.logits().numpy().astype(np.float64)


def entries(*values: tuple[int, int, float]) -> Entries:
    places = np.array([value[:2] for value in values], np.int64).reshape(-1, 2)
    return Entries(places, np.array([value[2] for value in values], np.float32))


def apply(scores: np.ndarray, constraints: Constraints) -> None:
    for (row, token), factor in zip(*constraints.factors, strict=True):
        scores[row, token] *= factor if scores[row, token] < 0 else 1 / factor
    for (row, token), added in zip(*constraints.biases, strict=True):
        scores[row, token] += added


def test_selection_is_log_softmax_constraints_and_top_k(graphs: Graphs) -> None:
    scores = np.random.default_rng(4).standard_normal(6, np.float32)
    before = Constraints(
        entries((0, 1, 2.0), (3, 7, 0.5)), entries((0, 3, -np.inf), (0, 3, -np.inf), (2, 5, 4.0), (5, 0, -1.5))
    )
    after = Constraints(entries((1, 4, 0.25), (5, 2, 3.0)), entries((1, 2, -np.inf), (2, 5, 0.25), (4, 9, -2.0)))
    selection = SelectionParameters(scores=scores, candidates=7, on_logits=before, on_log_probs=after)
    tokens, totals, expected = first_step(graphs, selection)
    apply(expected, before)
    expected -= np.logaddexp.reduce(expected, axis=1, keepdims=True)
    apply(expected, after)
    order = np.argsort(-expected, axis=1, kind="stable")[:, :7]
    np.testing.assert_array_equal(tokens, order)
    np.testing.assert_allclose(totals, np.take_along_axis(expected, order, axis=1) + scores[:, None], atol=1e-5)


def test_rows_are_renormalized_on_request(graphs: Graphs) -> None:
    after = Constraints(NO_ENTRIES, entries(*((row, token, -np.inf) for row in (0, 1) for token in range(100))))
    selection = SelectionParameters(
        scores=np.zeros(2, np.float32),
        candidates=graphs.vocabulary,
        on_log_probs=after,
        renormalize=np.array([True, False]),
    )
    _, totals, logits = first_step(graphs, selection)
    probabilities = np.exp(logits)
    left = probabilities[:, 100:].sum(axis=1) / probabilities.sum(axis=1)
    np.testing.assert_allclose(np.exp(totals.astype(np.float64)).sum(axis=1), [1.0, left[1]], atol=1e-5)


def test_a_row_has_no_more_candidates_than_tokens(graphs: Graphs) -> None:
    selection = SelectionParameters(scores=np.zeros(2, np.float32), candidates=10 * graphs.vocabulary)
    tokens, totals, _ = first_step(graphs, selection)
    assert np.sort(tokens).tolist() == 2 * [list(range(graphs.vocabulary))]
    np.testing.assert_allclose(np.exp(totals.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize(("temperature", "top_p"), [(1e-300, 1.0), (1e-30, 1.0), (1.0, 1e-300), (1e-8, 0.5)])
def test_tiny_temperatures_and_top_p_draw_the_best(graphs: Graphs, temperature: float, top_p: float) -> None:
    logits = np.random.default_rng(8).standard_normal((3, graphs.vocabulary), np.float32) * 30
    draws = [Draw(temperature, 0, top_p, uniform) for uniform in (0.0, 0.5, 1 - 2**-53)]
    tokens, totals = graphs.sample(OrtValue.ortvalue_from_numpy(logits), np.arange(3), np.zeros(3, np.float32), draws)
    assert tokens[:, 0].tolist() == logits.argmax(axis=1).tolist()
    np.testing.assert_allclose(totals, 0.0, atol=1e-6)


def test_temperatures_beyond_the_range_of_fp32_draw_evenly(graphs: Graphs) -> None:
    vocabulary = graphs.vocabulary
    logits = np.random.default_rng(9).standard_normal((1, vocabulary), np.float32)
    barred = np.array([[0, 0], [0, 1]])
    constraints = Constraints(NO_ENTRIES, Entries(barred, np.full(2, -np.inf, np.float32)))
    tokens, totals = graphs.sample(
        OrtValue.ortvalue_from_numpy(logits),
        np.array([0]),
        np.zeros(1, np.float32),
        [Draw(1e300, 0, 1.0, 0.5)],
        constraints,
    )
    assert abs(int(tokens[0, 0]) - (2 + (vocabulary - 2) / 2)) <= 1
    np.testing.assert_allclose(totals, -np.log(vocabulary - 2), rtol=1e-5)


def test_score_and_align_agree_with_decoding(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        suffix = translator.manifest.languages.direction().source_suffix
        source = [*translator.tokenizer.encode("a man in a red hat"), *suffix]
        best = translator.translate("a man in a red hat", beam_size=1).hypotheses[0]
        targets = np.array([best.token_ids])
        start = np.array([translator.manifest.special_tokens.start])
        pairs = Pairs(np.array([source]), np.array([len(source)]), start, targets, np.array([targets.shape[1]]))
        # A greedy token score is taken after suppression, which can only raise it.
        scores = translator.graphs.score(pairs)[0]
        assert np.all(scores <= np.array(best.token_scores) + 1e-4)
        cross, encoder, decoder = translator.graphs.align(pairs)
        assert cross.shape[-2:] == (targets.shape[1], len(source))
        for attention in (cross, encoder, decoder):
            np.testing.assert_allclose(attention.sum(axis=-1), 1.0, atol=1e-5)
        np.testing.assert_array_equal(np.triu(decoder[0, 0, 0], 1), 0.0)
        some = translator.graphs.attention(("decoder", "cross"), pairs)
        for found, expected in zip(some, (decoder, cross), strict=True):
            np.testing.assert_array_equal(found, expected)
